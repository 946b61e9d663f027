//! `/v1/namespaces/{ns}/functions/{name}/revisions`, `…/rollback`.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use sless_backend::{FunctionChange, FunctionRow, Moment, RevisionRow};

use super::{Answer, Entered, Shared, Two, functions, input, render};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::StoreError;

const TRIES: usize = 8;

pub(super) async fn list(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    RawQuery(query): RawQuery,
) -> Answer {
    let function = entered.function(&name)?;
    let params = input::Params::parse(query.as_deref());
    let limit = params.limit()? as usize;
    let after = match params.cursor("r")? {
        None => None,
        Some(parts) => Some(after(&parts).ok_or_else(|| {
            Problem::invalid("cursor", "cursor: not one that this list has given as 'next'")
        })?),
    };
    let row = app.function(&function).await?;
    let active = app.backend.status(&function).and_then(|s| s.active_revision).or_else(|| row.active.clone());
    // There are few: they are cut into pages only because every list is.
    let mut rows = app.definitions.revisions(&row).await?;
    let place = |row: &RevisionRow| (row.created_at, row.name.clone());
    rows.sort_by_key(|row| std::cmp::Reverse(place(row)));
    rows.retain(|row| after.as_ref().is_none_or(|after| place(row) < *after));
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more);
    let next = next.map(|row| input::cursor("r", &format!("{} {}", row.created_at.0, row.name)));
    let items = rows.iter().map(|revision| {
        json!({
            "revision": revision.name,
            "code_sha256": revision.code.sha256,
            "content_sha256": revision.code.content_sha256,
            "created_at": revision.created_at,
            "active": active.as_deref() == Some(&revision.name),
        })
    });
    render::list(items.collect(), next)
}

fn after(parts: &[String]) -> Option<(Moment, String)> {
    let [created_at, name] = parts else { return None };
    Some((Moment(created_at.parse().ok()?), name.clone()))
}

/// The `revision` that a body names; `None` if it names none.
pub(super) async fn named(
    app: &App,
    row: &FunctionRow,
    object: &Map<String, Value>,
) -> Result<Option<RevisionRow>, Problem> {
    input::only_known(object, |field| field == "revision")?;
    let Some(name) = input::string(object, "revision")? else { return Ok(None) };
    let found = app.definitions.revision(row, name).await?;
    found.map(Some).ok_or_else(|| {
        let text = format!("revision: function {:?} has no revision {name:?}", row.function.name.as_str());
        Problem::invalid("revision", text)
    })
}

/// Back to an earlier revision, code and settings. Nothing is built: its code is kept as long as it is.
pub(super) async fn rollback(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let function = entered.function(&name)?;
    app.function(&function).await?;
    let object = input::object(body).await?;
    for _ in 0..TRIES {
        // So that it is not forgotten before it is wanted.
        let _not_removed = app.code_in_use.read().await;
        let row = app.function(&function).await?;
        if row.deleting {
            return Err(Problem::new(Code::Conflict, "the function is being deleted"));
        }
        let revision = named(&app, &row, &object)
            .await?
            .ok_or_else(|| Problem::invalid("revision", "revision: is missing"))?;
        input::check_if_match(&headers, &row)?;
        let settings = row.settings.clone().with_revised_of(&revision.settings);
        // Also when it is wanted already: it may have failed, and then it is tried once more.
        let change = FunctionChange { settings, wanted: Some(revision) };
        match app.definitions.change_function(&row, &change).await {
            Err(StoreError::Stale) => {}
            Err(StoreError::NoSecret(name)) => {
                let text = format!("revision: it names the secret {name:?}, which is not there any more");
                return Err(Problem::invalid("revision", text));
            }
            written => {
                let row = written?;
                app.tell(function);
                return render::one(StatusCode::ACCEPTED, &row, &render::function(&app, &row).await?);
            }
        }
    }
    Err(functions::busy())
}
