//! W3C Trace Context (Level 1): a caller's trace goes on, else one begins.

use http::HeaderValue;
use uuid::Uuid;

/// `traceparent` of the call: the caller's trace id where it sent a valid one, and a span of our own.
pub(super) fn continued(incoming: Option<&HeaderValue>, id: Uuid) -> String {
    let simple = id.simple().to_string();
    // The random half of the invocation's id names the span.
    let span = &simple[16..];
    match incoming.and_then(|v| v.to_str().ok()).and_then(parse) {
        Some((trace, flags)) => format!("00-{trace}-{span}-{flags}"),
        None => format!("00-{simple}-{span}-01"),
    }
}

/// Trace id and flags.
fn parse(value: &str) -> Option<(&str, &str)> {
    let mut fields = value.split('-');
    let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let hex = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |s: &str| s.bytes().all(|b| b == b'0');
    // A later version may have more fields; the first four mean the same.
    let fine = hex(version, 2) && version != "ff" && (version != "00" || fields.next().is_none());
    let ids = hex(trace, 32) && hex(parent, 16) && hex(flags, 2) && !zero(trace) && !zero(parent);
    (fine && ids).then_some((trace, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    #[test]
    fn a_callers_trace_goes_on_with_a_span_of_our_own() {
        let made = continued(Some(&HeaderValue::from_static(GOOD)), Uuid::now_v7());
        let fields: Vec<_> = made.split('-').collect();
        assert_eq!((fields[1], fields[3]), ("4bf92f3577b34da6a3ce929d0e0e4736", "00"));
        assert_ne!(fields[2], "00f067aa0ba902b7");
        assert!(parse(&made).is_some());
    }

    #[test]
    fn what_is_not_valid_begins_a_new_trace() {
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
            assert!(parse(&continued(HeaderValue::from_str(bad).ok().as_ref(), Uuid::now_v7())).is_some());
        }
    }
}
