//! `/v1/namespaces/{ns}/functions[/{name}]`.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};
use sless_backend::{CodeRef, FunctionChange, FunctionRef, FunctionRow, Moment, RevisionRow};
use sless_core::{FunctionSettings, Runtime, SETTINGS, revision_name};

use super::{Answer, Entered, Shared, Two, input, render};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::StoreError;

/// Given by `GET`, ignored when they come back.
const READ_ONLY: &[&str] = &[
    "namespace",
    "phase",
    "message",
    "url",
    "revision",
    "code_sha256",
    "content_sha256",
    "image",
    "conditions",
    "created_at",
    "updated_at",
];

/// How often a change is tried on a function that others change at the same time.
const TRIES: usize = 8;

pub(super) async fn list(State(app): Shared, entered: Entered, RawQuery(query): RawQuery) -> Answer {
    let page = input::Page::parse(query.as_deref(), "f")?;
    let rows = app.definitions.functions(&entered.namespace, page.below, page.limit + 1).await?;
    let (rows, next) = page.cut(rows, |row| row.id);
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        items.push(render::function(&app, row).await?);
    }
    render::list(items, next)
}

pub(super) async fn create(State(app): Shared, entered: Entered, body: Body) -> Answer {
    let object = input::object(body).await?;
    let name = input::name(&object)?.parse()?;
    let (runtime, settings) = parse(&app, &object, None)?;
    entered.to_write(&app).await?;
    let function = FunctionRef { namespace: entered.namespace, name };
    let row = insert(&app, &function, &runtime, &settings).await?;
    render::one(StatusCode::CREATED, &row, &render::function(&app, &row).await?)
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let function = entered.function(&name)?;
    let row = app.function(&function).await?;
    render::one(StatusCode::OK, &row, &render::function(&app, &row).await?)
}

pub(super) async fn put(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let function = FunctionRef { namespace: entered.namespace.clone(), name: name.parse()? };
    let object = input::object(body).await?;
    input::same_name(&object, &name)?;
    for _ in 0..TRIES {
        let Some(row) = app.definitions.function(&function).await? else {
            if headers.contains_key(http::header::IF_MATCH) {
                return Err(Problem::stale());
            }
            let (runtime, settings) = parse(&app, &object, None)?;
            entered.to_write(&app).await?;
            match insert(&app, &function, &runtime, &settings).await {
                Err(problem) if problem.code == Code::AlreadyExists => continue,
                other => {
                    let row = other?;
                    return render::one(StatusCode::CREATED, &row, &render::function(&app, &row).await?);
                }
            }
        };
        // A body that is wrong is wrong whatever the version.
        let (_, settings) = parse(&app, &object, Some(&row.runtime))?;
        input::check_if_match(&headers, &row)?;
        if let Some(row) = write(&app, row, settings, None, &headers).await? {
            return render::one(StatusCode::OK, &row, &render::function(&app, &row).await?);
        }
    }
    Err(busy())
}

pub(super) async fn patch(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let function = entered.function(&name)?;
    app.function(&function).await?;
    let patch = input::object(body).await?;
    if input::string(&patch, "name")?.is_some_and(|other| other != name) {
        return Err(Problem::invalid("name", "name: can't be changed"));
    }
    for _ in 0..TRIES {
        let row = app.function(&function).await?;
        let mut object = row.settings.to_object();
        object.insert("runtime".to_owned(), row.runtime.as_str().into());
        let mut patch = patch.clone();
        // Null is the default, and there is none for this.
        if patch.get("runtime") == Some(&Value::Null) {
            patch.remove("runtime");
        }
        input::merge(&mut object, patch);
        let (_, settings) = parse(&app, &object, Some(&row.runtime))?;
        input::check_if_match(&headers, &row)?;
        if let Some(row) = write(&app, row, settings, None, &headers).await? {
            return render::one(StatusCode::OK, &row, &render::function(&app, &row).await?);
        }
    }
    Err(busy())
}

