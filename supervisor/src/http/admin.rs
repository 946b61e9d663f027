//! The admin port: `/metrics`, `/health`, `/ready`, and `DELETE /invocations/{id}`.

use std::convert::Infallible;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use serde::Serialize;

use super::Peer;
use super::answer::{self, ResponseBody};
use super::platform::Platform;
use crate::config::Config;
use crate::failure::Failure;
use crate::pool::{Pool, Readiness};

#[derive(Debug)]
pub(crate) struct Admin {
    pool: Rc<Pool>,
    platform: Platform,
}

#[derive(Serialize)]
struct Ready<'a> {
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ReadyError<'a>>,
}

/// As in a record.
#[derive(Serialize)]
struct ReadyError<'a> {
    r#type: &'a str,
    message: String,
    traceback: Option<&'a str>,
}

impl Admin {
    pub(crate) fn new(config: &Config, pool: Rc<Pool>) -> Self {
        Self { pool, platform: Platform::new(config.proxy_token_file.clone()) }
    }

    pub(crate) async fn serve(
        self: Rc<Self>,
        request: Request<Incoming>,
        peer: Peer,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let trusted = self.platform.is_it(request.headers(), &peer);
        if matches!(peer, Peer::Stranger) && !trusted {
            return Ok(answer::forbidden());
        }
        let path = request.uri().path();
        let reading = matches!(*request.method(), Method::GET | Method::HEAD);
        Ok(match path {
            "/health" if reading => answer::json(200, br#"{"status":"ok"}"#.to_vec()),
            "/ready" if reading => self.ready(),
            "/metrics" if reading => self.metrics(),
            "/health" | "/ready" | "/metrics" => problem(405, "MethodNotAllowed", "this path is for GET"),
            _ => match path.strip_prefix("/invocations/") {
                Some(_) if *request.method() != Method::DELETE => {
                    problem(405, "MethodNotAllowed", "an invocation can only be deleted, which cancels it")
                }
                Some(_) if !trusted => problem(403, "Forbidden", "cancelling needs the proxy token"),
                Some(id) if self.pool.cancel(id) => answer::json(202, br#"{"status":"cancelled"}"#.to_vec()),
                Some(_) => problem(404, "NotFound", "no such invocation is running or waiting here"),
                None => {
                    problem(404, "NotFound", "this port has /metrics, /health, /ready and /invocations/{id}")
                }
            },
        })
    }

    fn ready(&self) -> Response<ResponseBody> {
        let readiness = self.pool.readiness();
        let (code, status) = match &readiness {
            Readiness::Ready => (200, "ready"),
            Readiness::Starting => (503, "starting"),
            Readiness::InitFailed(_) => (503, "init_failed"),
            Readiness::Draining => (503, "draining"),
        };
        let error = match &readiness {
            Readiness::InitFailed(raised) => {
                let failure =
                    Failure::InitFailed { kind: raised.kind.clone(), message: raised.message.clone() };
                let message = failure.to_string();
                Some(ReadyError { r#type: "InitFailed", message, traceback: raised.traceback.as_deref() })
            }
            _ => None,
        };
        answer::json(code, serde_json::to_vec(&Ready { status, error }).unwrap_or_default())
    }

    fn metrics(&self) -> Response<ResponseBody> {
        self.pool.observe();
        let mut response = Response::new(ResponseBody::whole(self.pool.metrics.render().into()));
        let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}

fn problem(status: u16, kind: &'static str, message: &'static str) -> Response<ResponseBody> {
    #[derive(Serialize)]
    struct Body {
        error: Inner,
    }
    #[derive(Serialize)]
    struct Inner {
        r#type: &'static str,
        message: &'static str,
    }
    let body = Body { error: Inner { r#type: kind, message } };
    answer::json(status, serde_json::to_vec(&body).unwrap_or_default())
}
