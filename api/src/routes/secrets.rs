//! `/v1/namespaces/{ns}/secrets[/{name}]`.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use http::header::IF_MATCH;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use sless_backend::{Secret, SecretRow};
use sless_core::{SecretName, variables};

use super::tokens::no_content;
use super::{Answer, Entered, Shared, Two, functions, input, render};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::StoreError;

/// Given by `GET`, ignored when they come back.
const READ_ONLY: &[&str] = &["namespace", "keys", "created_at", "updated_at"];
const TRIES: usize = 8;

/// Without what is in it: values never leave.
fn rendered(row: &SecretRow) -> Value {
    json!({
        "namespace": row.namespace,
        "name": row.name,
        "keys": row.keys,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    })
}

async fn secret(app: &App, entered: &Entered, name: &str) -> Result<SecretRow, Problem> {
    let parsed: SecretName = entered.named("secret", name)?;
    app.definitions.secret(&entered.namespace, &parsed).await?.ok_or_else(|| entered.no("secret", name))
}

pub(super) async fn list(State(app): Shared, entered: Entered, RawQuery(query): RawQuery) -> Answer {
    let page = input::Page::parse(query.as_deref(), "s")?;
    let rows = app.definitions.secrets(&entered.namespace, page.below, page.limit + 1).await?;
    let (rows, next) = page.cut(rows, |row| row.id);
    render::list(rows.iter().map(rendered).collect(), next)
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let row = secret(&app, &entered, &name).await?;
    render::one(StatusCode::OK, &row, &rendered(&row))
}

pub(super) async fn put(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let name: SecretName = name.parse()?;
    let object = input::object(body).await?;
    input::only_known(&object, |field| matches!(field, "name" | "data") || READ_ONLY.contains(&field))?;
    input::same_name(&object, name.as_str())?;
    let data = object.get("data").ok_or_else(|| Problem::invalid("data", "data: is missing"))?;
    let values = variables("data", data)?.into_iter().map(|(key, value)| (key, Secret::new(value))).collect();
    for _ in 0..TRIES {
        let Some(row) = app.definitions.secret(&entered.namespace, &name).await? else {
            if headers.contains_key(IF_MATCH) {
                return Err(Problem::stale());
            }
            entered.to_write(&app).await?;
            match app.definitions.insert_secret(&entered.namespace, &name, &values).await {
                Err(StoreError::Exists) => continue,
                other => {
                    let row = other?;
                    return render::one(StatusCode::CREATED, &row, &rendered(&row));
                }
            }
        };
        input::check_if_match(&headers, &row)?;
        match replace(&app, &row, &values).await {
            Err(StoreError::Stale) if headers.contains_key(IF_MATCH) => return Err(Problem::stale()),
            Err(StoreError::Stale) => {}
            other => {
                let row = other?;
                return render::one(StatusCode::OK, &row, &rendered(&row));
            }
        }
    }
    Err(functions::busy())
}

async fn replace(
    app: &App,
    row: &SecretRow,
    values: &BTreeMap<String, Secret>,
) -> Result<SecretRow, StoreError> {
    let (row, functions) = app.definitions.change_secret(row, values).await?;
    for function in functions {
        app.tell(function);
    }
    Ok(row)
}

pub(super) async fn delete(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
) -> Answer {
    for _ in 0..TRIES {
        let row = secret(&app, &entered, &name).await?;
        input::check_if_match(&headers, &row)?;
        match app.definitions.remove_secret(&row).await {
            Err(StoreError::Stale) if headers.contains_key(IF_MATCH) => return Err(Problem::stale()),
            Err(StoreError::Stale) => {}
            other => {
                return match other? {
                    None => Ok(no_content()),
                    Some(function) => Err(Problem::new(
                        Code::Conflict,
                        format!(
                            "function {:?} names the secret {name:?}: take it out of its 'secrets' first",
                            function.name.as_str()
                        ),
                    )),
                };
            }
        }
    }
    Err(functions::busy())
}
