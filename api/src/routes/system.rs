//! Health, metrics, and who one is.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use sless_backend::Endpoint;

use super::{Answer, Shared, render};
use crate::auth::Caller;
use crate::problem::{Code, Problem};
use crate::proxy::ask_admin;

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) async fn whoami(caller: Caller) -> Answer {
    render::json_response(StatusCode::OK, &caller)
}

pub(super) async fn health() -> Answer {
    render::json_response(StatusCode::OK, &json!({"status": "ok"}))
}

pub(super) async fn ready(State(app): Shared) -> Answer {
    if app.is_draining() {
        return render::json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": "draining"}));
    }
    app.records.ping().await?;
    app.definitions.ping().await?;
    render::json_response(StatusCode::OK, &json!({"status": "ok"}))
}

fn page(text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, PROMETHEUS);
    response
}

pub(super) async fn metrics(State(app): Shared) -> Answer {
    Ok(page(app.metrics.text().map_err(|error| Problem::internal("gather the metrics", &error))?))
}

/// Prometheus' HTTP service discovery. Supervisors of a local host listen on sockets that Prometheus can't reach, so each target is
/// this address with a path of its own; those in pods are reached as they are.
pub(super) async fn targets(State(app): Shared) -> Answer {
    let mut groups = Vec::new();
    for route in app.table.all() {
        let f = &route.function;
        for (n, endpoint) in app.backend.endpoints(f).iter().enumerate() {
            let (target, path) = match endpoint {
                Endpoint::Unix { .. } => (app.metrics_addr.clone(), format!("/metrics/functions/{f}/{n}")),
                Endpoint::Tcp { admin, .. } => (admin.to_string(), "/metrics".to_owned()),
            };
            groups.push(json!({
                "targets": [target],
                "labels": {"__metrics_path__": path, "instance": format!("{f}/{n}")},
            }));
        }
    }
    render::json_response(StatusCode::OK, &Value::Array(groups))
}

pub(super) async fn function_metrics(
    State(app): Shared,
    Path((ns, name, n)): Path<(String, String, usize)>,
) -> Answer {
    let not_there = || Problem::not_found(format!("supervisor {n} of function {ns}/{name}"));
    let route = app.table.get(&format!("{ns}/{name}")).ok_or_else(not_there)?;
    let endpoints = app.backend.endpoints(&route.function);
    let endpoint = endpoints.get(n).ok_or_else(not_there)?;
    let asked = tokio::time::timeout(
        std::time::Duration::from_secs(5),
        ask_admin(endpoint, "/metrics", &app.backend.proxy_token(&route.function)),
    )
    .await;
    match asked {
        Ok(Ok(text)) => Ok(page(text)),
        Ok(Err(error)) => {
            tracing::warn!(function = %route.function, error = %error, "failed to ask a supervisor for its metrics");
            Err(Problem::new(Code::BadGateway, "the supervisor did not give its metrics"))
        }
        Err(_) => Err(Problem::new(Code::BadGateway, "the supervisor did not give its metrics in time")),
    }
}
