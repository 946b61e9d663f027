//! `/v1`, health and metrics: each handler parses, calls and renders.

mod builds;
mod functions;
mod input;
mod invocations;
pub(crate) mod invoke;
mod logs;
mod render;
mod revisions;
mod system;
mod triggers;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::app::App;
use crate::auth::{Caller, Role};
use crate::problem::{Code, Problem};

type Shared = State<Arc<App>>;
type Answer = Result<Response, Problem>;

/// All addresses; those for operators only where they are wanted.
pub(crate) fn router(app: Arc<App>, admin: bool) -> Router {
    let functions = Router::new()
        .route("/functions", get(functions::list).post(functions::create))
        .route(
            "/functions/{name}",
            get(functions::read).put(functions::put).patch(functions::patch).delete(functions::delete),
        )
        .route("/functions/{name}/upload", post(upload::upload))
        .route("/functions/{name}/build", get(builds::read))
        .route("/functions/{name}/build/logs", get(builds::logs))
        .route("/functions/{name}/revisions", get(revisions::list))
        .route("/functions/{name}/rollback", post(revisions::rollback))
        .route("/functions/{name}/invocations", get(invocations::list))
        .route("/functions/{name}/logs", get(logs::of_function))
        .route("/triggers", get(triggers::list).post(triggers::create))
        .route(
            "/triggers/{name}",
            get(triggers::read).put(triggers::put).patch(triggers::patch).delete(triggers::delete),
        )
        .route("/invocations/{id}", get(invocations::read))
        .route("/invocations/{id}/logs", get(logs::of_invocation));
    let v1 = Router::new()
        .route("/v1/whoami", get(system::whoami))
        .nest("/v1/namespaces/{ns}", functions)
        .layer(DefaultBodyLimit::disable());
    let mut router = v1;
    if admin {
        router = router
            .route("/health", get(system::health))
            .route("/ready", get(system::ready))
            .route("/metrics", get(system::metrics))
            .route("/metrics/targets", get(system::targets))
            .route("/metrics/functions/{ns}/{name}/{n}", get(system::function_metrics));
    }
    router
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

/// Who calls. Asked for before anything else, so that nobody without a token learns what is there.
impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        app.auth.caller(&parts.headers)
    }
}

/// `{ns}` and `{name}` of a path.
type Two = axum::extract::Path<(String, String)>;
/// `{ns}` of a path.
type One = axum::extract::Path<String>;

/// The function that the path names, for a caller whose role is enough.
fn function_ref(
    caller: &Caller,
    ns: &str,
    name: &str,
    role: Role,
) -> Result<sless_backend::FunctionRef, Problem> {
    let namespace = caller.enter(ns, role)?;
    let name =
        name.parse().map_err(|_| Problem::not_found(format!("function {name:?} in namespace {ns:?}")))?;
    Ok(sless_backend::FunctionRef { namespace, name })
}
