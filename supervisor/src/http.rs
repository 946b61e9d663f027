//! The front: from HTTP requests to calls and back.

pub(crate) mod admin;
mod answer;
mod body;
mod listener;
mod platform;
mod trace;

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;

use crate::call;
use crate::config::Config;
use crate::failure::Failure;
use crate::intake;
use crate::pool::Pool;
use answer::{Labels, ResponseBody};
pub(crate) use listener::{Connections, Peer, accept, bind};
use platform::Platform;

/// Serves invocations and `/health`.
#[derive(Debug)]
pub(crate) struct Front {
    config: Rc<Config>,
    pool: Rc<Pool>,
    platform: Platform,
}

impl Front {
    pub(crate) fn new(config: Rc<Config>, pool: Rc<Pool>) -> Self {
        let platform = Platform::new(config.proxy_token_file.clone());
        Self { config, pool, platform }
    }

    pub(crate) async fn serve(
        self: Rc<Self>,
        request: Request<Incoming>,
        peer: Peer,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let trusted = self.platform.is_it(request.headers(), &peer);
        if !trusted {
            if matches!(peer, Peer::Stranger) {
                return Ok(answer::forbidden());
            }
            if request.uri().path() == "/health" && matches!(*request.method(), Method::GET | Method::HEAD) {
                return Ok(answer::json(200, br#"{"status":"ok"}"#.to_vec()));
            }
        }
        let claims = platform::Claims::of(request.headers(), trusted);
        let mut labels = Labels::new(&claims, request.headers());
        labels.trailers = answer::accepts_trailers(request.headers());
        let (parts, incoming) = request.into_parts();
        let body = match body::read(incoming, &parts.headers, self.config.max_request_bytes).await {
            Ok(body) => body,
            Err(failure) => {
                self.pool.metrics.rejected(&claims.trigger);
                return Ok(labels.failed(&failure));
            }
        };
        let event = match intake::event_kind(&parts.headers, &body) {
            Ok(event) => event,
            Err(reason) => {
                self.pool.metrics.rejected(&claims.trigger);
                return Ok(labels.failed(&Failure::InvalidJson { reason }));
            }
        };
        let limit = claims.timeout.map_or(self.config.timeout, |t| t.min(self.config.timeout));
        let path = parts.uri.path();
        let request = call::Request {
            id: labels.id.clone(),
            trigger: claims.trigger,
            attempt: claims.attempt,
            limit,
            method: parts.method.as_str().to_owned(),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            raw_query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: platform::without_ours(parts.headers),
            client_ip: claims.client_ip.unwrap_or_else(|| peer.ip()),
            source: claims.source,
            traceparent: labels.traceparent.clone(),
            event,
            body,
        };
        let answer = self.pool.submit(request).await;
        Ok(match answer {
            Ok(answer) => labels.answer(answer),
            // Only when the supervisor is on its way out at once.
            Err(_) => labels.failed(&Failure::Draining),
        })
    }
}

/// A request's head that is not complete by then is given up.
pub(crate) const HEAD_LIMIT: Duration = Duration::from_secs(30);
