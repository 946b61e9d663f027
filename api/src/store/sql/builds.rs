//! The logs of builds that somebody else has run.

use sless_backend::{FunctionRef, LogLine, Moment};

use super::super::Database;
use super::{failed, odd, owner};
use crate::store::StoreError;

/// Kept of a function: more than its revisions are few.
const KEPT: i64 = 50;

pub(super) async fn keep(
    store: &Database,
    function: &FunctionRef,
    build: &str,
    lines: &[LogLine],
) -> Result<(), StoreError> {
    let owner = owner(store, function).await?;
    let text = serde_json::to_string(lines).map_err(odd)?;
    let mut tx = store.write().await?;
    // Delivered again, it is the same log.
    let sql = "INSERT INTO build_logs (owner, build, lines, kept_at) VALUES ($1, $2, $3, $4)
               ON CONFLICT (owner, build) DO UPDATE SET lines = excluded.lines";
    let query = sqlx::query(sql).bind(owner).bind(build).bind(text).bind(Moment::now().0);
    query.execute(&mut *tx).await.map_err(failed("keep the log of a build"))?;
    let sql = "DELETE FROM build_logs WHERE owner = $1 AND build NOT IN
               (SELECT build FROM build_logs WHERE owner = $1 ORDER BY kept_at DESC, build LIMIT $2)";
    let query = sqlx::query(sql).bind(owner).bind(KEPT).execute(&mut *tx);
    query.await.map_err(failed("remove old logs of builds"))?;
    tx.commit().await.map_err(failed("keep the log of a build"))
}

pub(super) async fn read(
    store: &Database,
    function: &FunctionRef,
    build: &str,
) -> Result<Option<Vec<LogLine>>, StoreError> {
    let sql = "SELECT b.lines FROM build_logs b JOIN owners o ON o.id = b.owner
               WHERE o.namespace = $1 AND o.function = $2 AND b.build = $3";
    let query = sqlx::query_scalar(sql).bind(function.namespace.as_str()).bind(function.name.as_str());
    let text: Option<String> =
        query.bind(build).fetch_optional(&store.readers).await.map_err(failed("read the log of a build"))?;
    text.map(|text| serde_json::from_str(&text).map_err(odd)).transpose()
}

pub(super) async fn expire(store: &Database, before: Moment) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM build_logs WHERE kept_at < $1").bind(before.0);
    query.execute(&store.writer).await.map(drop).map_err(failed("remove old logs of builds"))
}
