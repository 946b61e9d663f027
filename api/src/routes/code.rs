//! `POST /v1/namespaces/{ns}/functions/{name}/code`: for those who write objects of a cluster themselves.

use axum::extract::{Path, Request, State};
use http::StatusCode;
use serde_json::json;
use sless_backend::FunctionRef;
use sless_builder::candidates;
use sless_core::{Entrypoint, Runtime};

use super::upload::{keep, look_into, receive};
use super::{Answer, Entered, Shared, Two, input, render};
use crate::problem::{Code, Problem};

/// Keeps a zip and says what to write as a `Function`'s `spec.source`. Changes nothing; the function need not be there yet.
pub(super) async fn keep_code(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    request: Request,
) -> Answer {
    let function = FunctionRef { namespace: entered.namespace.clone(), name: name.parse()? };
    if app.upkeep.is_some() {
        let says = "there are no objects of a cluster here that could name code: send it to …/upload, as 'sless deploy' does";
        return Err(Problem::new(Code::NotFound, says));
    }
    let params = input::Params::parse(request.uri().query());
    let known = app.definitions.function(&function).await?;
    let entrypoint: Entrypoint = match (params.get("entrypoint"), &known) {
        (Some(text), _) => text.parse()?,
        (None, Some(row)) => row.settings.entrypoint.clone(),
        (None, None) => Entrypoint::default(),
    };
    // The handler's file tells whether all lies in a folder of its own in the zip.
    let runtimes: Vec<Runtime> = match (params.get("runtime"), known) {
        (Some(text), _) => vec![text.parse()?],
        (None, Some(row)) => vec![row.runtime],
        (None, None) => app.backend.runtimes(),
    };
    let handlers = runtimes.iter().flat_map(|runtime| candidates(runtime, &entrypoint)).collect();
    entered.to_write(&app).await?;
    let received = receive(&app, request).await?;
    let content_sha256 = look_into(handlers, &received.file).await?;
    keep(&app, &function, &received).await?;
    let (namespace, name, sha256) = (&function.namespace, &function.name, received.sha256);
    let source = json!({
        "key": format!("{namespace}/{name}/{sha256}.zip"),
        "sha256": sha256,
        "content_sha256": content_sha256,
    });
    render::json_response(StatusCode::CREATED, &source)
}
