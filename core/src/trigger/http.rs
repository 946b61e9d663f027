//! What only a trigger of type `http` has: which calls it lets in, and what browsers are told.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{FieldError, HostName, Seconds};

/// More entries than anybody needs would only make each call slower.
const MAX_ENTRIES: usize = 100;
/// A day; browsers take less.
const MAX_AGE_SEC: u64 = 86_400;
const DEFAULT_AGE_SEC: u32 = 600;
/// Stands for all.
const ANY: &str = "*";

/// The fields of a trigger that only the type `http` has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HttpTrigger {
    /// A host name whose calls all go to the function, whatever their path.
    #[serde(default)]
    pub host: Option<HostName>,
    /// What it may be called with; empty: anything.
    #[serde(default)]
    pub methods: Vec<String>,
    #[serde(default)]
    pub cors: Option<Cors>,
}

/// What browsers are told about calls from pages of other origins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cors {
    /// As browsers send them, or `*`.
    pub origins: Vec<String>,
    /// `*`: those that the trigger takes.
    pub methods: Vec<String>,
    /// `*`: those that are asked for.
    pub headers: Vec<String>,
    pub max_age_sec: u32,
}

impl HttpTrigger {
    /// The names of its fields.
    pub const FIELDS: [&str; 3] = ["host", "methods", "cors"];

    /// Reads what `object` holds; what is missing or null gets its default. Other fields are the caller's to judge.
    ///
    /// # Errors
    /// The first field that is not as it must be, by name.
    pub fn from_object(object: &Map<String, Value>) -> Result<Self, FieldError> {
        let host = match object.get("host") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.parse()?),
            Some(_) => return Err(FieldError::new("host", "must be a string")),
        };
        let methods = list(object, "", "methods", method)?.unwrap_or_default();
        let cors = match object.get("cors") {
            None | Some(Value::Null) => None,
            Some(Value::Object(cors)) => Some(Cors::from_object(cors)?),
            Some(_) => return Err(FieldError::new("cors", "must be an object")),
        };
        Ok(Self { host, methods, cors })
    }

    /// As JSON, every field in it.
    #[must_use]
    pub fn to_object(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(object)) => object,
            // Texts, lists of them and a number always have a JSON form.
            _ => Map::new(),
        }
    }

    /// Whether it may be called with this method.
    #[must_use]
    pub fn takes(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|one| one == method)
    }
}

impl Cors {
    fn from_object(object: &Map<String, Value>) -> Result<Self, FieldError> {
        const FIELDS: [&str; 4] = ["origins", "methods", "headers", "max_age_sec"];
        if let Some(unknown) = object.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            return Err(FieldError::new(format!("cors.{unknown}"), "there is no such field"));
        }
        let all = || vec![ANY.to_owned()];
        let origins = list(object, "cors.", "origins", origin)?;
        let origins = origins.filter(|list| !list.is_empty()).ok_or_else(|| {
            FieldError::new(
                "cors.origins",
                "must name at least one origin, as in 'https://app.example.org', or be [\"*\"]",
            )
        })?;
        let max_age_sec = match object.get("max_age_sec") {
            None | Some(Value::Null) => DEFAULT_AGE_SEC,
            Some(value) => value
                .as_u64()
                // 5.0 is the same number as 5 in JSON.
                .or_else(|| value.as_f64().and_then(Seconds::new).and_then(Seconds::whole))
                .filter(|seconds| *seconds <= MAX_AGE_SEC)
                .and_then(|seconds| u32::try_from(seconds).ok())
                .ok_or_else(|| {
                    let wanted = format!("must be a whole number of seconds from 0 to {MAX_AGE_SEC}");
                    FieldError::new("cors.max_age_sec", wanted)
                })?,
        };
        Ok(Self {
            origins,
            methods: list(object, "cors.", "methods", any_or(method))?.unwrap_or_else(all),
            headers: list(object, "cors.", "headers", any_or(header))?.unwrap_or_else(all),
            max_age_sec,
        })
    }

    /// Whether pages of this origin may read the answers.
    #[must_use]
    pub fn allows(&self, origin: &str) -> bool {
        self.is_for_all() || self.origins.iter().any(|one| one == origin)
    }

    /// Whether pages of any origin may.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        self.origins.iter().any(|one| one == ANY)
    }

    /// The methods that it names; `None`: those that the trigger takes.
    #[must_use]
    pub fn named_methods(&self) -> Option<&[String]> {
        (!self.methods.iter().any(|one| one == ANY)).then_some(&self.methods)
    }

    /// The headers that it names; `None`: those that are asked for.
    #[must_use]
    pub fn named_headers(&self) -> Option<&[String]> {
        (!self.headers.iter().any(|one| one == ANY)).then_some(&self.headers)
    }
}

