//! `POST /v1/namespaces/{ns}/functions/{name}/upload`.

use std::fs::File;
use std::io::Write;

use axum::extract::{FromRequest, Multipart, Path, Request, State};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sless_backend::{CodeRef, FunctionRef};
use sless_builder::{Limits, candidates, inspect};
use sless_core::Digest;
use tempfile::NamedTempFile;

use super::{Answer, Entered, Shared, Two, functions, render};
use crate::app::App;
use crate::problem::{Code, Problem};

const TRIES: usize = 8;

pub(super) async fn upload(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    request: Request,
) -> Answer {
    let function = entered.function(&name)?;
    let row = app.function(&function).await?;
    let headers = request.headers().clone();
    super::input::check_if_match(&headers, &row)?;
    let received = receive(&app, request).await?;
    let handlers = candidates(&row.runtime, &row.settings.entrypoint);
    let content_sha256 = look_into(handlers, &received.file).await?;
    let code = CodeRef { sha256: received.sha256, content_sha256 };
    let _not_removed = app.code_in_use.read().await;
    keep(&app, &function, &received).await?;
    let mut row = row;
    for _ in 0..TRIES {
        let settings = row.settings.clone();
        if functions::write(&app, row, settings, Some(code), &headers).await?.is_some() {
            return render::json_response(StatusCode::ACCEPTED, &json!({"code_sha256": code.sha256}));
        }
        row = app.function(&function).await?;
    }
    Err(functions::busy())
}

pub(super) async fn keep(app: &App, function: &FunctionRef, received: &Received) -> Result<(), Problem> {
    Ok(app.code.put_if_absent(function, &received.sha256, received.file.path()).await?)
}

/// An upload in a temporary file, which is removed with this.
pub(super) struct Received {
    pub(super) file: NamedTempFile,
    pub(super) sha256: Digest,
}

/// Writes to the file as the bytes come, so that an upload never is in memory as a whole.
struct Sink {
    file: NamedTempFile,
    hash: Sha256,
    left: u64,
    max: u64,
}

impl Sink {
    fn new(app: &App) -> Result<Self, Problem> {
        let file = tempfile::Builder::new().prefix(".upload-").tempfile_in(&app.config.temp_dir);
        let file = file.map_err(|error| Problem::internal("make a file for an upload", &error))?;
        let max = app.config.max_upload_bytes;
        Ok(Self { file, hash: Sha256::new(), left: max, max })
    }

    /// A chunk goes into the page cache, which is quick enough not to need a thread of its own.
    fn take(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        self.left = self.left.checked_sub(chunk.len() as u64).ok_or_else(|| too_large(self.max))?;
        self.hash.update(chunk);
        self.file.write_all(chunk).map_err(|error| Problem::internal("keep an upload", &error))
    }

    fn done(self) -> Received {
        Received { file: self.file, sha256: Digest::new(self.hash.finalize().into()) }
    }
}

fn too_large(max: u64) -> Problem {
    Problem::new(Code::TooLarge, format!("an upload has at most {max} bytes (MAX_UPLOAD_BYTES)"))
}

fn broken(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Invalid, format!("the upload broke off: {error}"))
}

/// Whether it is a form, and its length if that is known.
fn kind(headers: &HeaderMap) -> (bool, Option<u64>) {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let form =
        header(CONTENT_TYPE).is_some_and(|kind| kind.to_ascii_lowercase().starts_with("multipart/form-data"));
    (form, header(CONTENT_LENGTH).and_then(|text| text.parse().ok()))
}

pub(super) async fn receive(app: &App, request: Request) -> Result<Received, Problem> {
    let (multipart, length) = kind(request.headers());
    // The head of a form and its other fields come on top; without one the length alone is enough to refuse.
    let length = length.unwrap_or(0);
    let max = app.config.max_upload_bytes;
    if length > if multipart { max.saturating_add(1 << 20) } else { max } {
        return Err(too_large(max));
    }
    let mut sink = Sink::new(app)?;
    if !multipart {
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(chunk) = frame.map_err(broken)?.into_data() {
                sink.take(&chunk)?;
            }
        }
        return Ok(sink.done());
    }
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|error| Problem::new(Code::Invalid, error.body_text()))?;
    while let Some(mut field) = form.next_field().await.map_err(|error| broken(error.body_text()))? {
        if field.name() != Some("file") {
            continue;
        }
        while let Some(chunk) = field.chunk().await.map_err(|error| broken(error.body_text()))? {
            let chunk: Bytes = chunk;
            sink.take(&chunk)?;
        }
        return Ok(sink.done());
    }
    Err(Problem::invalid("file", "file: the form has no such field"))
}

/// Reads the whole archive, in which one of `handlers` must be; says what is wrong with it.
pub(super) async fn look_into(handlers: Vec<String>, file: &NamedTempFile) -> Result<Digest, Problem> {
    let archive = File::open(file.path()).map_err(|error| Problem::internal("read an upload", &error))?;
    let looked = tokio::task::spawn_blocking(move || inspect(archive, &handlers, &Limits::default())).await;
    match looked.map_err(|error| Problem::internal("read an upload", &error))? {
        Ok(contents) => Ok(contents.content_sha256),
        Err(error) if error.is_the_senders() => Err(Problem::new(Code::Invalid, error.to_string())),
        Err(error) => Err(Problem::internal("read an upload", &error)),
    }
}
