//! Who may say what a call is: the platform, by its token or as the host that started us.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Peer;

const TOKEN: HeaderName = HeaderName::from_static("x-sless-proxy-token");

#[derive(Debug)]
pub(crate) struct Platform {
    token_file: Option<PathBuf>,
}

impl Platform {
    pub(crate) fn new(token_file: Option<PathBuf>) -> Self {
        Self { token_file }
    }

    /// Whether a request is the platform's.
    pub(crate) fn is_it(&self, headers: &HeaderMap, peer: &Peer) -> bool {
        matches!(peer, Peer::Host) || headers.get(TOKEN).is_some_and(|given| self.matches(given))
    }

    /// Compares with the token, which is read anew each time, since it rotates.
    fn matches(&self, given: &HeaderValue) -> bool {
        let Some(Ok(token)) = self.token_file.as_ref().map(std::fs::read) else { return false };
        let token = token.trim_ascii();
        !token.is_empty() && equal(token, given.as_bytes())
    }
}

/// Takes as long for a near miss as for a wild guess.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (x, y)| differs | (x ^ y)) == 0
}

/// What can ask for an invocation.
const TRIGGERS: [&str; 6] = ["http", "invoke", "async", "cron", "rabbitmq", "job"];

/// What a request says of its call; of one that is not the platform's nothing is believed.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) id: Option<Uuid>,
    pub(super) trigger: String,
    pub(super) attempt: u32,
    pub(super) client_ip: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) source: Option<Box<RawValue>>,
}

impl Claims {
    pub(super) fn of(headers: &HeaderMap, trusted: bool) -> Self {
        let get = |name: &str| headers.get(name).filter(|_| trusted).and_then(|v| v.to_str().ok());
        Self {
            id: get("x-sless-invocation-id").and_then(|v| v.parse().ok()),
            trigger: get("x-sless-trigger").filter(|t| TRIGGERS.contains(t)).unwrap_or("http").to_owned(),
            attempt: get("x-sless-attempt").and_then(|v| v.parse().ok()).filter(|n| *n > 0).unwrap_or(1),
            client_ip: get("x-sless-client-ip").map(str::to_owned),
            timeout: get("x-sless-timeout-ms").and_then(|v| v.parse().ok()).map(Duration::from_millis),
            source: get("x-sless-source").and_then(source),
        }
    }
}

/// base64url (RFC 4648 §5, with or without padding) of a JSON object.
fn source(value: &str) -> Option<Box<RawValue>> {
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(value.trim_end_matches('=')).ok()?;
    let raw: Box<RawValue> = serde_json::from_slice(&bytes).ok()?;
    raw.get().trim_start().starts_with('{').then_some(raw)
}

/// The headers that a handler sees: no `X-Sless-*`, whoever sent it.
pub(super) fn without_ours(mut headers: HeaderMap) -> HeaderMap {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-sless-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn the_token_is_read_anew_and_an_empty_one_never_matches() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let platform = Platform::new(Some(file.path().to_owned()));
        let with = |token: &'static str| {
            platform.is_it(&headers(&[("x-sless-proxy-token", token)]), &Peer::Stranger)
        };
        assert!(!with(""));
        std::fs::write(file.path(), " one\n").unwrap();
        assert!(with("one") && !with("two") && !with("on"));
        std::fs::write(file.path(), "two").unwrap();
        assert!(with("two") && !with("one"));
    }

    #[test]
    fn nothing_is_believed_of_strangers() {
        let given = headers(&[
            ("x-sless-trigger", "cron"),
            ("x-sless-attempt", "3"),
            ("x-sless-source", "eyJhIjoxfQ"),
        ]);
        let (platform, stranger) = (Claims::of(&given, true), Claims::of(&given, false));
        assert_eq!((platform.trigger.as_str(), platform.attempt), ("cron", 3));
        assert_eq!(platform.source.unwrap().get(), r#"{"a":1}"#);
        assert_eq!(
            (stranger.trigger.as_str(), stranger.attempt, stranger.source.is_none()),
            ("http", 1, true)
        );
        assert!(without_ours(given).is_empty());
    }
}
