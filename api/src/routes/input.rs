//! Reads what a request carries: JSON objects, pages, conditions.

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{ETAG, HeaderValue, IF_MATCH};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use sless_backend::{FunctionRow, SecretRow, TriggerRow};

use crate::problem::{Code, Problem};
use crate::store::TokenRow;

/// Largest JSON body.
const MAX_JSON: usize = 1 << 20;
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 500;

/// The body as a JSON object; nothing at all is one without fields.
pub(super) async fn optional_object(body: Body) -> Result<Map<String, Value>, Problem> {
    let whole = whole(body).await?;
    if whole.is_empty() { Ok(Map::new()) } else { parsed(&whole) }
}

/// The body as a JSON object.
pub(super) async fn object(body: Body) -> Result<Map<String, Value>, Problem> {
    parsed(&whole(body).await?)
}

async fn whole(body: Body) -> Result<Bytes, Problem> {
    let whole = Limited::new(body, MAX_JSON).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Problem::new(Code::TooLarge, format!("a JSON body has at most {MAX_JSON} bytes"))
        } else {
            Problem::new(Code::Invalid, format!("the body broke off: {error}"))
        }
    })?;
    Ok(whole.to_bytes())
}

fn parsed(whole: &[u8]) -> Result<Map<String, Value>, Problem> {
    match serde_json::from_slice(whole) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Problem::new(Code::Invalid, "the body must be a JSON object")),
        Err(error) => Err(Problem::new(Code::Invalid, format!("the body is not valid JSON: {error}"))),
    }
}

/// A field that has to be a string.
pub(super) fn string<'a>(object: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, Problem> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Problem::invalid(field, format!("{field}: must be a string"))),
    }
}

/// The name that a body gives to what it makes.
pub(super) fn name(object: &Map<String, Value>) -> Result<&str, Problem> {
    string(object, "name")?.ok_or_else(|| Problem::invalid("name", "name: is missing"))
}

/// Refuses a body that names something else than its address does.
pub(super) fn same_name(object: &Map<String, Value>, name: &str) -> Result<(), Problem> {
    match string(object, "name")? {
        Some(other) if other != name => {
            Err(Problem::invalid("name", "name: must be that of the address, or missing"))
        }
        _ => Ok(()),
    }
}

/// Refuses fields that nobody knows.
pub(super) fn only_known(object: &Map<String, Value>, known: impl Fn(&str) -> bool) -> Result<(), Problem> {
    match object.keys().find(|field| !known(field)) {
        Some(field) => Err(Problem::invalid(field.clone(), format!("{field}: there is no such field"))),
        None => Ok(()),
    }
}

/// RFC 7396.
pub(super) fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (field, value) in patch {
        match value {
            Value::Null => {
                target.remove(&field);
            }
            Value::Object(patch) => {
                let slot = target.entry(field).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(inner) = slot {
                    merge(inner, patch);
                }
            }
            other => {
                target.insert(field, other);
            }
        }
    }
}

/// The parameters of a query.
#[derive(Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    pub(super) fn parse(query: Option<&str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// One parameter, also an empty one.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// One parameter; an empty one counts as none.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.given(name).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &str, default: u32, max: u32) -> Result<u32, Problem> {
        let Some(text) = self.given(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|n| (1..=max).contains(n));
        number
            .ok_or_else(|| Problem::invalid(name, format!("{name}: must be a whole number from 1 to {max}")))
    }

    pub(super) fn limit(&self) -> Result<u32, Problem> {
        self.number("limit", DEFAULT_LIMIT, MAX_LIMIT)
    }

    /// What [`cursor`] made of `kind` and some texts, if it did.
    pub(super) fn cursor(&self, kind: &str) -> Result<Option<Vec<String>>, Problem> {
        let Some(text) = self.given("cursor") else { return Ok(None) };
        let bad =
            || Problem::invalid("cursor", "cursor: not one that a list of this kind has given as 'next'");
        let plain = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(bad)?;
        let mut parts = plain.split(' ').map(str::to_owned);
        if parts.next().as_deref() == Some(kind) { Ok(Some(parts.collect())) } else { Err(bad()) }
    }

    /// A cursor that is one number.
    pub(super) fn cursor_id(&self, kind: &str) -> Result<Option<i64>, Problem> {
        let Some(parts) = self.cursor(kind)? else { return Ok(None) };
        let number = parts.first().and_then(|text| text.parse().ok()).filter(|_| parts.len() == 1);
        number.map(Some).ok_or_else(|| {
            Problem::invalid("cursor", "cursor: not one that a list of this kind has given as 'next'")
        })
    }
}

/// Which part of a list of things that have ids.
#[derive(Debug)]
pub(super) struct Page {
    kind: &'static str,
    pub(super) limit: u32,
    /// Goes on below this id.
    pub(super) below: Option<i64>,
}

