//! `/v1`, health and metrics: each handler parses, calls and renders.

mod builds;
mod code;
mod functions;
mod input;
mod invocations;
pub(crate) mod invoke;
mod logs;
mod openapi;
mod operation;
mod operations;
mod render;
mod revisions;
mod runs;
mod schemas;
mod secrets;
mod system;
mod tokens;
mod triggers;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, StatusCode};
use sless_backend::FunctionRef;
use sless_core::{FieldError, Namespace};

use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Code, Problem};

type Shared = State<Arc<App>>;
type Answer = Result<Response, Problem>;

/// All addresses; those for operators only where they are wanted.
pub(crate) fn router(app: Arc<App>, admin: bool) -> Router {
    let mut operations = operations::all();
    if admin {
        operations.extend(operations::admin());
    }
    let description = Bytes::from(openapi::document(&operations).to_string());
    let mut router = Router::new().route("/openapi.json", get(async move || openapi::page(description)));
    for operation in operations {
        router = operation.mount(router, &app);
    }
    router
        .layer(DefaultBodyLimit::disable())
        .method_not_allowed_fallback(not_allowed)
        .fallback(not_found)
        .layer(axum::middleware::from_fn(refuse_odd_names))
        .with_state(app)
}

async fn not_found(request: Request) -> Problem {
    Problem::not_found(format!("such address: {} {:?}", request.method(), request.uri().path()))
}

async fn not_allowed(method: Method, request: Request) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{method} is not possible on {:?}", request.uri().path()))
}

/// The framework answers by itself where a path's parts are not valid UTF-8; that must be a problem too.
async fn refuse_odd_names(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let own = response
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if response.status() == StatusCode::BAD_REQUEST && own {
        return Problem::not_found(format!("such address: {path:?}")).into_response();
    }
    response
}

/// Who calls; the guard has asked already.
impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(Problem::unauthorized)
    }
}

/// The namespace that the path names, which the caller may enter with the role that the operation needs.
#[derive(Debug, Clone)]
struct Entered {
    namespace: Namespace,
    /// The caller's token is bound to no namespace: what is not there is made for it.
    makes: bool,
}

impl FromRequestParts<Arc<App>> for Entered {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(Problem::unauthorized)
    }
}

impl Entered {
    /// To be called before something is made in the namespace.
    async fn to_write(&self, app: &App) -> Result<(), Problem> {
        Ok(app.definitions.enter_namespace(&self.namespace, self.makes).await?)
    }

    /// A name that the path holds, of something that is there; one that can't be a name is not there.
    fn named<N: std::str::FromStr<Err = FieldError>>(&self, what: &str, name: &str) -> Result<N, Problem> {
        name.parse().map_err(|_| self.no(what, name))
    }

    fn no(&self, what: &str, name: &str) -> Problem {
        Problem::not_found(format!("{what} {name:?} in namespace {:?}", self.namespace.as_str()))
    }

    /// The function that the path names.
    fn function(&self, name: &str) -> Result<FunctionRef, Problem> {
        Ok(FunctionRef { namespace: self.namespace.clone(), name: self.named("function", name)? })
    }
}

/// `{ns}` and `{name}` of a path.
type Two = axum::extract::Path<(String, String)>;
