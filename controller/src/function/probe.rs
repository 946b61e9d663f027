//! Asks a supervisor whether its code loads; Kubernetes knows no more than that it is not ready.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use sless_crds::names;

use super::CONTAINER;
use crate::troubles::end_of;
use crate::web;

const PATIENCE: Duration = Duration::from_secs(2);
/// So much of a traceback goes into a function's message.
const TRACEBACK_MAX: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It runs, and is not ready yet.
    Starting,
    /// The code does not load, and why.
    Failed(String),
    /// It does not run yet, or is ready.
    NotAsked,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    status: String,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    message: String,
    traceback: Option<String>,
}

pub(super) async fn of_pod(pod: &Pod) -> Readiness {
    let Some(status) = &pod.status else { return Readiness::NotAsked };
    let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    let runs =
        container.is_some_and(|c| !c.ready && c.state.as_ref().is_some_and(|state| state.running.is_some()));
    let Some(ip) = status.pod_ip.as_deref().filter(|_| runs) else { return Readiness::NotAsked };
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let request =
        Request::get(format!("http://{host}:{}/ready", names::ADMIN_PORT)).body(Full::<Bytes>::default());
    let Ok(request) = request else { return Readiness::Starting };
    match tokio::time::timeout(PATIENCE, web::send(request)).await {
        Ok(Ok(answer)) => read(answer.status, &answer.body),
        // It does not listen yet, or the network does not lead there yet.
        _ => Readiness::Starting,
    }
}

fn read(status: StatusCode, body: &[u8]) -> Readiness {
    if status == StatusCode::OK {
        return Readiness::Starting;
    }
    match serde_json::from_slice::<Said>(body) {
        Ok(Said { status, error }) if status == "init_failed" => {
            let text = error.map_or_else(String::new, |e| {
                let text = if e.kind.is_empty() { e.message } else { format!("{}: {}", e.kind, e.message) };
                match e.traceback {
                    Some(traceback) => format!("{text}\n{}", end_of(&traceback, TRACEBACK_MAX)),
                    None => text,
                }
            });
            Readiness::Failed(text)
        }
        _ => Readiness::Starting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_meaning() {
        let failed = br#"{"status": "init_failed", "error": {"type": "InitFailed", "message": "No module named 'x'", "traceback": "t"}}"#;
        assert_eq!(
            read(StatusCode::SERVICE_UNAVAILABLE, failed),
            Readiness::Failed("InitFailed: No module named 'x'\nt".into())
        );
        for other in [&br#"{"status": "starting"}"#[..], br#"{"status": "draining"}"#, b"junk"] {
            assert_eq!(read(StatusCode::SERVICE_UNAVAILABLE, other), Readiness::Starting);
        }
    }
}