impl Page {
    pub(super) fn parse(query: Option<&str>, kind: &'static str) -> Result<Self, Problem> {
        let params = Params::parse(query);
        Ok(Self { kind, limit: params.limit()?, below: params.cursor_id(kind)? })
    }

    /// Of one row more than asked for: the page, and where the next one begins.
    pub(super) fn cut<T>(&self, mut rows: Vec<T>, id: impl Fn(&T) -> i64) -> (Vec<T>, Option<String>) {
        let more = rows.len() > self.limit as usize;
        rows.truncate(self.limit as usize);
        let next = rows.last().filter(|_| more).map(|row| cursor(self.kind, &id(row).to_string()));
        (rows, next)
    }
}

/// An opaque text that says where a page ended.
pub(super) fn cursor(kind: &str, parts: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{kind} {parts}"))
}

/// What an `ETag` tells apart: the row, which nothing later of the same name shares, and how often it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    row: i64,
    writes: u64,
}

impl From<&FunctionRow> for Version {
    fn from(row: &FunctionRow) -> Self {
        Self { row: row.id, writes: row.version }
    }
}

impl From<&TriggerRow> for Version {
    fn from(row: &TriggerRow) -> Self {
        Self { row: row.id, writes: row.version }
    }
}

impl From<&SecretRow> for Version {
    fn from(row: &SecretRow) -> Self {
        Self { row: row.id, writes: row.version }
    }
}

/// A token is never changed.
impl From<&TokenRow> for Version {
    fn from(row: &TokenRow) -> Self {
        Self { row: row.id, writes: 1 }
    }
}

impl Version {
    fn tag(self) -> String {
        format!("\"{}-{}\"", self.row, self.writes)
    }
}

/// The `ETag` of something that counts its writes.
pub(super) fn etag(version: Version) -> (http::HeaderName, HeaderValue) {
    let text = Bytes::from(version.tag());
    (ETAG, HeaderValue::from_maybe_shared(text).unwrap_or_else(|_| HeaderValue::from_static("\"\"")))
}

/// Whether the request's `If-Match`, if it has one, names this version.
pub(super) fn check_if_match(headers: &HeaderMap, version: impl Into<Version>) -> Result<(), Problem> {
    let mut lines = headers.get_all(IF_MATCH).iter().peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    let wanted = version.into().tag();
    let matches = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag == wanted);
    if matches { Ok(()) } else { Err(Problem::stale()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_merges_as_rfc_7396_says() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": "c"}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": [1]}), json!({"a": [2, 3]}), json!({"a": [2, 3]})),
        ] {
            let mut merged = target.as_object().unwrap().clone();
            merge(&mut merged, patch.as_object().unwrap().clone());
            assert_eq!(Value::Object(merged), result, "{patch}");
        }
    }

    #[test]
    fn a_cursor_is_taken_only_by_the_kind_of_list_that_gave_it() {
        let next = cursor("f", "42");
        let params = |c: &str| Params::parse(Some(&format!("cursor={c}")));
        assert_eq!(params(&next).cursor_id("f").unwrap(), Some(42));
        for (bad, kind) in [
            (next.as_str(), "t"),
            ("nonsense", "f"),
            ("", "f"),
            (&cursor("f", "x"), "f"),
            (&cursor("f", "1 2"), "f"),
        ] {
            assert_eq!(params(bad).cursor_id(kind).unwrap_err().field.as_deref(), Some("cursor"), "{bad}");
        }
        assert_eq!(Params::parse(None).cursor_id("f").unwrap(), None);
    }

    #[test]
    fn limits_are_numbers_within_their_range() {
        for bad in ["0", "x", "-1", "501", "", "1.5"] {
            let refused = Params::parse(Some(&format!("limit={bad}"))).limit().unwrap_err();
            assert_eq!((refused.code, refused.field.as_deref()), (Code::Invalid, Some("limit")), "{bad}");
        }
        assert_eq!(Params::parse(Some("limit=7")).limit().unwrap(), 7);
    }

    #[test]
    fn if_match_holds_for_any_version_that_it_names() {
        let check = |value: &str| {
            let version = Version { row: 7, writes: 3 };
            check_if_match(&HeaderMap::from_iter([(IF_MATCH, value.parse().unwrap())]), version).is_ok()
        };
        assert!(check("\"7-3\"") && check("\"1-1\", \"7-3\"") && check("*"));
        for other in ["", "\"7-2\"", "\"8-3\"", "7-3", "W/\"7-3\""] {
            assert!(!check(other), "{other}");
        }
        assert!(check_if_match(&HeaderMap::new(), Version { row: 7, writes: 3 }).is_ok());
    }
}
