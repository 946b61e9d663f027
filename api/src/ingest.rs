//! Records on their way in: batches of events from supervisors, and logs of builds from whoever builds, into the store.
//!
//! A batch is answered with 2xx only when the transaction that holds it has been committed, and then for good. What can't be read
//! is counted as refused and keeps nothing else back.

mod builds;
mod parse;
mod writer;

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use sless_backend::{Backend, FunctionRef, Identity};

use crate::auth::bearer;
use crate::problem::{Code, Problem, chain};
use crate::store::Records;

pub(crate) use parse::{Parsed, parse};
pub(crate) use writer::{Writer, WriterTask};

/// Largest batch as it comes; supervisors send about 256 KiB.
const MAX_SENT: usize = 16 << 20;
/// Largest batch when it is unpacked.
const MAX_UNPACKED: u64 = 64 << 20;
/// Batches above this are read on a thread where that may take a while.
const LARGE: usize = 64 << 10;

/// Answers `POST /internal/v1/reports` and `POST /internal/v1/builds/{ns}/{name}/{build}`.
#[derive(Debug)]
pub(crate) struct Ingest {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Arc<dyn Records>,
    pub(crate) writer: Writer,
    pub(crate) metrics: Arc<crate::metrics::Metrics>,
}

impl Ingest {
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        self.take(request).await.unwrap_or_else(|problem| problem.response(Full::new))
    }

    async fn take(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Problem> {
        let path = request.uri().path();
        let build = path.strip_prefix("/internal/v1/builds/").map(builds::Build::parse);
        if build.is_none() && path != "/internal/v1/reports" {
            return Err(Problem::not_found("such address; records go to /internal/v1/reports"));
        }
        if request.method() != Method::POST {
            return Err(Problem::new(Code::MethodNotAllowed, "what is handed in here is sent with POST"));
        }
        let token = bearer(request.headers()).ok_or_else(Problem::unauthorized)?;
        let identity = self.backend.platform_identity(token).await?.ok_or_else(Problem::unauthorized)?;
        let refused = match (identity, build) {
            (Identity::Function(function), None) => self.records(function, request).await?,
            (Identity::Controller, Some(build)) => self.build_log(build?, request).await?,
            _ => return Err(Problem::new(Code::Forbidden, "this token is for something else")),
        };
        let mut response = Response::new(Full::new(Bytes::from(format!("{{\"refused\": {refused}}}"))));
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    /// Stores a batch of a function's records; how many lines were refused.
    async fn records(&self, function: FunctionRef, request: Request<Incoming>) -> Result<u64, Problem> {
        let (body, gzip) = body(request).await?;
        let parsed = if gzip || body.len() > LARGE {
            let work =
                tokio::task::spawn_blocking(move || unpacked(body, gzip).map(|body| parse(&body))).await;
            work.map_err(|error| Problem::internal("read a batch", &error))??
        } else {
            parse(&body)
        };
        let Parsed { batch, taken, refused } = parsed;
        if refused > 0 {
            tracing::warn!(function = %function, refused, "refused lines of a batch of records");
        }
        self.writer.write(function, batch).await.map_err(|error| {
            tracing::warn!(error = %chain(&*error), "failed to store a batch of records, its sender tries again");
            Problem::unavailable("the records could not be stored now")
        })?;
        self.metrics.events(taken, refused);
        Ok(refused)
    }

    /// Keeps the log of a build; how many lines were refused.
    async fn build_log(&self, build: builds::Build, request: Request<Incoming>) -> Result<u64, Problem> {
        let (body, gzip) = body(request).await?;
        let work = tokio::task::spawn_blocking(move || unpacked(body, gzip).map(|body| builds::lines(&body)));
        let (lines, refused) =
            work.await.map_err(|error| Problem::internal("read the log of a build", &error))??;
        self.store.keep_build_log(&build.function, &build.name, &lines).await?;
        Ok(refused)
    }
}

/// The body as it came, and whether it is packed.
async fn body(request: Request<Incoming>) -> Result<(Bytes, bool), Problem> {
    let gzip = match request.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            return Err(Problem::new(
                Code::Invalid,
                format!("content-encoding {other:?} is not known here, gzip is"),
            ));
        }
    };
    let body = Limited::new(request.into_body(), MAX_SENT).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            too_large()
        } else {
            Problem::new(Code::Invalid, format!("the batch broke off: {error}"))
        }
    })?;
    Ok((body.to_bytes(), gzip))
}

fn too_large() -> Problem {
    Problem::new(Code::TooLarge, "the batch is too large, send it in halves")
}

fn unpacked(body: Bytes, gzip: bool) -> Result<Bytes, Problem> {
    if !gzip {
        return Ok(body);
    }
    let mut text = Vec::with_capacity(body.len().saturating_mul(4));
    let unpacked = MultiGzDecoder::new(&*body).take(MAX_UNPACKED + 1).read_to_end(&mut text);
    unpacked.map_err(|error| {
        Problem::new(Code::Invalid, format!("the batch is no whole gzip stream: {error}"))
    })?;
    if text.len() as u64 > MAX_UNPACKED {
        return Err(too_large());
    }
    Ok(text.into())
}
