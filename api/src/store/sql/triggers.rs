use sless_core::{HttpTrigger, Namespace, TriggerKind, TriggerName};
use sqlx::{AssertSqlSafe, Row as _};

use super::super::{Database, Row};
use super::{failed, odd};
use crate::store::StoreError;
use sless_backend::{Moment, TriggerRow, TriggerWish};

const COLUMNS: &str =
    "id, namespace, name, type, enabled, function, settings, version, created_at, updated_at";

fn trigger(row: &Row) -> Result<TriggerRow, StoreError> {
    let text = |column| row.try_get::<&str, _>(column).map_err(odd);
    let number = |column| row.try_get::<i64, _>(column).map_err(odd);
    let kind = text("type")?;
    Ok(TriggerRow {
        id: number("id")?,
        namespace: text("namespace")?.parse().map_err(odd)?,
        name: text("name")?.parse().map_err(odd)?,
        wish: TriggerWish {
            kind: TriggerKind::parse(kind)
                .ok_or_else(|| odd(std::io::Error::other(format!("trigger type {kind:?}"))))?,
            enabled: row.try_get("enabled").map_err(odd)?,
            function: text("function")?.parse().map_err(odd)?,
            http: http(text("settings")?)?,
        },
        version: number("version")?.unsigned_abs(),
        trouble: None,
        created_at: Moment(number("created_at")?),
        updated_at: Moment(number("updated_at")?),
    })
}

/// The settings of an http trigger.
pub(super) fn http(settings: &str) -> Result<HttpTrigger, StoreError> {
    serde_json::from_str(settings).map_err(odd)
}

fn settings_text(http: &HttpTrigger) -> String {
    serde_json::Value::Object(http.to_object()).to_string()
}

fn taken(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match &source {
        // The one names its column, the other its index.
        sqlx::Error::Database(e) if e.is_unique_violation() && e.message().contains("host") => {
            StoreError::HostTaken
        }
        sqlx::Error::Database(e) if e.is_unique_violation() => StoreError::Exists,
        _ => failed(action)(source),
    }
}

pub(super) async fn insert(
    store: &Database,
    namespace: &Namespace,
    name: &TriggerName,
    wish: &TriggerWish,
) -> Result<TriggerRow, StoreError> {
    let sql = format!(
        "INSERT INTO triggers (namespace, name, type, enabled, function, settings, host, version, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $8) RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
    let query = query.bind(wish.kind.as_str()).bind(wish.enabled).bind(wish.function.as_str());
    let query = query.bind(settings_text(&wish.http)).bind(wish.http.host.as_ref().map(|host| host.as_str()));
    let query = query.bind(Moment::now().0);
    let mut tx = store.write().await?;
    let kept = trigger(&query.fetch_one(&mut *tx).await.map_err(taken("keep a trigger"))?)?;
    tx.commit().await.map_err(failed("keep a trigger"))?;
    Ok(kept)
}

pub(super) async fn one(
    store: &Database,
    namespace: &Namespace,
    name: &TriggerName,
) -> Result<Option<TriggerRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM triggers WHERE namespace = $1 AND name = $2");
    let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
    query
        .fetch_optional(&store.readers)
        .await
        .map_err(failed("read a trigger"))?
        .as_ref()
        .map(trigger)
        .transpose()
}

pub(super) async fn page(
    store: &Database,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<TriggerRow>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM triggers WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
    let query = sqlx::query(AssertSqlSafe(sql))
        .bind(namespace.as_str())
        .bind(below.unwrap_or(i64::MAX))
        .bind(i64::from(limit));
    query.fetch_all(&store.readers).await.map_err(failed("list triggers"))?.iter().map(trigger).collect()
}

pub(super) async fn change(
    store: &Database,
    row: &TriggerRow,
    wish: &TriggerWish,
) -> Result<TriggerRow, StoreError> {
    let sql = format!(
        "UPDATE triggers SET enabled = $1, function = $2, settings = $3, host = $4, updated_at = $5, version = version + 1
         WHERE id = $6 AND version = $7 RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(wish.enabled).bind(wish.function.as_str());
    let query = query.bind(settings_text(&wish.http)).bind(wish.http.host.as_ref().map(|host| host.as_str()));
    let query = query.bind(Moment::now().0).bind(row.id).bind(row.version.cast_signed());
    let mut tx = store.write().await?;
    let written = query.fetch_optional(&mut *tx).await.map_err(taken("change a trigger"))?;
    tx.commit().await.map_err(failed("change a trigger"))?;
    trigger(&written.ok_or(StoreError::Stale)?)
}

pub(super) async fn remove(store: &Database, row: &TriggerRow) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM triggers WHERE id = $1 AND version = $2");
    let query = query.bind(row.id).bind(row.version.cast_signed());
    let gone = query.execute(&store.writer).await.map_err(failed("remove a trigger"))?;
    if gone.rows_affected() == 0 { Err(StoreError::Stale) } else { Ok(()) }
}