pub(super) async fn delete(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
) -> Answer {
    let function = entered.function(&name)?;
    for _ in 0..TRIES {
        let row = app.function(&function).await?;
        input::check_if_match(&headers, &row)?;
        let changed = if row.deleting { Ok(row) } else { app.definitions.delete_function(&row).await };
        match changed {
            Err(StoreError::Stale) => {}
            other => {
                let row = other?;
                app.reload_routes().await?;
                app.tell(function);
                return render::one(StatusCode::ACCEPTED, &row, &render::function(&app, &row).await?);
            }
        }
    }
    Err(busy())
}

/// Somebody else was quicker each time.
pub(super) fn busy() -> Problem {
    Problem::new(Code::Conflict, "others change it at the same time, try again")
}

async fn insert(
    app: &App,
    function: &FunctionRef,
    runtime: &Runtime,
    settings: &FunctionSettings,
) -> Result<FunctionRow, Problem> {
    let inserted = app.definitions.insert_function(function, runtime, settings).await;
    let row = inserted.map_err(|error| match error {
        StoreError::Exists => Problem::new(
            Code::AlreadyExists,
            format!("function {:?} exists already in this namespace", function.name.as_str()),
        ),
        other => other.into(),
    })?;
    app.reload_routes().await?;
    Ok(row)
}

/// Reads a function's body; `fixed` is the runtime that it has.
fn parse(
    app: &App,
    object: &Map<String, Value>,
    fixed: Option<&Runtime>,
) -> Result<(Runtime, FunctionSettings), Problem> {
    input::only_known(object, |field| {
        field == "name"
            || field == "runtime"
            || READ_ONLY.contains(&field)
            || SETTINGS.iter().any(|s| s.name == field && !field.contains('.'))
    })?;
    let runtime: Runtime = match (input::string(object, "runtime")?, fixed) {
        (Some(text), _) => text.parse()?,
        (None, Some(fixed)) => fixed.clone(),
        (None, None) => return Err(Problem::invalid("runtime", "runtime: is missing")),
    };
    let runtimes = app.backend.runtimes();
    if fixed.is_some_and(|fixed| *fixed != runtime) {
        return Err(Problem::invalid(
            "runtime",
            "runtime: can't be changed; make a function with another name",
        ));
    }
    if fixed.is_none() && !runtimes.contains(&runtime) {
        let names = runtimes.iter().map(Runtime::as_str).collect::<Vec<_>>().join(", ");
        return Err(Problem::invalid(
            "runtime",
            format!("runtime: {:?} is not one of {names}", runtime.as_str()),
        ));
    }
    let settings = FunctionSettings::from_object(object)?;
    Ok((runtime, settings))
}

/// Writes settings, and code if there is some, over `row`. `None` if somebody else was quicker and it makes sense to try again.
pub(super) async fn write(
    app: &App,
    row: FunctionRow,
    settings: FunctionSettings,
    code: Option<CodeRef>,
    headers: &HeaderMap,
) -> Result<Option<FunctionRow>, Problem> {
    if row.deleting {
        return Err(Problem::new(Code::Conflict, "the function is being deleted"));
    }
    let known = match &row.wanted {
        Some(wanted) => app.definitions.revision(&row, wanted).await?,
        None => None,
    };
    let changed = row.settings != settings || code.is_some();
    let revision = code.or(known.map(|r| r.code)).map(|code| RevisionRow {
        name: revision_name(&row.runtime, &settings, &code.content_sha256),
        settings: settings.clone(),
        code,
        image: None,
        created_at: Moment::now(),
    });
    let change = FunctionChange { settings, wanted: revision.filter(|_| changed) };
    match app.definitions.change_function(&row, &change).await {
        Ok(row) => {
            if changed && row.wanted.is_some() {
                app.tell(row.function.clone());
            }
            Ok(Some(row))
        }
        // With a condition, the next try would only find that it does not hold.
        Err(StoreError::Stale) if headers.contains_key(http::header::IF_MATCH) => Err(Problem::stale()),
        Err(StoreError::Stale) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
