//! How things look in JSON.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use sless_backend::{BuildStatus, FunctionRow, Generation, Moment, TriggerRow};
use sless_core::{Digest, Phase};

use super::input::{Version, etag};
use crate::app::App;
use crate::problem::Problem;
use crate::store::InvocationRow;

/// A JSON answer.
pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> Result<Response, Problem> {
    let text =
        serde_json::to_vec(value).map_err(|error| Problem::internal("write an answer as JSON", &error))?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// One object, with its `ETag`.
pub(super) fn one(
    status: StatusCode,
    version: impl Into<Version>,
    value: &impl Serialize,
) -> Result<Response, Problem> {
    let mut response = json_response(status, value)?;
    let (name, tag) = etag(version.into());
    response.headers_mut().insert(name, tag);
    Ok(response)
}

/// One object that counts no writes: its `ETag` is a hash of how it looks.
pub(super) fn shown(value: &impl Serialize) -> Result<Response, Problem> {
    let text =
        serde_json::to_vec(value).map_err(|error| Problem::internal("write an answer as JSON", &error))?;
    let hash = Digest::new(Sha256::digest(&text).into()).to_string();
    let tag = HeaderValue::from_str(&format!("\"{}\"", hash.get(..16).unwrap_or(&hash)));
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ETAG, tag.map_err(|error| Problem::internal("write an ETag", &error))?);
    Ok(response)
}

/// A page of a list.
pub(super) fn list(items: Vec<Value>, next: Option<String>) -> Result<Response, Problem> {
    json_response(StatusCode::OK, &json!({"items": items, "next": next}))
}

/// Where the newest change stands. What the backend says counts only if it speaks of that change.
fn phase(row: &FunctionRow, seen: Option<&sless_backend::FunctionStatus>) -> (Phase, Option<String>) {
    if row.deleting {
        return (Phase::Terminating, None);
    }
    match seen {
        _ if row.wanted.is_none() => (Phase::Pending, Some("no code has been uploaded yet".to_owned())),
        Some(status) if status.generation >= Generation(row.generation) => {
            (status.phase, status.message.clone())
        }
        _ => (Phase::Pending, None),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: Option<&str>) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message.unwrap_or_default()})
}

fn built(build: Option<&BuildStatus>) -> Value {
    let Some(build) = build else {
        return condition("Built", "False", "NoCode", Some("nothing has been built yet"));
    };
    let message = build.message.as_deref();
    match build.phase {
        Phase::Ready => condition("Built", "True", "Succeeded", message),
        Phase::Failed => condition("Built", "False", "Failed", message),
        _ => condition("Built", "Unknown", "Building", message),
    }
}

/// A function as `GET` gives it.
pub(super) async fn function(app: &App, row: &FunctionRow) -> Result<Value, Problem> {
    let status = app.backend.status(&row.function);
    let (phase, message) = phase(row, status.as_ref());
    let message = message.or_else(|| app.changes.trouble(&row.function).filter(|_| phase == Phase::Pending));
    let active = status.and_then(|s| s.active_revision).or_else(|| row.active.clone());
    let revision = match &active {
        Some(name) => app.definitions.revision(row, name).await?,
        None => None,
    };
    let answers = !app.backend.endpoints(&row.function).is_empty();
    let ready = match (answers, phase) {
        (true, _) => condition("Ready", "True", "Answering", None),
        (false, Phase::Ready) if app.upkeep.is_none() => {
            condition("Ready", "True", "Asleep", Some("nobody calls it; the next call starts it"))
        }
        (false, Phase::Failed) => condition("Ready", "False", "Failed", message.as_deref()),
        (false, _) => condition("Ready", "False", "NotReady", message.as_deref()),
    };
    let (namespace, name) = (row.function.namespace.as_str(), row.function.name.as_str());
    let mut object = Map::new();
    object.insert("namespace".to_owned(), namespace.into());
    object.insert("name".to_owned(), name.into());
    object.insert("runtime".to_owned(), row.runtime.as_str().into());
    object.extend(row.settings.to_object());
    let read_only = json!({
        "phase": phase,
        "message": message,
        "url": format!("{}/fn/{namespace}/{name}", app.external_url),
        "revision": active,
        "code_sha256": revision.as_ref().map(|r| r.code.sha256),
        "content_sha256": revision.as_ref().map(|r| r.code.content_sha256),
        "image": revision.as_ref().and_then(|r| r.image.as_deref()),
        "conditions": [built(app.backend.build(&row.function).as_ref()), ready],
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    });
    if let Value::Object(read_only) = read_only {
        object.extend(read_only);
    }
    Ok(Value::Object(object))
}

/// A trigger as `GET` gives it; `there`: whether its function is.
pub(super) fn trigger(app: &App, row: &TriggerRow, there: bool) -> Value {
    let (namespace, function) = (row.namespace.as_str(), row.wish.function.as_str());
    let url = match &row.wish.http.host {
        Some(host) => app.address_of(host),
        None => format!("{}/fn/{namespace}/{function}", app.external_url),
    };
    let mut object = row.wish.http.to_object();
    let more = json!({
        "namespace": namespace,
        "name": row.name,
        "type": row.wish.kind,
        "enabled": row.wish.enabled,
        "function": function,
        "active": row.wish.enabled && there && row.trouble.is_none(),
        "url": url,
        "last_fired_at": null,
        "next_fire_at": null,
        "message": if there { row.trouble.clone() } else { Some(format!("there is no function {function:?}")) },
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    });
    if let Value::Object(more) = more {
        object.extend(more);
    }
    Value::Object(object)
}

/// A record as a list gives it.
pub(super) fn invocation(row: &InvocationRow) -> Map<String, Value> {
    let moment = |m: Option<Moment>| m.map(Moment::rfc3339);
    let value = json!({
        "id": row.id,
        "function": row.function,
        "revision": row.revision,
        "trigger": row.trigger,
        "attempt": row.attempt,
        "replay_of": row.replay_of,
        "status": row.status.as_deref().unwrap_or(if row.started { "running" } else { "queued" }),
        "http_status": row.http_status,
        "started_at": row.started_at,
        "finished_at": moment(row.finished_at),
        "duration_ms": row.duration_ms,
        "queue_ms": row.queue_ms,
        "init_ms": row.init_ms,
        "cpu_ms": row.cpu_ms,
        "max_rss_bytes": row.max_rss_bytes,
        "log_bytes": row.log_bytes,
        "log_dropped_bytes": row.log_dropped_bytes,
    });
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
