//! `POST /v1/namespaces/{ns}/invocations/{id}/replay`, `…/cancel`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use sless_backend::FunctionRef;
use sless_protocol::event::Status;
use uuid::Uuid;

use super::{Answer, Entered, Shared, Two, input, invocations, render, revisions};
use crate::detached;
use crate::problem::{Code, Problem};
use crate::proxy::{Detached, cancel_at};
use crate::reconcile;
use crate::store::{InvocationRow, News, Queued};
use sless_backend::Moment;

/// How often, and how long, somebody is looked for who has the call: it may be on its way to a supervisor, or its end on its way here.
const LOOKS: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A supervisor answers its admin port in microseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// A request as a record keeps it.
#[derive(Debug, Deserialize)]
struct Kept {
    #[serde(default)]
    raw_query: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    text: Option<String>,
    base64: Option<String>,
    #[serde(default)]
    truncated: bool,
}

fn conflict(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Conflict, detail)
}

/// The request of a record as it can be sent again.
fn again(row: &InvocationRow) -> Result<Detached, Problem> {
    let lost = || conflict("its request was not kept whole, so it can't be sent again");
    let kept: Kept = row.request.as_deref().and_then(|r| serde_json::from_str(r).ok()).ok_or_else(lost)?;
    let method =
        row.method.as_deref().and_then(|m| Method::from_bytes(m.as_bytes()).ok()).ok_or_else(lost)?;
    if kept.truncated {
        return Err(lost());
    }
    let body: Bytes = match (kept.text, kept.base64) {
        (Some(text), _) => text.into(),
        (None, Some(base64)) => STANDARD.decode(base64).map_err(|_| lost())?.into(),
        (None, None) => Bytes::new(),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in kept.headers {
        // What can't be a header was none.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.append(name, value);
        }
    }
    Ok(Detached {
        id: Uuid::now_v7(),
        trigger: row.trigger.clone().unwrap_or_else(|| "invoke".to_owned()),
        method,
        path: row.path.clone().unwrap_or_default(),
        raw_query: kept.raw_query,
        headers,
        body,
    })
}

/// The exact request once more, on the revision that answers or on a named one.
pub(super) async fn replay(State(app): Shared, entered: Entered, Path((_, id)): Two, body: Body) -> Answer {
    let row = invocations::record(&app, &entered, &id).await?;
    let object = input::optional_object(body).await?;
    let function = FunctionRef { namespace: entered.namespace.clone(), name: row.function.clone() };
    let owner = app.definitions.function(&function).await?.filter(|owner| !owner.deleting);
    let owner = owner.ok_or_else(|| conflict("its function is not there any more"))?;
    let named = revisions::named(&app, &owner, &object).await?;
    let what = again(&row)?;
    if named.is_none() && owner.active.is_none() && app.backend.endpoints(&function).is_empty() {
        return Err(Problem::not_ready(format!(
            "function {:?} has no revision that can answer yet",
            function.name.as_str()
        )));
    }
    let queued = Queued {
        id: what.id,
        at: Moment::now(),
        trigger: what.trigger.clone(),
        method: row.method.unwrap_or_default(),
        path: row.path.unwrap_or_default(),
        request: row.request,
        replay_of: Some(row.id),
    };
    let id = what.id;
    let revision = match named {
        Some(named) => Some(reconcile::revision(&app, &owner, named).await?),
        None => None,
    };
    detached::start(&app, function, what, queued, revision).await?;
    render::json_response(StatusCode::ACCEPTED, &json!({"invocation_id": id}))
}

/// Ends a call that waits or runs.
pub(super) async fn cancel(State(app): Shared, entered: Entered, Path((_, id)): Two) -> Answer {
    let mut row = invocations::record(&app, &entered, &id).await?;
    let function = FunctionRef { namespace: entered.namespace.clone(), name: row.function.clone() };
    let token = app.backend.proxy_token(&function);
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
            row = invocations::record(&app, &entered, &id).await?;
        }
        if let Some(status) = &row.status {
            if look > 0 && status == Status::Cancelled.as_str() {
                return render::json_response(StatusCode::ACCEPTED, &json!({"invocation_id": row.id}));
            }
            return Err(conflict(format!("it has ended: {status}")));
        }
        if app.runs.cancel(row.id) {
            return render::json_response(StatusCode::ACCEPTED, &json!({"invocation_id": row.id}));
        }
        // It may wait in another process. Of those that a supervisor has, that one is asked.
        if look == 0 && !row.started && app.upkeep.is_none() {
            app.records.tell(News::Cancel(row.id)).await?;
        }
        for endpoint in app.backend.supervisors(&function) {
            let asked = cancel_at(&endpoint, row.id, &token);
            match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
                Ok(Ok(true)) => {
                    return render::json_response(StatusCode::ACCEPTED, &json!({"invocation_id": row.id}));
                }
                Ok(Ok(false)) => {}
                // It may have ended meanwhile, and its calls with it.
                Ok(Err(error)) => tracing::debug!(error = %error, "a supervisor did not answer"),
                Err(_) => tracing::warn!(function = %function, "a supervisor did not answer in time"),
            }
        }
    }
    Err(conflict("no supervisor has it in hand any more; how it ended is not known yet"))
}
