//! `/v1/namespaces/{ns}/triggers[/{name}]`.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};
use sless_backend::FunctionRef;
use sless_core::{FunctionName, Namespace, TriggerKind, TriggerName};

use super::{Answer, Entered, Shared, Two, functions, input, render};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::{StoreError, TriggerRow};

/// Given by `GET`, ignored when they come back.
const READ_ONLY: &[&str] =
    &["namespace", "active", "url", "last_fired_at", "next_fire_at", "message", "created_at", "updated_at"];
const TRIES: usize = 8;

/// What a trigger's body says.
struct Wanted {
    kind: TriggerKind,
    function: FunctionName,
    enabled: bool,
}

async fn parse(app: &App, namespace: &Namespace, object: &Map<String, Value>) -> Result<Wanted, Problem> {
    input::only_known(object, |field| {
        matches!(field, "name" | "type" | "enabled" | "function") || READ_ONLY.contains(&field)
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
    let name = input::string(object, "function")?
        .ok_or_else(|| Problem::invalid("function", "function: is missing"))?;
    let not_there =
        || Problem::invalid("function", format!("function: there is no function {name:?} in this namespace"));
    let function: FunctionName = name.parse().map_err(|_| not_there())?;
    let there =
        app.store.function(&FunctionRef { namespace: namespace.clone(), name: function.clone() }).await?;
    if there.is_none_or(|row| row.deleting) {
        return Err(not_there());
    }
    Ok(Wanted { kind, function, enabled })
}

async fn trigger(app: &App, entered: &Entered, name: &str) -> Result<TriggerRow, Problem> {
    let parsed: TriggerName = entered.named("trigger", name)?;
    app.store.trigger(&entered.0, &parsed).await?.ok_or_else(|| entered.no("trigger", name))
}

async fn rendered(app: &App, row: &TriggerRow) -> Result<Value, Problem> {
    let function = FunctionRef { namespace: row.namespace.clone(), name: row.function.clone() };
    let there = app.store.function(&function).await?.is_some_and(|f| !f.deleting);
    Ok(render::trigger(app, row, there))
}

pub(super) async fn list(State(app): Shared, entered: Entered, RawQuery(query): RawQuery) -> Answer {
    let page = input::Page::parse(query.as_deref(), "t")?;
    let rows = app.store.triggers(&entered.0, page.below, page.limit + 1).await?;
    let (rows, next) = page.cut(rows, |row| row.id);
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        items.push(rendered(&app, row).await?);
    }
    render::list(items, next)
}

async fn insert(
    app: &App,
    namespace: &Namespace,
    name: &TriggerName,
    wanted: &Wanted,
) -> Result<TriggerRow, Problem> {
    let inserted =
        app.store.insert_trigger(namespace, name, wanted.kind, &wanted.function, wanted.enabled).await;
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
    wanted: Wanted,
    headers: &HeaderMap,
) -> Result<Option<Value>, Problem> {
    if wanted.kind != row.kind {
        return Err(Problem::invalid("type", "type: can't be changed; make a trigger with another name"));
    }
    match app
        .store
        .update_trigger(&TriggerRow { enabled: wanted.enabled, function: wanted.function, ..row })
        .await
    {
        Ok(row) => {
            app.reload_routes().await?;
            Ok(Some(rendered(app, &row).await?))
        }
        Err(StoreError::Stale) if headers.contains_key(http::header::IF_MATCH) => Err(Problem::stale()),
        Err(StoreError::Stale) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn create(State(app): Shared, Entered(namespace): Entered, body: Body) -> Answer {
    let object = input::object(body).await?;
    let name: TriggerName = input::name(&object)?.parse()?;
    let wanted = parse(&app, &namespace, &object).await?;
    let row = insert(&app, &namespace, &name, &wanted).await?;
    render::one(StatusCode::CREATED, row.version, &rendered(&app, &row).await?)
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let row = trigger(&app, &entered, &name).await?;
    render::one(StatusCode::OK, row.version, &rendered(&app, &row).await?)
}

pub(super) async fn put(
    State(app): Shared,
    Entered(namespace): Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let name: TriggerName = name.parse()?;
    let object = input::object(body).await?;
    input::same_name(&object, name.as_str())?;
    for _ in 0..TRIES {
        let wanted = parse(&app, &namespace, &object).await?;
        let Some(row) = app.store.trigger(&namespace, &name).await? else {
            if headers.contains_key(http::header::IF_MATCH) {
                return Err(Problem::stale());
            }
            match insert(&app, &namespace, &name, &wanted).await {
                Err(problem) if problem.code == Code::AlreadyExists => continue,
                other => {
                    let row = other?;
                    return render::one(StatusCode::CREATED, row.version, &rendered(&app, &row).await?);
                }
            }
        };
        input::check_if_match(&headers, row.version)?;
        let version = row.version + 1;
        if let Some(value) = write(&app, row, wanted, &headers).await? {
            return render::one(StatusCode::OK, version, &value);
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
        input::check_if_match(&headers, row.version)?;
        let mut object = Map::from_iter([
            ("type".to_owned(), row.kind.as_str().into()),
            ("enabled".to_owned(), row.enabled.into()),
            ("function".to_owned(), row.function.as_str().into()),
        ]);
        input::merge(&mut object, patch.clone());
        let wanted = parse(&app, &row.namespace, &object).await?;
        let version = row.version + 1;
        if let Some(value) = write(&app, row, wanted, &headers).await? {
            return render::one(StatusCode::OK, version, &value);
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
    let row = trigger(&app, &entered, &name).await?;
    input::check_if_match(&headers, row.version)?;
    app.store.remove_trigger(&row.namespace, &row.name).await?;
    app.reload_routes().await?;
    render::json_response(StatusCode::ACCEPTED, &rendered(&app, &row).await?)
}