/// A list of different texts, each of which `check` takes; `None` if there is none.
fn list(
    object: &Map<String, Value>,
    prefix: &str,
    name: &str,
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<Option<Vec<String>>, FieldError> {
    let fail = |message: String| FieldError::new(format!("{prefix}{name}"), message);
    let items = match object.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(items)) if items.len() <= MAX_ENTRIES => items,
        Some(_) => return Err(fail(format!("must be a list of at most {MAX_ENTRIES} strings"))),
    };
    let mut seen = HashSet::new();
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        let Value::String(text) = item else { return Err(fail("must be a list of strings".to_owned())) };
        check(text).map_err(|wanted| fail(format!("{text:?} {wanted}")))?;
        if seen.insert(text) {
            texts.push(text.clone());
        }
    }
    Ok(Some(texts))
}

fn any_or(check: impl Fn(&str) -> Result<(), &'static str>) -> impl Fn(&str) -> Result<(), &'static str> {
    move |text| if text == ANY { Ok(()) } else { check(text) }
}

fn method(text: &str) -> Result<(), &'static str> {
    let plain = (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
    if plain && text != "CONNECT" {
        Ok(())
    } else {
        Err("is no method that a function is called with, as GET is")
    }
}

/// RFC 9110's token.
fn header(text: &str) -> Result<(), &'static str> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if (1..=100).contains(&text.len()) && text.bytes().all(token) {
        Ok(())
    } else {
        Err("is no name of a header")
    }
}

/// As browsers write it: scheme, host, and the port if it is not the usual one.
fn origin(text: &str) -> Result<(), &'static str> {
    const WANTED: &str = "is no origin, as 'https://app.example.org' is: in lower case, without a path";
    if text == ANY {
        return Ok(());
    }
    let plain = |b: u8| b.is_ascii_graphic() && !b.is_ascii_uppercase() && !b"/\\?#@,\"*".contains(&b);
    match text.split_once("://") {
        Some((scheme, host))
            if text.len() <= 300
                && !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b))
                && !host.is_empty()
                && host.bytes().all(plain) =>
        {
            Ok(())
        }
        _ => Err(WANTED),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<HttpTrigger, FieldError> {
        HttpTrigger::from_object(value.as_object().unwrap())
    }

    #[test]
    fn what_is_not_said_has_a_default_and_is_read_back_as_it_is_written() {
        assert_eq!(read(json!({})).unwrap(), HttpTrigger::default());
        let all = read(json!({"host": "shop.example.org", "methods": ["GET", "GET", "M-SEARCH"], "cors": {"origins": ["https://a.example:8443"]}})).unwrap();
        assert_eq!(
            Value::Object(all.to_object()),
            json!({"host": "shop.example.org", "methods": ["GET", "M-SEARCH"],
                "cors": {"origins": ["https://a.example:8443"], "methods": ["*"], "headers": ["*"], "max_age_sec": 600}})
        );
        assert_eq!(read(Value::Object(all.to_object())).unwrap(), all);
        let same = read(json!({"cors": {"origins": ["*"], "max_age_sec": 5.0}})).unwrap();
        assert_eq!(same.cors.unwrap().max_age_sec, 5);
        assert!(all.takes("GET") && !all.takes("get") && !all.takes("POST"));
        assert!(HttpTrigger::default().takes("PROPFIND"));
        let cors = all.cors.unwrap();
        assert!(
            cors.allows("https://a.example:8443") && !cors.allows("https://a.example") && !cors.is_for_all()
        );
        assert_eq!((cors.named_methods(), cors.named_headers()), (None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (value, field) in [
            (json!({"host": 1}), "host"),
            (json!({"host": "localhost"}), "host"),
            (json!({"host": "127.0.0.1"}), "host"),
            (json!({"host": "Shop.example.org"}), "host"),
            (json!({"host": "*.example.org"}), "host"),
            (json!({"host": "shop.example.org:80"}), "host"),
            (json!({"methods": "GET"}), "methods"),
            (json!({"methods": ["get"]}), "methods"),
            (json!({"methods": ["CONNECT"]}), "methods"),
            (json!({"methods": ["GET\r\nx: y"]}), "methods"),
            (json!({"methods": vec!["A"; 101]}), "methods"),
            (json!({"cors": []}), "cors"),
            (json!({"cors": {}}), "cors.origins"),
            (json!({"cors": {"origins": []}}), "cors.origins"),
            (json!({"cors": {"origins": ["https://a/"]}}), "cors.origins"),
            (json!({"cors": {"origins": ["https://A"]}}), "cors.origins"),
            (json!({"cors": {"origins": ["https://*.a"]}}), "cors.origins"),
            (json!({"cors": {"origins": ["a.example"]}}), "cors.origins"),
            (json!({"cors": {"origins": ["*"], "methods": [""]}}), "cors.methods"),
            (json!({"cors": {"origins": ["*"], "headers": ["x y"]}}), "cors.headers"),
            (json!({"cors": {"origins": ["*"], "max_age_sec": -1}}), "cors.max_age_sec"),
            (json!({"cors": {"origins": ["*"], "max_age_sec": 86_401}}), "cors.max_age_sec"),
            (json!({"cors": {"origins": ["*"], "credentials": true}}), "cors.credentials"),
        ] {
            assert_eq!(read(value.clone()).unwrap_err().field, field, "{value}");
        }
    }
}
