//! What is taken from, and added to, the headers of a call and its answer.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use ipnet::IpNet;
use sless_backend::Secret;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const TOKEN: HeaderName = HeaderName::from_static("x-sless-proxy-token");
const TRIGGER: HeaderName = HeaderName::from_static("x-sless-trigger");
const CLIENT_IP: HeaderName = HeaderName::from_static("x-sless-client-ip");
const TIMEOUT_MS: HeaderName = HeaderName::from_static("x-sless-timeout-ms");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// What made the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    Http,
    Invoke {
        /// The caller's own limit in seconds.
        limit: Option<u32>,
    },
}

/// Whom a call comes from.
#[derive(Debug)]
pub(super) struct Forwarded<'a> {
    pub(super) peer: IpAddr,
    pub(super) trusted: &'a [IpNet],
    pub(super) trigger: Trigger,
}

/// Removes what concerns one connection only, and what `Connection` names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
        let names = lines.iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
        for name in names {
            // Those that say how long the body is are not anybody's to switch off.
            if let Ok(name) = name.trim().parse::<HeaderName>()
                && !matches!(name, CONTENT_LENGTH | TRANSFER_ENCODING | TE | HOST)
            {
                headers.remove(name);
            }
        }
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
}

/// The seconds of `Prefer: wait=N` (RFC 7240). It can only shorten a limit; what is no positive number is ignored, as a preference is.
pub(super) fn wait(headers: &HeaderMap) -> Option<u32> {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let mut all = lines.flat_map(|line| line.split(',')).filter_map(|one| {
        let (name, value) = one.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"'))
    });
    // The first one of several counts.
    all.next()?.parse().ok().filter(|seconds| *seconds > 0)
}

