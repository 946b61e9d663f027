//! What a request's body becomes: decides the event's kind, and checks JSON before a worker sees it.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::IgnoredAny;
use sless_protocol::frame::EventKind;

/// Decides the event of a body; `Err` says why promised JSON is none.
pub(crate) fn event_kind(headers: &HeaderMap, body: &[u8]) -> Result<EventKind, String> {
    if body.is_empty() {
        return Ok(EventKind::Query);
    }
    let content_type = headers.get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes()));
    let media = content_type.as_deref().map(media_type).unwrap_or_default();
    Ok(match &*media {
        "" => match check_json(body) {
            Ok(()) => EventKind::Json,
            Err(_) if std::str::from_utf8(body).is_ok() => EventKind::Text,
            Err(_) => EventKind::Bytes,
        },
        "application/json" => check_json(body).map(|()| EventKind::Json)?,
        "application/x-www-form-urlencoded" => {
            let first = body.iter().find(|b| !b.is_ascii_whitespace());
            match first {
                Some(b'{' | b'[') if check_json(body).is_ok() => EventKind::Json,
                _ => EventKind::Form,
            }
        }
        m if m.ends_with("+json") => check_json(body).map(|()| EventKind::Json)?,
        m if m.starts_with("text/") => EventKind::Text,
        _ => EventKind::Bytes,
    })
}

/// Type and subtype, in lower case, without parameters.
fn media_type(content_type: &str) -> Cow<'_, str> {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    if media.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(media.to_ascii_lowercase())
    } else {
        Cow::Borrowed(media)
    }
}

/// RFC 8259, any depth (values that are ignored are not parsed recursively), UTF-8.
fn check_json(body: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(body).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))?;
    serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(content_type: &str, body: &[u8]) -> Result<EventKind, String> {
        let mut headers = HeaderMap::new();
        if !content_type.is_empty() {
            headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        }
        event_kind(&headers, body)
    }

    #[test]
    fn each_content_type_has_its_event() {
        assert_eq!(kind("application/json", b""), Ok(EventKind::Query));
        assert_eq!(kind("Application/JSON; charset=utf-8", b"[1]"), Ok(EventKind::Json));
        assert_eq!(kind("application/problem+json", b"{}"), Ok(EventKind::Json));
        assert_eq!(kind("application/x-www-form-urlencoded", b"a=1"), Ok(EventKind::Form));
        assert_eq!(kind("application/x-www-form-urlencoded", b" {\"a\":1}"), Ok(EventKind::Json));
        assert_eq!(kind("application/x-www-form-urlencoded", b"7"), Ok(EventKind::Form));
        assert_eq!(kind("text/csv", b"7"), Ok(EventKind::Text));
        assert_eq!(kind("image/png", b"7"), Ok(EventKind::Bytes));
        assert_eq!(kind("", b"7"), Ok(EventKind::Json));
        assert_eq!(kind("", b"{"), Ok(EventKind::Text));
        assert_eq!(kind("", b"\xff"), Ok(EventKind::Bytes));
    }

    #[test]
    fn malformed_json_is_refused() {
        for body in [&b"{\"a\": "[..], b"{\"a\": NaN}", b"{} {}", b"{\"a\": \"\xff\"}"] {
            assert!(kind("application/json", body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn depth_has_no_limit() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(kind("application/json", deep.as_bytes()), Ok(EventKind::Json));
    }
}
