//! The id of a request and its line in the log.

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use uuid::Uuid;

use crate::auth::Caller;
use crate::metrics::Part;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over.
const MAX_ID: usize = 128;

/// What is known of a request before it is answered.
#[derive(Debug)]
pub(super) struct Asked {
    method: Method,
    /// Without the query, which may hold what is nobody's business.
    path: String,
    peer: IpAddr,
    /// The caller's own, if it is one that can be taken over.
    id: Option<HeaderValue>,
}

impl Asked {
    pub(super) fn new(method: &Method, path: &str, peer: IpAddr, headers: &HeaderMap) -> Self {
        let id = headers.get(REQUEST_ID).filter(|id| is_plain(id)).cloned();
        Self { method: method.clone(), path: path.to_owned(), peer, id }
    }

    /// Tells the caller its request's id, and notes the request in the log. A function's answer stays as it is: it has the id of its
    /// invocation, and its record says more than a line could, so that such a line is written for who looks closely alone.
    pub(super) fn answered<B>(self, part: Part, response: &mut Response<B>, took: Duration) {
        let status = response.status().as_u16();
        // Whole microseconds: a sum of binary fractions would be shown with all its digits.
        let duration_ms = (took.as_secs_f64() * 1e6).round() / 1e3;
        let Self { method, path, peer, id } = self;
        match part {
            Part::Proxy => {
                let invocation =
                    response.headers().get("x-sless-invocation-id").and_then(|v| v.to_str().ok());
                tracing::debug!(%method, path, status, duration_ms, %peer, invocation, "call");
            }
            Part::Api => {
                let subject = response.extensions().get::<Caller>().map(|caller| caller.subject.as_str());
                let id = id.unwrap_or_else(fresh);
                let request_id = id.to_str().unwrap_or_default();
                if path.starts_with("/v1/") {
                    tracing::info!(%method, path, status, duration_ms, %peer, subject, request_id, "request");
                } else {
                    // Probes and scrapes, every few seconds.
                    tracing::debug!(%method, path, status, duration_ms, %peer, request_id, "request");
                }
                response.headers_mut().insert(REQUEST_ID, id);
            }
        }
    }
}

fn is_plain(id: &HeaderValue) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(plain)
}

fn fresh() -> HeaderValue {
    let text = Uuid::now_v7().to_string();
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text))
        .unwrap_or_else(|_| HeaderValue::from_static("none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(given: &str) -> String {
        let headers = HeaderMap::from_iter([(REQUEST_ID, given.parse().unwrap())]);
        let asked = Asked::new(&Method::GET, "/v1/whoami", [127, 0, 0, 1].into(), &headers);
        let mut response = Response::new(());
        asked.answered(Part::Api, &mut response, Duration::ZERO);
        response.headers()[REQUEST_ID].to_str().unwrap().to_owned()
    }

    #[test]
    fn an_id_that_could_forge_a_line_is_replaced() {
        assert_eq!(id("0193-a.b_c:1"), "0193-a.b_c:1");
        for odd in ["", "a b", "a\tb", "\"", &"x".repeat(129)] {
            assert_eq!(id(odd).parse::<Uuid>().unwrap().get_version_num(), 7, "{odd:?}");
        }
    }

    #[test]
    fn the_answer_of_a_function_stays_as_it_is() {
        let asked = Asked::new(&Method::GET, "/fn/a/b", [127, 0, 0, 1].into(), &HeaderMap::new());
        let mut response = Response::new(());
        asked.answered(Part::Proxy, &mut response, Duration::ZERO);
        assert!(response.headers().is_empty());
    }
}