/// The value of a token; an empty one if it holds what no header can.
pub(super) fn secret(token: &Secret) -> HeaderValue {
    let mut value = HeaderValue::from_str(token.reveal()).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn address(address: IpAddr) -> HeaderValue {
    // The text of an address is always a valid value.
    HeaderValue::from_str(&address.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn is_trusted(trusted: &[IpNet], address: IpAddr) -> bool {
    trusted.iter().any(|net| net.contains(&address))
}

/// The caller's address, and the list of those that it came through.
fn client(headers: &HeaderMap, forwarded: &Forwarded<'_>) -> (IpAddr, HeaderValue) {
    let peer = forwarded.peer;
    if !is_trusted(forwarded.trusted, peer) {
        return (peer, address(peer));
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().filter_map(|line| line.to_str().ok());
    let list: Vec<&str> =
        lines.flat_map(|line| line.split(',')).map(str::trim).filter(|part| !part.is_empty()).collect();
    let mut client = peer;
    for part in list.iter().rev() {
        // What is no address was written by nobody whom we trust: the last one that is counts.
        let Ok(one) = part.parse() else { break };
        client = one;
        if !is_trusted(forwarded.trusted, one) {
            break;
        }
    }
    let grown = list.into_iter().map(str::to_owned).chain([peer.to_string()]).collect::<Vec<_>>().join(", ");
    (client, HeaderValue::from_str(&grown).unwrap_or_else(|_| address(peer)))
}

/// Makes a caller's headers those that the supervisor gets. Returns whether the caller takes trailers.
pub(super) fn to_supervisor(headers: &mut HeaderMap, forwarded: &Forwarded<'_>, token: &Secret) -> bool {
    let takes = |value: &HeaderValue| {
        value.to_str().is_ok_and(|v| v.split(',').any(|part| part.trim().eq_ignore_ascii_case("trailers")))
    };
    let trailers = headers.get_all(TE).iter().any(takes);
    remove_hop_by_hop(headers);
    headers.remove(EXPECT);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        // TE concerns one connection, so it is named there.
        headers.insert(CONNECTION, HeaderValue::from_static("TE"));
    } else {
        headers.remove(TE);
    }
    let spoofed: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-sless-")).cloned().collect();
    for name in spoofed {
        headers.remove(name);
    }
    let (client, list) = client(headers, forwarded);
    headers.insert(X_FORWARDED_FOR, list);
    if !is_trusted(forwarded.trusted, forwarded.peer) {
        headers.remove(FORWARDED);
        headers.remove(X_FORWARDED_PROTO);
        headers.remove(X_FORWARDED_HOST);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
    headers.insert(TOKEN, secret(token));
    headers.insert(CLIENT_IP, address(client));
    headers.insert(
        TRIGGER,
        HeaderValue::from_static(match forwarded.trigger {
            Trigger::Http => "http",
            Trigger::Invoke { .. } => "invoke",
        }),
    );
    if let Trigger::Invoke { limit: Some(seconds) } = forwarded.trigger {
        headers.insert(TIMEOUT_MS, HeaderValue::from(u64::from(seconds) * 1000));
    }
    trailers
}

/// Makes a supervisor's headers those that the caller gets.
pub(super) fn to_caller(headers: &mut HeaderMap, trailers: bool) {
    remove_hop_by_hop(headers);
    if !trailers {
        headers.remove(TRAILER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(lines: &[(&'static str, &str)], trusted: &[IpNet]) -> (HeaderMap, bool) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        let forwarded = Forwarded { peer: "10.0.0.9".parse().unwrap(), trusted, trigger: Trigger::Http };
        let trailers = to_supervisor(&mut headers, &forwarded, &Secret::new("t"));
        (headers, trailers)
    }

    #[test]
    fn what_concerns_one_connection_or_is_ours_alone_is_not_passed_on() {
        let (headers, trailers) = sent(
            &[
                ("connection", "close, X-Private, content-length"),
                ("x-private", "1"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "close"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("content-length", "5"),
                ("expect", "100-continue"),
                ("upgrade", "h2c"),
                ("x-sless-trigger", "cron"),
                ("x-sless-anything", "x"),
                ("x-y", "kept"),
                ("host", "example.org"),
            ],
            &[],
        );
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let ours = [
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-sless-client-ip",
            "x-sless-proxy-token",
            "x-sless-trigger",
            "x-y",
        ];
        assert_eq!(names, [&["connection", "content-length", "host", "te"][..], &ours[..]].concat());
        assert!(trailers && headers["x-sless-trigger"] == "http" && headers["connection"] == "TE");
    }

    #[test]
    fn a_caller_can_not_say_where_it_comes_from_unless_it_is_trusted() {
        let lines = [
            ("x-forwarded-for", "6.6.6.6, 7.7.7.7"),
            ("x-forwarded-for", "10.0.0.8"),
            ("x-forwarded-proto", "https"),
        ];
        let (headers, _) = sent(&lines, &[]);
        assert_eq!(
            (&headers[CLIENT_IP], &headers[X_FORWARDED_FOR], &headers[X_FORWARDED_PROTO]),
            (&"10.0.0.9".parse().unwrap(), &"10.0.0.9".parse().unwrap(), &"http".parse().unwrap())
        );
        let (headers, _) = sent(&lines, &["10.0.0.0/24".parse().unwrap()]);
        assert_eq!(headers[CLIENT_IP], "7.7.7.7");
        assert_eq!(headers[X_FORWARDED_FOR], "6.6.6.6, 7.7.7.7, 10.0.0.8, 10.0.0.9");
        assert_eq!(headers[X_FORWARDED_PROTO], "https");
    }

    #[test]
    fn a_caller_may_want_to_wait_for_less() {
        for (value, seconds) in [
            ("wait=5", Some(5)),
            ("respond-async, Wait = \"7\"; x=y, wait=9", Some(7)),
            ("wait=0", None),
            ("wait=soon, wait=3", None),
            ("wait", None),
            ("handling=lenient", None),
        ] {
            let headers = HeaderMap::from_iter([(PREFER, value.parse().unwrap())]);
            assert_eq!(wait(&headers), seconds, "{value}");
        }
    }

    #[test]
    fn an_answer_keeps_all_but_its_hop_by_hop_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive"),
            ("trailer", "x-sless-status"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        to_caller(&mut headers, true);
        assert!(
            headers.contains_key("trailer")
                && headers.get_all("set-cookie").iter().count() == 2
                && headers.len() == 3
        );
        to_caller(&mut headers, false);
        assert!(!headers.contains_key("trailer"));
    }
}
