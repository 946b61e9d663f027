//! The way of a call: from a caller's connection to a supervisor and back.
//!
//! No database and no framework here: the route comes from a table in memory, the connection from a pool, and the supervisor's
//! connection is driven by the very task that serves the caller, so that a call wakes no other task.

mod admin;
mod body;
mod detached;
mod gate;
mod headers;
mod hold;
mod loads;
mod pool;
mod table;
mod upstream;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use ipnet::IpNet;
use sless_backend::{Backend, Endpoint, FunctionRef};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::problem::{Code, Problem};

pub(crate) use admin::{ask_admin, cancel_at};
pub(crate) use body::{Lingering, ResponseBody};
pub(crate) use detached::{Detached, Sent};
pub(crate) use headers::Trigger;
pub(crate) use table::{Route, Table};

use body::CallBody;
use hold::{Held, Tries};
use loads::Loads;
use pool::Pool;
use upstream::{Home, SendError, Upstream, UpstreamBody};

/// Bodies of a known length up to this are read before the call is passed on, so that it can be passed on again if a supervisor
/// refuses it. Larger ones are streamed.
const WHOLE: u64 = 64 << 10;
/// What is said when a call may have been taken by somebody who can't tell any more.
const WENT_AWAY: &str = "the function's supervisor went away during the call";
/// So long somebody else is waited for when all that there were have refused a call.
const REPLACED_WITHIN: Duration = Duration::from_secs(10);

/// While a call runs, its backend hears of it so often. The shortest idle time that makes sense is a few seconds.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Proxy {
    backend: Arc<dyn Backend>,
    table: Arc<Table>,
    pool: Arc<Pool>,
    loads: Arc<Loads>,
    held: Held,
    trusted: Vec<IpNet>,
}

/// What is passed on, and what the supervisor is told about it.
struct Call {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    trailers: bool,
    /// So long it may wait for a supervisor, if the caller has said so.
    patience: Option<Duration>,
}

