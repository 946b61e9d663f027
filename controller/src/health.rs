//! `/health`, `/ready`, `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// What the port tells of.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    /// It leads, or could.
    pub(crate) ready: Arc<AtomicBool>,
}

/// Serves until the process ends.
///
/// # Errors
/// The address can't be listened on.
pub(crate) async fn serve(listen: SocketAddr, health: Health) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let routes = Router::new()
        .route("/health", get(|| async { "{\"status\":\"ok\"}" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health);
    axum::serve(listener, routes).await
}

async fn ready(State(health): State<Health>) -> Response {
    if health.ready.load(Ordering::Relaxed) {
        "{\"status\":\"ready\"}".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"starting\"}").into_response()
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], health.metrics.text())
        .into_response()
}
