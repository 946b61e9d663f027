//! What the http triggers of a function say about a request: whether it may come in, and what a browser is told about the answer.
//!
//! Of several triggers the first that takes the method counts, and among those the first whose `cors` allows the page's origin.

use std::collections::BTreeSet;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ALLOW, HOST,
    HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Request, Response, StatusCode};
use sless_core::{Cors, HttpTrigger};

use crate::problem::{Code, Problem};

/// What a request says that matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    method: Method,
    origin: Option<HeaderValue>,
    /// A browser's question, before it sends what it is about.
    preflight: Option<Preflight>,
}

#[derive(Debug, PartialEq, Eq)]
struct Preflight {
    method: String,
    headers: Option<HeaderValue>,
}

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Opened<'a> {
    Pass(Gate<'a>),
    /// The whole answer.
    Preflight(Response<()>),
    Refused(Problem, Gate<'a>),
}

/// What is added to an answer.
#[derive(Debug)]
pub(super) struct Gate<'a> {
    cors: Option<&'a Cors>,
    origin: Option<HeaderValue>,
}

impl Asked {
    pub(super) fn of(method: &Method, headers: &HeaderMap) -> Self {
        let origin = headers.get(ORIGIN).cloned();
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_METHOD).and_then(|m| m.to_str().ok());
        let preflight = match (method, &origin, wanted) {
            (&Method::OPTIONS, Some(_), Some(wanted)) => Some(Preflight {
                method: wanted.to_owned(),
                headers: headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|list| is_list(list)).cloned(),
            }),
            _ => None,
        };
        Self { method: method.clone(), origin, preflight }
    }

    fn allowed_by(&self, cors: &Cors) -> bool {
        self.origin.as_ref().and_then(|o| o.to_str().ok()).is_some_and(|origin| cors.allows(origin))
    }
}

/// Of header names, as it will be sent back.
fn is_list(value: &HeaderValue) -> bool {
    value.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, ".contains(b))
}

pub(super) fn open<'a>(triggers: &'a [HttpTrigger], asked: &Asked) -> Opened<'a> {
    if let Some(preflight) = &asked.preflight
        && let Some((trigger, cors)) = answering(triggers, asked, preflight)
    {
        return Opened::Preflight(answer(trigger, cors, asked, preflight));
    }
    let gate = |cors| Gate { cors, origin: asked.origin.clone() };
    let method = asked.method.as_str();
    let taking = || triggers.iter().filter(|trigger| trigger.takes(method));
    if taking().next().is_some() {
        return Opened::Pass(gate(telling(taking(), asked)));
    }
    let methods: BTreeSet<&str> = triggers.iter().flat_map(|t| &t.methods).map(String::as_str).collect();
    let list = methods.into_iter().collect::<Vec<_>>().join(", ");
    let says = format!("the function is not to be called with {method}, but with {list}");
    let mut problem = Problem::new(Code::MethodNotAllowed, says);
    if let Ok(list) = HeaderValue::from_str(&list) {
        problem.headers.push((ALLOW, list));
    }
    Opened::Refused(problem, gate(telling(triggers.iter(), asked)))
}

/// The block that a browser hears of: one that allows the page, else any, which says at least that the origin matters.
fn telling<'a>(triggers: impl Iterator<Item = &'a HttpTrigger>, asked: &Asked) -> Option<&'a Cors> {
    let all: Vec<&Cors> = triggers.filter_map(|trigger| trigger.cors.as_ref()).collect();
    all.iter().copied().find(|cors| asked.allowed_by(cors)).or_else(|| all.first().copied())
}

/// Who answers a browser's question; nobody does if there is no `cors` at all: then it is a call like any other.
fn answering<'a>(
    triggers: &'a [HttpTrigger],
    asked: &Asked,
    preflight: &Preflight,
) -> Option<(&'a HttpTrigger, &'a Cors)> {
    let all = || triggers.iter().filter_map(|trigger| Some((trigger, trigger.cors.as_ref()?)));
    all()
        .find(|(trigger, cors)| trigger.takes(&preflight.method) && asked.allowed_by(cors))
        .or_else(|| all().find(|(_, cors)| asked.allowed_by(cors)))
        .or_else(|| all().next())
}

