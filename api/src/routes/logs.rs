//! `/v1/namespaces/{ns}/invocations/{id}/logs`, `/v1/namespaces/{ns}/functions/{name}/logs`.

mod form;
mod live;

use std::collections::VecDeque;

use axum::extract::{Path, RawQuery, State};
use http::HeaderMap;
use sless_backend::FunctionRef;

use super::{Answer, Entered, Shared, Two, input, invocations};
use crate::app::App;
use crate::problem::Problem;
use crate::store::{After, InvocationFilter, LogRow};

pub(super) use form::{Form, Line, follows};
pub(super) use live::Live;

/// Lines of a function's log, if the caller does not say how many.
const DEFAULT_TAIL: u32 = 100;
const MAX_TAIL: u32 = 10_000;
/// Records that are looked at together.
const PAGE: u32 = 50;

/// The lines of a row. What can't be read was not written by a supervisor of ours, and is left out.
fn parsed(list: &str) -> Vec<Line> {
    serde_json::from_str(list).unwrap_or_default()
}

/// The same, each with its invocation.
fn of_function_line(row: &LogRow) -> Vec<Line> {
    parsed(&row.lines).into_iter().map(|line| Line { invocation_id: Some(row.id), ..line }).collect()
}

pub(super) async fn of_invocation(
    State(app): Shared,
    entered: Entered,
    Path((_, id)): Two,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let row = invocations::record(&app, &entered, &id).await?;
    let form = Form::of(&headers);
    if follows(&input::Params::parse(query.as_deref()))? {
        let (response, live) = Live::start(app, form);
        tokio::spawn(live::invocation(live, entered.0, row.id));
        return Ok(response);
    }
    let rows = app.store.log_lines(&entered.0, row.id, row.attempt, None).await?;
    Ok(form.whole(&rows.iter().flat_map(|row| parsed(&row.lines)).collect::<Vec<_>>()))
}

/// The last lines of its last calls, call by call; followed, what comes from now on.
pub(super) async fn of_function(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let function = entered.function(&name)?;
    let params = input::Params::parse(query.as_deref());
    let follow = follows(&params)?;
    let tail = params.number("tail", DEFAULT_TAIL, MAX_TAIL)? as usize;
    app.function(&function).await?;
    let form = Form::of(&headers);
    if !follow {
        return Ok(form.whole(&last_lines(&app, &function, tail, i64::MAX).await?));
    }
    // Where "from now on" begins, before the lines up to there are gathered: none is missed and none comes twice.
    let now = app.store.log_end().await?;
    let last = match params.get("tail") {
        Some(_) => last_lines(&app, &function, tail, now).await?,
        None => Vec::new(),
    };
    let (response, live) = Live::start(app, form);
    tokio::spawn(live::function(live, function, last, now));
    Ok(response)
}

/// The last `tail` lines of those that were stored up to `end`.
async fn last_lines(app: &App, function: &FunctionRef, tail: usize, end: i64) -> Result<Vec<Line>, Problem> {
    let mut found = VecDeque::new();
    let mut after = None;
    'pages: loop {
        let rows = app.store.invocations(function, &InvocationFilter::default(), after, PAGE).await?;
        for row in &rows {
            // Still running, it may have written; ended without a byte, it has not.
            if row.log_bytes == Some(0) {
                continue;
            }
            let rows = app.store.log_lines(&function.namespace, row.id, row.attempt, None).await?;
            let known = rows.iter().filter(|row| row.place <= end);
            for line in known.flat_map(of_function_line).collect::<Vec<_>>().into_iter().rev() {
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
    Ok(found.into())
}
