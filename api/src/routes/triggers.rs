//! `/v1/namespaces/{ns}/triggers[/{name}]`.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use http::header::IF_MATCH;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};
use sless_backend::{FunctionRef, TriggerRow, TriggerWish};
use sless_core::{FunctionName, HttpTrigger, Namespace, TriggerKind, TriggerName};

use super::{Answer, Entered, Shared, Two, functions, input, render};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::StoreError;

/// Given by `GET`, ignored when they come back.
const READ_ONLY: &[&str] =
    &["namespace", "active", "url", "last_fired_at", "next_fire_at", "message", "created_at", "updated_at"];
const TRIES: usize = 8;

fn parse(app: &App, object: &Map<String, Value>) -> Result<TriggerWish, Problem> {
    input::only_known(object, |field| {
        matches!(field, "name" | "type" | "enabled" | "function")
            || HttpTrigger::FIELDS.contains(&field)
            || READ_ONLY.contains(&field)
    })?;
    let kind = input::string(object, "type")?.ok_or_else(|| Problem::invalid("type", "type: is missing"))?;
    let kind = TriggerKind::parse(kind).ok_or_else(|| {
        Problem::invalid("type", format!("type: {kind:?} is no type of trigger, 'http' is"))
    })?;
    let enabled = match object.get("enabled") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(enabled)) => *enabled,
        Some(_) => return Err(Problem::invalid("enabled", "enabled: must be true or false")),
    };
    let http = HttpTrigger::from_object(object)?;
    if http.host.as_ref().is_some_and(|host| app.is_own_host(host)) {
        return Err(Problem::invalid("host", "host: is the API's own, where all functions are"));
    }
    let name = input::string(object, "function")?
        .ok_or_else(|| Problem::invalid("function", "function: is missing"))?;
    let function: FunctionName = name.parse().map_err(|_| no_function(name))?;
    Ok(TriggerWish { kind, enabled, function, http })
}

fn no_function(name: &str) -> Problem {
    Problem::invalid("function", format!("function: there is no function {name:?} in this namespace"))
}

async fn is_there(app: &App, namespace: &Namespace, name: &FunctionName) -> Result<bool, Problem> {
    let function = FunctionRef { namespace: namespace.clone(), name: name.clone() };
    Ok(app.definitions.function(&function).await?.is_some_and(|row| !row.deleting))
}

/// A body that names a function must name one that is there.
async fn check_function(app: &App, namespace: &Namespace, name: &FunctionName) -> Result<(), Problem> {
    if is_there(app, namespace, name).await? { Ok(()) } else { Err(no_function(name.as_str())) }
}

async fn trigger(app: &App, entered: &Entered, name: &str) -> Result<TriggerRow, Problem> {
    let parsed: TriggerName = entered.named("trigger", name)?;
    app.definitions.trigger(&entered.namespace, &parsed).await?.ok_or_else(|| entered.no("trigger", name))
}

async fn rendered(app: &App, row: &TriggerRow) -> Result<Value, Problem> {
    let there = is_there(app, &row.namespace, &row.wish.function).await?;
    Ok(render::trigger(app, row, there))
}

async fn shown(app: &App, status: StatusCode, row: &TriggerRow) -> Answer {
    render::one(status, row, &rendered(app, row).await?)
}

pub(super) async fn list(State(app): Shared, entered: Entered, RawQuery(query): RawQuery) -> Answer {
    let page = input::Page::parse(query.as_deref(), "t")?;
    let rows = app.definitions.triggers(&entered.namespace, page.below, page.limit + 1).await?;
    let (rows, next) = page.cut(rows, |row| row.id);
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        items.push(rendered(&app, row).await?);
    }
    render::list(items, next)
}

async fn insert(
    app: &App,
    entered: &Entered,
    name: &TriggerName,
    wish: &TriggerWish,
) -> Result<TriggerRow, Problem> {
    entered.to_write(app).await?;
    let inserted = app.definitions.insert_trigger(&entered.namespace, name, wish).await;
    let row = inserted.map_err(|error| match error {
        StoreError::Exists => Problem::new(
            Code::AlreadyExists,
            format!("trigger {:?} exists already in this namespace", name.as_str()),
        ),
        other => other.into(),
    })?;
    app.reload_routes().await?;
    Ok(row)
}