fn answer(trigger: &HttpTrigger, cors: &Cors, asked: &Asked, preflight: &Preflight) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    for name in [ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_REQUEST_HEADERS] {
        headers.append(VARY, HeaderValue::from(name));
    }
    if !asked.allowed_by(cors) {
        return response;
    }
    Gate { cors: Some(cors), origin: asked.origin.clone() }.allow(headers);
    let methods = match cors.named_methods() {
        Some(named) => named.iter().filter(|one| trigger.takes(one)).map(String::as_str).collect(),
        None if trigger.methods.is_empty() => vec![preflight.method.as_str()],
        None => trigger.methods.iter().map(String::as_str).collect(),
    };
    let mut put = |name: HeaderName, text: String| {
        if let Some(value) = HeaderValue::from_str(&text).ok().filter(|_| !text.is_empty()) {
            headers.insert(name, value);
        }
    };
    put(ACCESS_CONTROL_ALLOW_METHODS, methods.join(", "));
    put(ACCESS_CONTROL_MAX_AGE, cors.max_age_sec.to_string());
    match (cors.named_headers(), &preflight.headers) {
        (Some(named), _) => put(ACCESS_CONTROL_ALLOW_HEADERS, named.join(", ")),
        (None, Some(asked)) => drop(headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone())),
        (None, None) => {}
    }
    response
}

