//! `/v1/namespaces/{ns}/invocations/{id}/logs`, `/v1/namespaces/{ns}/functions/{name}/logs`.

use std::collections::VecDeque;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Answer, Shared, Two, function_ref, input, invocations, render};
use crate::auth::{Caller, Role};
use crate::problem::Problem;
use crate::store::{After, InvocationFilter};

/// Lines of a function's log, if the caller does not say how many.
const DEFAULT_TAIL: u32 = 100;
const MAX_TAIL: u32 = 10_000;
/// Records that are looked at together.
const PAGE: u32 = 50;

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    invocation_id: Option<Uuid>,
    time: String,
    stream: String,
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
}

fn lines(lists: &[String], invocation_id: Option<Uuid>) -> impl DoubleEndedIterator<Item = Line> {
    let parsed: Vec<Line> =
        lists.iter().flat_map(|list| serde_json::from_str::<Vec<Line>>(list).unwrap_or_default()).collect();
    parsed.into_iter().map(move |line| Line { invocation_id, ..line })
}

fn rendered(lines: &[Line], headers: &HeaderMap, params: &input::Params) -> Answer {
    if params.get("follow").is_some_and(|follow| follow != "false") {
        return Err(Problem::invalid(
            "follow",
            "follow: this host can't follow a log; ask again for what has come since",
        ));
    }
    let accept: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    let mut kinds = accept.iter().map(|part| part.split(';').next().unwrap_or_default().trim());
    // The first of the two that the caller names; a line a line for one who does not care.
    let named = kinds.find(|kind| matches!(*kind, "application/json" | "text/plain"));
    if named == Some("application/json") {
        return render::json_response(StatusCode::OK, &json!({"items": lines, "next": null}));
    }
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.text);
        text.push('\n');
    }
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

pub(super) async fn of_invocation(
    State(app): Shared,
    caller: Caller,
    Path((ns, id)): Two,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let (namespace, row) = invocations::record(&app, &caller, &ns, &id).await?;
    let lists = app.store.log_lines(&namespace, row.id, row.attempt).await?;
    rendered(&lines(&lists, None).collect::<Vec<_>>(), &headers, &input::Params::parse(query.as_deref()))
}

/// The last lines of its last calls, call by call.
pub(super) async fn of_function(
    State(app): Shared,
    caller: Caller,
    Path((ns, name)): Two,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let function = function_ref(&caller, &ns, &name, Role::Viewer)?;
    let params = input::Params::parse(query.as_deref());
    let tail = params.number("tail", DEFAULT_TAIL, MAX_TAIL)? as usize;
    app.function(&function).await?;
    let mut found = VecDeque::new();
    let mut after = None;
    'pages: loop {
        let rows = app.store.invocations(&function, &InvocationFilter::default(), after, PAGE).await?;
        for row in &rows {
            // Still running, it may have written; ended without a byte, it has not.
            if row.log_bytes == Some(0) {
                continue;
            }
            let lists = app.store.log_lines(&function.namespace, row.id, row.attempt).await?;
            for line in lines(&lists, Some(row.id)).rev() {
                found.push_front(line);
                if found.len() == tail {
                    break 'pages;
                }
            }
        }
        match rows.last().filter(|_| rows.len() == PAGE as usize) {
            Some(last) => after = Some(After { started_at: last.started_at, id: last.id }),
            None => break,
        }
    }
    rendered(found.make_contiguous(), &headers, &params)
}
