//! `/v1/namespaces/{ns}/functions/{name}/invocations`, `/v1/namespaces/{ns}/invocations/{id}`.

use axum::extract::{Path, RawQuery, State};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, Entered, Shared, Two, input, render};
use crate::app::App;
use crate::problem::Problem;
use crate::store::{After, InvocationFilter, InvocationRow};
use sless_backend::Moment;

/// What a record's `status` can be.
pub(super) const STATUSES: &[&str] = &[
    "queued",
    "running",
    "success",
    "error",
    "timeout",
    "crashed",
    "out_of_memory",
    "init_failed",
    "cancelled",
    "lost",
];
/// What a record's `trigger` can be.
pub(super) const TRIGGERS: &[&str] = &["http", "invoke", "async", "cron", "rabbitmq", "job"];

pub(super) async fn list(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    RawQuery(query): RawQuery,
) -> Answer {
    let function = entered.function(&name)?;
    let params = input::Params::parse(query.as_deref());
    let limit = params.limit()?;
    let moment = |name: &str| match params.given(name).map(Moment::parse) {
        None => Ok(None),
        Some(Some(moment)) => Ok(Some(moment)),
        Some(None) => {
            Err(Problem::invalid(name, format!("{name}: must be a time as in 2026-01-01T00:00:00Z")))
        }
    };
    // A misspelt one would look like an empty history.
    let one_of = |name: &str, all: &[&str]| match params.given(name) {
        None => Ok(None),
        Some(text) if all.contains(&text) => Ok(Some(text.to_owned())),
        Some(_) => Err(Problem::invalid(name, format!("{name}: must be one of {}", all.join(", ")))),
    };
    let filter = InvocationFilter {
        status: one_of("status", STATUSES)?,
        trigger: one_of("trigger", TRIGGERS)?,
        since: moment("since")?,
        until: moment("until")?,
    };
    let after = match params.cursor("i")? {
        None => None,
        Some(parts) => Some(after(&parts).ok_or_else(|| {
            Problem::invalid("cursor", "cursor: not one that this list has given as 'next'")
        })?),
    };
    app.function(&function).await?;
    let mut rows = app.records.invocations(&function, &filter, after, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows
        .last()
        .filter(|_| more)
        .map(|row| input::cursor("i", &format!("{} {}", row.started_at.0, row.id)));
    render::list(rows.iter().map(|row| Value::Object(render::invocation(row))).collect(), next)
}

fn after(parts: &[String]) -> Option<After> {
    let [started_at, id] = parts else { return None };
    Some(After { started_at: Moment(started_at.parse().ok()?), id: id.parse().ok()? })
}

/// The record of an id that the path names.
pub(super) async fn record(app: &App, entered: &Entered, id: &str) -> Result<InvocationRow, Problem> {
    let not_there = || entered.no("invocation", id);
    let id: Uuid = id.parse().map_err(|_| not_there())?;
    app.records.invocation(&entered.namespace, id).await?.ok_or_else(not_there)
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, id)): Two) -> Answer {
    let row = record(&app, &entered, &id).await?;
    let mut object = render::invocation(&row);
    let earlier = if row.attempt > 1 {
        app.records.earlier_attempts(&entered.namespace, row.id).await?
    } else {
        Vec::new()
    };
    // As it came from the supervisor; what is no JSON by now is shown as nothing, the rest of the record all the same.
    let kept = |text: &Option<String>| {
        text.as_deref().and_then(|t| serde_json::from_str(t).ok()).unwrap_or(Value::Null)
    };
    let mut request = kept(&row.request);
    if let Value::Object(request) = &mut request {
        request.insert("method".to_owned(), json!(row.method));
        request.insert("path".to_owned(), json!(row.path));
    }
    object.insert("request".to_owned(), request);
    object.insert("result".to_owned(), kept(&row.result));
    object.insert("error".to_owned(), kept(&row.error));
    let earlier = earlier.iter().map(|row| {
        let mut object = render::invocation(row);
        object.insert("error".to_owned(), kept(&row.error));
        Value::Object(object)
    });
    object.insert("earlier_attempts".to_owned(), Value::Array(earlier.collect()));
    render::shown(&object)
}