impl Gate<'_> {
    /// Tells a browser who may read the answer. Without a `cors` block, what the function says about it stays.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        let Some(cors) = self.cors else { return };
        if !cors.is_for_all() {
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
        self.allow(headers);
    }

    fn allow(&self, headers: &mut HeaderMap) {
        let (Some(cors), Some(origin)) = (self.cors, &self.origin) else { return };
        if cors.is_for_all() {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        } else if origin.to_str().is_ok_and(|text| cors.allows(text)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
}

/// The host that a request is for, without its port, in lower case: the address's if it has one (RFC 9112, 3.2.2), else that of the only
/// `Host`.
pub(super) fn host<B>(request: &Request<B>) -> Option<String> {
    let mut lines = request.headers().get_all(HOST).iter();
    let text = match (request.uri().host(), lines.next(), lines.next()) {
        (Some(host), _, _) => host,
        (None, Some(line), None) => line.to_str().ok()?,
        _ => return None,
    };
    let host = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => text,
    };
    Some(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn triggers(all: Value) -> Vec<HttpTrigger> {
        let read = |one: &Value| HttpTrigger::from_object(one.as_object().unwrap()).unwrap();
        all.as_array().unwrap().iter().map(read).collect()
    }

    fn asked(method: &str, lines: &[(&'static str, &str)]) -> Asked {
        let headers =
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        Asked::of(&method.parse().unwrap(), &HeaderMap::from_iter(headers))
    }

    /// The headers of a preflight, or of an empty answer that went through, as `name: value`.
    fn told(triggers: &[HttpTrigger], asked: &Asked) -> (&'static str, Vec<String>) {
        let (what, headers) = match open(triggers, asked) {
            Opened::Preflight(response) => ("preflight", response.into_parts().0.headers),
            Opened::Pass(gate) => {
                let mut headers = HeaderMap::new();
                gate.tell(&mut headers);
                ("pass", headers)
            }
            Opened::Refused(problem, gate) => {
                let mut headers = HeaderMap::from_iter(problem.headers);
                gate.tell(&mut headers);
                ("refused", headers)
            }
        };
        let mut lines: Vec<_> =
            headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        lines.sort();
        (what, lines)
    }

    const PAGE: (&str, &str) = ("origin", "https://a.example");

    #[test]
    fn a_method_that_no_trigger_takes_is_refused_with_those_that_are_taken() {
        let two = triggers(json!([{"methods": ["POST", "PUT"]}, {"methods": ["GET"]}]));
        assert_eq!(told(&two, &asked("PUT", &[PAGE])), ("pass", vec![]));
        assert_eq!(told(&two, &asked("DELETE", &[])), ("refused", vec!["allow: GET, POST, PUT".to_owned()]));
        let any = triggers(json!([{"methods": ["POST"]}, {}]));
        assert_eq!(told(&any, &asked("DELETE", &[])).0, "pass");
        let preflight = asked("OPTIONS", &[PAGE, ("access-control-request-method", "POST")]);
        assert_eq!(told(&any, &preflight), ("pass", vec![]), "without cors it is a call like any other");
        assert_eq!(told(&two, &preflight).0, "refused");
    }

    #[test]
    fn a_preflight_is_answered_for_the_origins_methods_and_headers_that_are_named() {
        let one = triggers(
            json!([{"methods": ["POST"], "cors": {"origins": ["https://a.example"], "headers": ["content-type", "x-a"], "max_age_sec": 5}}]),
        );
        let vary = ["origin", "access-control-request-method", "access-control-request-headers"];
        let vary = vary.map(|name| format!("vary: {name}"));
        let question = [("access-control-request-method", "POST"), ("access-control-request-headers", "x-b")];
        let (what, lines) = told(&one, &asked("OPTIONS", &[&[PAGE][..], &question].concat()));
        let mut expected = vec![
            "access-control-allow-headers: content-type, x-a".to_owned(),
            "access-control-allow-methods: POST".to_owned(),
            "access-control-allow-origin: https://a.example".to_owned(),
            "access-control-max-age: 5".to_owned(),
        ];
        expected.extend(vary.clone());
        expected.sort();
        assert_eq!((what, lines), ("preflight", expected));
        let (what, mut lines) =
            told(&one, &asked("OPTIONS", &[&[("origin", "https://b.example")][..], &question].concat()));
        let mut expected = vary.to_vec();
        lines.sort();
        expected.sort();
        assert_eq!((what, lines), ("preflight", expected), "nothing is allowed to others");
        assert_eq!(told(&one, &asked("OPTIONS", &[PAGE])).0, "refused", "no question: a call with OPTIONS");
        let all = triggers(json!([{"cors": {"origins": ["*"]}}]));
        let (_, lines) = told(&all, &asked("OPTIONS", &[&[PAGE][..], &question].concat()));
        for line in [
            "access-control-allow-origin: *",
            "access-control-allow-methods: POST",
            "access-control-allow-headers: x-b",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line}: {lines:?}");
        }
    }

    #[test]
    fn an_answer_tells_the_pages_that_may_read_it() {
        let named = triggers(json!([{"methods": ["GET"], "cors": {"origins": ["https://a.example"]}}]));
        let vary = "vary: origin".to_owned();
        let allowed = "access-control-allow-origin: https://a.example".to_owned();
        assert_eq!(told(&named, &asked("GET", &[PAGE])), ("pass", vec![allowed.clone(), vary.clone()]));
        assert_eq!(
            told(&named, &asked("GET", &[("origin", "https://b.example")])),
            ("pass", vec![vary.clone()])
        );
        assert_eq!(told(&named, &asked("GET", &[])), ("pass", vec![vary.clone()]), "it depends on who asks");
        let refused = vec![allowed, "allow: GET".to_owned(), vary];
        assert_eq!(told(&named, &asked("PUT", &[PAGE])), ("refused", refused), "a page may read why");
        let all = triggers(json!([{"cors": {"origins": ["*"]}}]));
        assert_eq!(
            told(&all, &asked("GET", &[PAGE])),
            ("pass", vec!["access-control-allow-origin: *".to_owned()])
        );
        assert_eq!(told(&all, &asked("GET", &[])), ("pass", vec![]));
    }

    #[test]
    fn the_host_is_that_of_the_address_or_of_the_only_line() {
        let of = |uri: &str, lines: &[&str]| {
            let request = lines.iter().fold(Request::builder().uri(uri), |r, line| r.header("host", *line));
            host(&request.body(()).unwrap())
        };
        for line in ["shop.example.org", "Shop.Example.org:8080", "shop.example.org."] {
            assert_eq!(of("/", &[line]).as_deref(), Some("shop.example.org"));
        }
        assert_eq!(
            of("http://shop.example.org:1/x", &["other.example"]).as_deref(),
            Some("shop.example.org")
        );
        assert_eq!(of("/", &[]), None);
        assert_eq!(of("/", &["shop.example.org", "other.example"]), None);
    }
}