/// `None` if somebody else was quicker and it makes sense to try again.
async fn write(
    app: &App,
    row: TriggerRow,
    wish: TriggerWish,
    headers: &HeaderMap,
) -> Result<Option<TriggerRow>, Problem> {
    if wish.kind != row.wish.kind {
        return Err(Problem::invalid("type", "type: can't be changed; make a trigger with another name"));
    }
    match app.definitions.change_trigger(&row, &wish).await {
        Ok(row) => {
            app.reload_routes().await?;
            Ok(Some(row))
        }
        Err(StoreError::Stale) if headers.contains_key(IF_MATCH) => Err(Problem::stale()),
        Err(StoreError::Stale) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn create(State(app): Shared, entered: Entered, body: Body) -> Answer {
    let object = input::object(body).await?;
    let name: TriggerName = input::name(&object)?.parse()?;
    let wish = parse(&app, &object)?;
    check_function(&app, &entered.namespace, &wish.function).await?;
    let row = insert(&app, &entered, &name, &wish).await?;
    shown(&app, StatusCode::CREATED, &row).await
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let row = trigger(&app, &entered, &name).await?;
    shown(&app, StatusCode::OK, &row).await
}

pub(super) async fn put(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let name: TriggerName = name.parse()?;
    let object = input::object(body).await?;
    input::same_name(&object, name.as_str())?;
    let wish = parse(&app, &object)?;
    for _ in 0..TRIES {
        check_function(&app, &entered.namespace, &wish.function).await?;
        let Some(row) = app.definitions.trigger(&entered.namespace, &name).await? else {
            if headers.contains_key(IF_MATCH) {
                return Err(Problem::stale());
            }
            match insert(&app, &entered, &name, &wish).await {
                Err(problem) if problem.code == Code::AlreadyExists => continue,
                other => return shown(&app, StatusCode::CREATED, &other?).await,
            }
        };
        input::check_if_match(&headers, &row)?;
        if let Some(row) = write(&app, row, wish.clone(), &headers).await? {
            return shown(&app, StatusCode::OK, &row).await;
        }
    }
    Err(functions::busy())
}

pub(super) async fn patch(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    trigger(&app, &entered, &name).await?;
    let patch = input::object(body).await?;
    if input::string(&patch, "name")?.is_some_and(|other| other != name) {
        return Err(Problem::invalid("name", "name: can't be changed"));
    }
    for _ in 0..TRIES {
        let row = trigger(&app, &entered, &name).await?;
        let mut object = row.wish.http.to_object();
        object.insert("type".to_owned(), row.wish.kind.as_str().into());
        object.insert("enabled".to_owned(), row.wish.enabled.into());
        object.insert("function".to_owned(), row.wish.function.as_str().into());
        input::merge(&mut object, patch.clone());
        let wish = parse(&app, &object)?;
        // One that is gone can't stand in the way of a change of something else.
        if patch.contains_key("function") {
            check_function(&app, &row.namespace, &wish.function).await?;
        }
        input::check_if_match(&headers, &row)?;
        if let Some(row) = write(&app, row, wish, &headers).await? {
            return shown(&app, StatusCode::OK, &row).await;
        }
    }
    Err(functions::busy())
}

pub(super) async fn delete(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
) -> Answer {
    for _ in 0..TRIES {
        let row = trigger(&app, &entered, &name).await?;
        input::check_if_match(&headers, &row)?;
        match app.definitions.remove_trigger(&row).await {
            Err(StoreError::Stale) if headers.contains_key(IF_MATCH) => return Err(Problem::stale()),
            Err(StoreError::Stale) => {}
            other => {
                other?;
                app.reload_routes().await?;
                return render::json_response(StatusCode::ACCEPTED, &rendered(&app, &row).await?);
            }
        }
    }
    Err(functions::busy())
}