impl Proxy {
    /// Once `draining` no call is held back for a supervisor to come.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        table: Arc<Table>,
        trusted: Vec<IpNet>,
        draining: CancellationToken,
    ) -> Self {
        let (pool, loads, held) = (Arc::default(), Arc::default(), Held::new(draining));
        Self { backend, table, pool, loads, held, trusted }
    }

    /// Returns once the function has an endpoint; wakes it if it has none.
    pub(crate) async fn until_awake(&self, function: &FunctionRef) -> Result<(), Problem> {
        if self.backend.endpoints(function).is_empty() {
            self.held.until_awake(&*self.backend, function, Instant::now(), None).await?;
        }
        Ok(())
    }

    /// Closes connections that have not been used for a while.
    pub(crate) fn sweep(&self) {
        self.pool.sweep();
    }

    /// Answers `ANY /fn/{ns}/{name}[/{path}]`.
    pub(crate) async fn public(&self, request: Request<Lingering>, peer: IpAddr) -> Response<ResponseBody> {
        let path = request.uri().path();
        let (function, rest) = split(path.strip_prefix("/fn/").unwrap_or_default());
        let Some(route) = self.table.get(function).filter(|route| !route.triggers.is_empty()) else {
            return problem(&Problem::not_found(format!(
                "function with an enabled http trigger at {path:?}"
            )));
        };
        let uri = below(rest, request.uri().query());
        self.through(&route, uri, request, peer).await
    }

    /// The function that the request's host leads to, if an enabled trigger has it.
    pub(crate) fn of_host<B>(&self, request: &Request<B>) -> Option<Arc<Route>> {
        if self.table.has_hosts() { self.table.of_host(&gate::host(request)?) } else { None }
    }

    /// Answers a call that came to a trigger's own host: all of its path is the function's.
    pub(crate) async fn hosted(
        &self,
        route: &Route,
        request: Request<Lingering>,
        peer: IpAddr,
    ) -> Response<ResponseBody> {
        let uri = below(request.uri().path(), request.uri().query());
        self.through(route, uri, request, peer).await
    }

    /// Calls the function if one of the route's triggers lets the request in.
    async fn through(
        &self,
        route: &Route,
        uri: Option<Uri>,
        request: Request<Lingering>,
        peer: IpAddr,
    ) -> Response<ResponseBody> {
        let asked = gate::Asked::of(request.method(), request.headers());
        let gate = match gate::open(&route.triggers, &asked) {
            gate::Opened::Pass(gate) => gate,
            gate::Opened::Preflight(response) => {
                return response.map(|()| ResponseBody::Bytes(Bytes::new().into()));
            }
            gate::Opened::Refused(refusal, gate) => {
                let mut response = problem(&refusal);
                gate.tell(response.headers_mut());
                return response;
            }
        };
        let mut response = self.call(route, uri, request, peer, Trigger::Http).await;
        gate.tell(response.headers_mut());
        response
    }

    /// Calls a function that was found by name for somebody whose token allows it; `path` is what the handler sees.
    pub(crate) async fn invoke(
        &self,
        f: &FunctionRef,
        path: &str,
        mut request: Request<Lingering>,
        peer: IpAddr,
    ) -> Response<ResponseBody> {
        let Some(route) = self.table.get(&f.to_string()) else {
            return problem(&Problem::not_found(format!(
                "function {:?} in namespace {:?}",
                f.name.as_str(),
                f.namespace.as_str()
            )));
        };
        request.headers_mut().remove(http::header::AUTHORIZATION);
        let limit = headers::wait(request.headers());
        let uri = below(path, request.uri().query());
        self.call(&route, uri, request, peer, Trigger::Invoke { limit }).await
    }

    async fn call(
        &self,
        route: &Route,
        uri: Option<Uri>,
        request: Request<Lingering>,
        peer: IpAddr,
        trigger: Trigger,
    ) -> Response<ResponseBody> {
        // Its answer would make a tunnel of the caller's connection and of the supervisor's.
        if request.method() == Method::CONNECT {
            return problem(&Problem::new(Code::MethodNotAllowed, "no function can be called with CONNECT"));
        }
        let Some(uri) = uri else { return problem(&Problem::new(Code::Invalid, "the path is not valid")) };
        let (mut parts, body) = request.into_parts();
        let patience = match trigger {
            Trigger::Invoke { limit: Some(limit) } => Some(Duration::from_secs(limit.into())),
            _ => None,
        };
        let forwarded = headers::Forwarded { peer, trusted: &self.trusted, trigger };
        let token = self.backend.proxy_token(&route.function);
        let trailers = headers::to_supervisor(&mut parts.headers, &forwarded, &token);
        let call = Call { method: parts.method, uri, headers: parts.headers, trailers, patience };
        let body = match body.size_hint().exact() {
            Some(0) => CallBody::whole(Bytes::new()),
            Some(length) if length <= WHOLE => match body::collect(body).await {
                Ok(whole) => CallBody::whole(whole),
                Err(reason) => {
                    return problem(&Problem::new(Code::Invalid, format!("the request's body: {reason}")));
                }
            },
            _ => CallBody::streamed(body),
        };
        self.pass_on(&route.function, call, body, None).await.unwrap_or_else(|refusal| problem(&refusal))
    }

    /// Waits for `answer`. A backend that ends what nobody calls hears all the while, and at the end, that somebody does.
    async fn calling<T>(&self, function: &FunctionRef, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        let mut long = false;
        loop {
            if let Ok(answer) = tokio::time::timeout(TOLD_EVERY, answer.as_mut()).await {
                if long {
                    self.backend.called(function);
                }
                return answer;
            }
            long = true;
            self.backend.called(function);
        }
    }

    /// Offers the call to one endpoint after another, of those that answer for the function or of `these`, until one takes it.
    async fn pass_on(
        &self,
        function: &FunctionRef,
        call: Call,
        body: CallBody,
        these: Option<&Arc<[Endpoint]>>,
    ) -> Result<Response<ResponseBody>, Problem> {
        self.backend.called(function);
        let mut body = Some(body);
        let mut tries = Tries::default();
        loop {
            // Asked anew each time: what refused the last time may have been replaced.
            let endpoints = these.cloned().unwrap_or_else(|| self.backend.endpoints(function));
            if endpoints.is_empty() {
                if these.is_some() {
                    return Err(hold::not_ready(function));
                }
                let patience = call.patience;
                self.held.until_awake(&*self.backend, function, tries.began, patience).await?;
                continue;
            }
            let Some((index, load)) = self.loads.least(&endpoints, &tries.refused) else {
                if tries.begin_anew().await || self.expects_others(function, these, &tries).await {
                    continue;
                }
                break;
            };
            let Some(endpoint) = endpoints.get(index) else { break };
            let mut upstream = match self.pool.connect(endpoint).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    tries.refused_by(endpoint, error.to_string());
                    continue;
                }
            };
            let Some(offered) = body.take() else { break };
            body = offered.again();
            let fault = offered.fault();
            let mut request = Request::new(offered);
            *request.method_mut() = call.method.clone();
            *request.uri_mut() = call.uri.clone();
            *request.headers_mut() = call.headers.clone();
            match self.calling(function, upstream.send(request)).await {
                Ok(response)
                    if rejected(&response)
                        && body.is_some()
                        && (!tries.is_last() || self.expects_others(function, these, &tries).await) =>
                {
                    tries.refused_by(endpoint, "the supervisor takes no calls".to_owned());
                }
                Ok(response) => {
                    let pool = self.pool.clone();
                    let home = Home { pool, streamed: body.is_none(), index, lease: endpoints, load };
                    return Ok(answer(response, upstream, home, call.trailers));
                }
                // Nothing of it has left this process: the connection was closed while it was idle.
                Err(SendError::NotSent(request)) => body = Some(request.into_body()),
                Err(SendError::Broken(error)) if fault.is_some_and(|f| f.is_the_callers()) => {
                    return Err(Problem::new(
                        Code::Invalid,
                        format!("the request's body broke off: {error}"),
                    ));
                }
                Err(SendError::Broken(error)) => {
                    tracing::warn!(function = %function, error, "the supervisor went away during a call");
                    return Err(Problem::new(Code::BadGateway, WENT_AWAY));
                }
            }
        }
        let error = tries.last.as_deref().unwrap_or("no connection");
        tracing::warn!(function = %function, error, "nobody took a call");
        Err(Problem::new(Code::BadGateway, "the function's supervisor can't be reached"))
    }

    /// Whether those that have refused a call will be replaced, so that it is worth while to go on.
    async fn expects_others(
        &self,
        function: &FunctionRef,
        these: Option<&Arc<[Endpoint]>>,
        tries: &Tries,
    ) -> bool {
        these.is_none()
            && tries.began.elapsed() < REPLACED_WITHIN
            && self.backend.wake(function).await.is_ok_and(|expected| expected)
    }
}

