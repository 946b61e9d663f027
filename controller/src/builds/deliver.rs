//! The log of a build, from its pod to the API, which keeps it.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Request, StatusCode};
use http_body_util::Full;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use sless_crds::names;

use super::job::{INSTALL, PACK};
use crate::context::Context;
use crate::error::{chain, is_absent};
use crate::{jitter, troubles, web};

/// Of each container.
const LOG_MAX: i64 = 1 << 20;
/// Lines of the end that go into a message.
const TAIL_LINES: i64 = 20;
const TAIL_MAX: usize = 2048;
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Line {
    text: String,
}

/// The last lines that a container of a build wrote, without those that `message` says already; nothing if they can't be had.
pub(super) async fn tail(context: &Context, job: &str, container: &str, message: &str) -> String {
    let params = LogParams {
        container: Some(container.to_owned()),
        tail_lines: Some(TAIL_LINES),
        ..LogParams::default()
    };
    let log = read(context, job, &params).await.unwrap_or_default();
    let lines: Vec<String> = log.lines().map(plain).collect();
    troubles::end_of(&news(&lines, message).join("\n"), TAIL_MAX).to_owned()
}

/// Each line once, and none that is in the message or has it: the step's own last words.
fn news<'a>(lines: &'a [String], message: &str) -> Vec<&'a str> {
    let mut kept: Vec<&str> = Vec::new();
    for line in lines {
        let line = line.trim_end();
        if !line.is_empty() && !message.contains(line) && !line.contains(message) && !kept.contains(&line) {
            kept.push(line);
        }
    }
    kept
}

/// The text of a line, which is JSON unless something else than our programs wrote it.
fn plain(line: &str) -> String {
    serde_json::from_str::<Line>(line).map_or_else(|_| line.to_owned(), |line| line.text)
}

async fn read(context: &Context, job: &str, params: &LogParams) -> Result<String, kube::Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), names::BUILDS);
    let pods = context.stores.pods.state();
    let of =
        |pod: &&Arc<Pod>| pod.labels().get("batch.kubernetes.io/job-name").map(String::as_str) == Some(job);
    match pods.iter().find(of) {
        Some(pod) => api.logs(&pod.name_any(), params).await,
        None => Ok(String::new()),
    }
}

/// Sends the log of an ended build and removes its Job; in the background, and until the API has it.
pub(crate) fn deliver(context: &Arc<Context>, job: &Arc<Job>) {
    let name = job.name_any();
    let mut deliveries = context.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
    if !deliveries.insert(name.clone()) {
        return;
    }
    drop(deliveries);
    let (context, job) = (Arc::clone(context), Arc::clone(job));
    // Nobody waits for it: what a killed controller did not deliver is delivered by the next one, which finds the Job.
    drop(tokio::spawn(async move {
        send_until_taken(&context, &job).await;
        let api: Api<Job> = Api::namespaced(context.client.clone(), names::BUILDS);
        match api.delete(&name, &DeleteParams::background()).await {
            Err(error) if !is_absent(&error) => {
                tracing::warn!(error = %chain(&error), "delete the ended build {name}");
            }
            _ => {}
        }
        context.deliveries.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
    }));
}

async fn send_until_taken(context: &Context, job: &Job) {
    let name = job.name_any();
    let label = |label: &str| job.labels().get(label).cloned().unwrap_or_default();
    let (namespace, function) = (label(names::LABEL_NAMESPACE), label(names::LABEL_FUNCTION));
    let Some(api) = &context.config.api_internal_url else { return };
    let url = format!("{api}/internal/v1/builds/{namespace}/{function}/{name}");
    let mut log = String::new();
    for container in [INSTALL, PACK] {
        let params = LogParams {
            container: Some(container.to_owned()),
            limit_bytes: Some(LOG_MAX),
            ..LogParams::default()
        };
        // A container that never began has none.
        if let Ok(text) = read(context, &name, &params).await {
            log.push_str(&text);
            if !log.is_empty() && !log.ends_with('\n') {
                log.push('\n');
            }
        }
    }
    let log = Bytes::from(log);
    let mut failures = 0;
    loop {
        let sent =
            tokio::time::timeout(PATIENCE, send(&url, &context.config.api_token_file, log.clone())).await;
        let problem = match sent {
            Ok(Ok(status)) if status.is_success() => return,
            // Its function is gone, and its log with it.
            Ok(Ok(StatusCode::NOT_FOUND | StatusCode::GONE)) => return,
            Ok(Ok(status)) => format!("it answered {status}"),
            Ok(Err(problem)) => problem,
            Err(_) => format!("no answer within {PATIENCE:?}"),
        };
        if failures == 0 {
            tracing::warn!("the log of the build {name} waits for the API: {problem}");
        }
        tokio::time::sleep(jitter::back_off(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        failures = failures.saturating_add(1);
    }
}

async fn send(url: &str, token: &Path, log: Bytes) -> Result<StatusCode, String> {
    // Read anew each time: it rotates.
    let token =
        tokio::fs::read_to_string(token).await.map_err(|e| format!("read {}: {e}", token.display()))?;
    let request = Request::post(url)
        .header(AUTHORIZATION, format!("Bearer {}", token.trim()))
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(Full::new(log))
        .map_err(|e| e.to_string())?;
    web::send(request).await.map(|response| response.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_without_their_wrapping() {
        assert_eq!(
            plain(r#"{"time":"2026-01-01T00:00:00Z","stream":"stderr","text":"no such package"}"#),
            "no such package"
        );
        assert_eq!(plain("exec format error"), "exec format error");
    }

    #[test]
    fn a_message_is_not_said_again_by_the_lines_below_it() {
        let message = "pip failed (exit code 1): no six";
        let lines =
            ["Collecting six", "no six", "", "error: pip failed (exit code 1): no six", "Collecting six"];
        let lines: Vec<String> = lines.map(str::to_owned).into();
        assert_eq!(news(&lines, message), ["Collecting six"]);
    }
}
