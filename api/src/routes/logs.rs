//! `/v1/namespaces/{ns}/invocations/{id}/logs`, `/v1/namespaces/{ns}/functions/{name}/logs`.

mod form;
mod live;
mod place;

use std::collections::VecDeque;

use axum::extract::{Path, RawQuery, State};
use http::HeaderMap;
use serde_json::Value;
use sless_backend::FunctionRef;

use super::{Answer, Entered, Shared, Two, input, invocations};
use crate::app::App;
use crate::problem::Problem;
use crate::store::{After, InvocationFilter};

pub(super) use form::{Form, Line, follows};
pub(super) use live::{Live, Next, Until};
use place::{OfFunction, OfInvocation};

/// Lines of a function's log, if the caller does not say how many.
const DEFAULT_TAIL: u32 = 100;
const MAX_TAIL: u32 = 10_000;
/// Records that are looked at together.
const PAGE: u32 = 50;

/// The lines of a row. What can't be read was not written by a supervisor of ours, and is left out; the others stay.
fn parsed(list: &str) -> Vec<Line> {
    serde_json::from_str(list).unwrap_or_else(|_| {
        let lines: Vec<Value> = serde_json::from_str(list).unwrap_or_default();
        lines.into_iter().filter_map(|line| serde_json::from_value(line).ok()).collect()
    })
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
    let follow = follows(&input::Params::parse(query.as_deref()))?;
    let last = form.comes_back(OfInvocation::of(&headers));
    if follow && row.status.is_none() {
        let (response, live) = Live::start(app, form);
        tokio::spawn(live::invocation(live, entered.namespace, row.id, last));
        return Ok(response);
    }
    let beyond = last.filter(|last| last.attempt == row.attempt).and_then(OfInvocation::before);
    let rows = app.records.log_lines(&entered.namespace, row.id, row.attempt, beyond).await?;
    let lines = OfInvocation::lines(&rows, row.attempt, last);
    if last.is_some() && lines.is_empty() && row.status.is_some() {
        return Ok(Form::nothing_more());
    }
    Ok(form.whole(&lines))
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
    let now = app.records.log_end().await?;
    let (first, from) = match (form.comes_back(OfFunction::of(&headers)), params.get("tail")) {
        (Some(last), _) => (Vec::new(), last),
        (None, Some(_)) => (last_lines(&app, &function, tail, now).await?, OfFunction::end(now)),
        (None, None) => (Vec::new(), OfFunction::end(now)),
    };
    let (response, live) = Live::start(app, form);
    tokio::spawn(live::function(live, function, first, from));
    Ok(response)
}

/// The last `tail` lines of those that were stored up to `end`.
async fn last_lines(app: &App, function: &FunctionRef, tail: usize, end: i64) -> Result<Vec<Line>, Problem> {
    let mut found = VecDeque::new();
    let mut after = None;
    'pages: loop {
        let rows = app.records.invocations(function, &InvocationFilter::default(), after, PAGE).await?;
        for row in &rows {
            // Still running, it may have written; ended without a byte, it has not.
            if row.log_bytes == Some(0) {
                continue;
            }
            let rows = app.records.log_lines(&function.namespace, row.id, row.attempt, None).await?;
            let known = rows.iter().filter(|row| row.place <= end);
            let lines = known.flat_map(|row| OfFunction::lines(row, OfFunction::end(0)));
            for line in lines.collect::<Vec<_>>().into_iter().rev() {
                // They come call by call, which is not the order of their places: only the last one is one to go on from.
                let mark = found.is_empty().then(|| OfFunction::end(end).mark());
                found.push_front(Line { mark, ..line });
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