fn answer(
    response: Response<hyper::body::Incoming>,
    upstream: Box<Upstream>,
    home: Home,
    trailers: bool,
) -> Response<ResponseBody> {
    let (mut parts, incoming) = response.into_parts();
    headers::to_caller(&mut parts.headers, trailers);
    parts.version = http::Version::HTTP_11;
    Response::from_parts(parts, ResponseBody::Upstream(UpstreamBody::new(incoming, upstream, home)))
}

/// Not taken, and not begun: the only answer after which a call may go to somebody else. A call that the queue has no room for
/// (429) or whose request is at fault is refused for good.
fn rejected(response: &Response<hyper::body::Incoming>) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE
        && response
            .headers()
            .get("x-sless-status")
            .is_some_and(|status| status == HeaderValue::from_static("rejected"))
}

/// `{ns}/{name}` and what follows it.
fn split(tail: &str) -> (&str, &str) {
    let slashes = tail.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(at, _)| at);
    tail.split_at(slashes.take(2).nth(1).unwrap_or(tail.len()))
}

/// Path and query as they were sent, nothing decoded.
fn below(path: &str, query: Option<&str>) -> Option<Uri> {
    let path = if path.is_empty() { "/" } else { path };
    let text = match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    PathAndQuery::from_maybe_shared(Bytes::from(text)).ok().map(Uri::from)
}

fn problem(problem: &Problem) -> Response<ResponseBody> {
    problem.response(|bytes| ResponseBody::Bytes(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_cut_where_it_was_sent() {
        assert_eq!(split("ns/name"), ("ns/name", ""));
        assert_eq!(split("ns/name/"), ("ns/name", "/"));
        assert_eq!(split("ns/name//a%2Fb/"), ("ns/name", "//a%2Fb/"));
        assert_eq!(split("ns"), ("ns", ""));
        assert_eq!(below("", Some("x=1&x=%20")).unwrap().to_string(), "/?x=1&x=%20");
        assert_eq!(below("//a%2Fb/", None).unwrap().to_string(), "//a%2Fb/");
    }
}
