//! What can be asked of the API: each operation with its address, who may ask, what it takes and gives. The router is mounted from
//! these, the guard in front of each handler is made from these, and so is `/openapi.json`: none can say what the others don't.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawPathParams, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::Method;

use crate::app::App;
use crate::auth::Role;
use crate::problem::Problem;

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anybody.
    Open,
    /// Whoever has a token.
    Token,
    /// A token of the path's namespace with at least this role.
    Role(Role),
}

/// A parameter of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    /// A JSON schema.
    pub(crate) schema: &'static str,
    pub(crate) about: &'static str,
}

/// What a body looks like, or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One of `schemas.rs`.
    Object(&'static str),
    /// The same, or no body at all.
    Optional(&'static str),
    /// A page of them.
    List(&'static str),
    /// Lines in one of the three forms.
    Log,
    Zip,
    /// Prometheus' form.
    Metrics,
    /// Whatever the function takes or gives.
    Any,
    Nothing,
}

/// One method of one address.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) about: &'static str,
    pub(crate) query: &'static [Param],
    pub(crate) takes: Shape,
    pub(crate) gives: Vec<(u16, Shape)>,
    /// `None` for what is answered in front of the router.
    handler: Option<MethodRouter<Arc<App>>>,
}

impl Operation {
    fn new(method: Method, path: &'static str, access: Access) -> Self {
        let (about, query, takes, gives, handler) = ("", &[][..], Shape::Nothing, Vec::new(), None);
        Self { method, path, access, about, query, takes, gives, handler }
    }

    fn handled<H, T>(filter: MethodFilter, method: Method, path: &'static str, access: Access, h: H) -> Self
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        Self { handler: Some(on(filter, h)), ..Self::new(method, path, access) }
    }

    /// One that is not answered by the router.
    pub(crate) fn elsewhere(method: Method, path: &'static str, access: Access) -> Self {
        Self::new(method, path, access)
    }

    pub(crate) fn get<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, h: H) -> Self {
        Self::handled(MethodFilter::GET, Method::GET, path, access, h)
    }

    pub(crate) fn post<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, role: Role, h: H) -> Self {
        Self::handled(MethodFilter::POST, Method::POST, path, Access::Role(role), h)
    }

    pub(crate) fn put<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, role: Role, h: H) -> Self {
        Self::handled(MethodFilter::PUT, Method::PUT, path, Access::Role(role), h)
    }

    pub(crate) fn patch<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, role: Role, h: H) -> Self {
        Self::handled(MethodFilter::PATCH, Method::PATCH, path, Access::Role(role), h)
    }

    pub(crate) fn delete<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, role: Role, h: H) -> Self {
        Self::handled(MethodFilter::DELETE, Method::DELETE, path, Access::Role(role), h)
    }

    /// One sentence for the description.
    pub(crate) fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    pub(crate) fn query(self, query: &'static [Param]) -> Self {
        Self { query, ..self }
    }

    pub(crate) fn takes(self, takes: Shape) -> Self {
        Self { takes, ..self }
    }

    /// What it answers when all is well; the problems follow from the rest.
    pub(crate) fn gives(mut self, status: u16, shape: Shape) -> Self {
        self.gives.push((status, shape));
        self
    }

    /// Adds it to the router, behind its guard.
    pub(super) fn mount(self, router: Router<Arc<App>>, app: &Arc<App>) -> Router<Arc<App>> {
        let Some(handler) = self.handler else { return router };
        let handler = match self.access {
            Access::Open => handler,
            access => handler.route_layer(from_fn_with_state((app.clone(), access), guard)),
        };
        router.route(self.path, handler)
    }
}

/// Asks for the token before anything else, so that nobody without one learns what is there. Handlers find the caller and the
/// namespace that it may enter in the request; whom this refuses never reaches them.
async fn guard(
    State((app, access)): State<(Arc<App>, Access)>,
    params: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let entered = async {
        let caller = app.auth.caller(&*app.records, &parts.headers).await?;
        let Access::Role(role) = access else { return Ok((caller, None)) };
        let odd = || Problem::not_found(format!("such address: {:?}", parts.uri.path()));
        let params = params.map_err(|_| odd())?;
        let ns = params.iter().find(|(name, _)| *name == "ns").map(|(_, ns)| ns).unwrap_or_default();
        let namespace = caller.enter(ns, role)?;
        Ok::<_, Problem>((caller, Some(namespace)))
    };
    match entered.await {
        Ok((caller, namespace)) => {
            parts.extensions.insert(caller.clone());
            if let Some(namespace) = namespace {
                let makes = caller.namespace.is_none();
                parts.extensions.insert(super::Entered { namespace, makes });
            }
            let mut response = next.run(Request::from_parts(parts, body)).await;
            // For the log of requests.
            response.extensions_mut().insert(caller);
            response
        }
        Err(problem) => problem.into_response(),
    }
}
