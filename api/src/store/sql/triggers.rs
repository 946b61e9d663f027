use sless_core::{FunctionName, Namespace, TriggerKind, TriggerName};
use sqlx::{AssertSqlSafe, Row as _};

use super::super::{Database, Row};
use super::{failed, odd, unique};
use crate::store::{StoreError, TriggerRow};
use crate::time::Moment;

const COLUMNS: &str = "id, namespace, name, type, enabled, function, version, created_at, updated_at";

fn trigger(row: &Row) -> Result<TriggerRow, StoreError> {
    let text = |column| row.try_get::<&str, _>(column).map_err(odd);
    let number = |column| row.try_get::<i64, _>(column).map_err(odd);
    let kind = text("type")?;
    Ok(TriggerRow {
        id: number("id")?,
        namespace: text("namespace")?.parse().map_err(odd)?,
        name: text("name")?.parse().map_err(odd)?,
        kind: TriggerKind::parse(kind)
            .ok_or_else(|| odd(std::io::Error::other(format!("trigger type {kind:?}"))))?,
        enabled: row.try_get("enabled").map_err(odd)?,
        function: text("function")?.parse().map_err(odd)?,
        version: number("version")?.unsigned_abs(),
        created_at: Moment(number("created_at")?),
        updated_at: Moment(number("updated_at")?),
    })
}

pub(super) async fn insert(
    store: &Database,
    namespace: &Namespace,
    name: &TriggerName,
    kind: TriggerKind,
    function: &FunctionName,
    enabled: bool,
) -> Result<TriggerRow, StoreError> {
    let sql = format!(
        "INSERT INTO triggers (namespace, name, type, enabled, function, version, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, 1, $6, $6) RETURNING {COLUMNS}"
    );
    let query =
        sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str()).bind(kind.as_str());
    let query = query.bind(enabled).bind(function.as_str()).bind(Moment::now().0);
    let mut tx = store.write().await?;
    let kept = trigger(&query.fetch_one(&mut *tx).await.map_err(unique("keep a trigger"))?)?;
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

pub(super) async fn update(store: &Database, row: &TriggerRow) -> Result<TriggerRow, StoreError> {
    let sql = format!(
        "UPDATE triggers SET enabled = $1, function = $2, updated_at = $3, version = version + 1
         WHERE id = $4 AND version = $5 RETURNING {COLUMNS}"
    );
    let query =
        sqlx::query(AssertSqlSafe(sql)).bind(row.enabled).bind(row.function.as_str()).bind(Moment::now().0);
    let query = query.bind(row.id).bind(row.version.cast_signed());
    let mut tx = store.write().await?;
    let written = query.fetch_optional(&mut *tx).await.map_err(failed("change a trigger"))?;
    tx.commit().await.map_err(failed("change a trigger"))?;
    trigger(&written.ok_or(StoreError::Stale)?)
}

pub(super) async fn remove(
    store: &Database,
    namespace: &Namespace,
    name: &TriggerName,
) -> Result<(), StoreError> {
    let query =
        sqlx::query("DELETE FROM triggers WHERE namespace = $1 AND name = $2").bind(namespace.as_str());
    let gone = query.bind(name.as_str()).execute(&store.writer).await.map_err(failed("remove a trigger"))?;
    if gone.rows_affected() == 0 { Err(StoreError::Gone) } else { Ok(()) }
}
