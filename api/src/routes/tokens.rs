//! `/v1/namespaces/{ns}/tokens[/{name}]`.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use sless_core::{Seconds, TokenName};

use super::{Answer, Entered, Shared, Two, input, render};
use crate::app::App;
use crate::auth::{Fresh, Role};
use crate::problem::{Code, Problem};
use crate::store::{StoreError, TokenRow};
use sless_backend::Moment;

/// Given by `GET`, ignored when they come back.
const READ_ONLY: &[&str] = &["namespace", "created_at", "expires_at"];
/// Ten years; who wants a token for longer leaves the field out.
pub(super) const MAX_LIFE_SEC: i64 = 10 * 366 * 86_400;

fn rendered(row: &TokenRow) -> Value {
    json!({
        "namespace": row.namespace,
        "name": row.name,
        "role": row.role,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    })
}

fn role(object: &Map<String, Value>) -> Result<Role, Problem> {
    let text = input::string(object, "role")?.ok_or_else(|| Problem::invalid("role", "role: is missing"))?;
    Role::parse(text).ok_or_else(|| {
        let all = Role::ALL.map(Role::as_str).join(", ");
        Problem::invalid("role", format!("role: {text:?} is not one of {all}"))
    })
}

fn end(object: &Map<String, Value>, now: Moment) -> Result<Option<Moment>, Problem> {
    let seconds = match object.get("expires_in_sec") {
        None | Some(Value::Null) => return Ok(None),
        // 5.0 is the same number as 5 in JSON.
        Some(value) => value
            .as_i64()
            .or_else(|| value.as_f64().and_then(Seconds::new).and_then(Seconds::whole)?.try_into().ok())
            .filter(|seconds| (1..=MAX_LIFE_SEC).contains(seconds)),
    };
    let seconds = seconds.ok_or_else(|| {
        let wanted = format!("expires_in_sec: must be a whole number of seconds from 1 to {MAX_LIFE_SEC}");
        Problem::invalid("expires_in_sec", wanted)
    })?;
    Ok(Some(Moment(now.0.saturating_add(seconds * 1_000_000))))
}

async fn token(app: &App, entered: &Entered, name: &str) -> Result<TokenRow, Problem> {
    let parsed: TokenName = entered.named("token", name)?;
    app.records.token(&entered.namespace, &parsed).await?.ok_or_else(|| entered.no("token", name))
}

pub(super) async fn list(State(app): Shared, entered: Entered, RawQuery(query): RawQuery) -> Answer {
    let page = input::Page::parse(query.as_deref(), "k")?;
    let rows = app.records.tokens(&entered.namespace, page.below, page.limit + 1).await?;
    let (rows, next) = page.cut(rows, |row| row.id);
    render::list(rows.iter().map(rendered).collect(), next)
}

pub(super) async fn create(State(app): Shared, entered: Entered, body: Body) -> Answer {
    let object = input::object(body).await?;
    input::only_known(&object, |field| {
        matches!(field, "name" | "role" | "expires_in_sec") || READ_ONLY.contains(&field)
    })?;
    let name: TokenName = input::name(&object)?.parse()?;
    let role = role(&object)?;
    let expires_at = end(&object, Moment::now())?;
    let fresh = Fresh::make()?;
    entered.to_write(&app).await?;
    let inserted = app.records.insert_token(&entered.namespace, &name, role, &fresh.hash, expires_at).await;
    let row = inserted.map_err(|error| match error {
        StoreError::Exists => Problem::new(
            Code::AlreadyExists,
            format!("token {:?} exists already in this namespace", name.as_str()),
        ),
        other => other.into(),
    })?;
    let mut made = rendered(&row);
    if let Value::Object(made) = &mut made {
        made.insert("token".to_owned(), fresh.text.reveal().into());
    }
    let mut response = render::one(StatusCode::CREATED, &row, &made)?;
    response.headers_mut().insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    Ok(response)
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let row = token(&app, &entered, &name).await?;
    render::one(StatusCode::OK, &row, &rendered(&row))
}

pub(super) async fn delete(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    headers: HeaderMap,
) -> Answer {
    let row = token(&app, &entered, &name).await?;
    input::check_if_match(&headers, &row)?;
    match app.records.remove_token(&row).await {
        Err(StoreError::Gone) => Err(entered.no("token", &name)),
        other => {
            other?;
            Ok(no_content())
        }
    }
}

/// 204.
pub(super) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
