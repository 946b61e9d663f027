use sless_backend::FunctionRef;
use sless_core::{FunctionName, Namespace};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::super::{Database, Driver, Row, given, kept};
use super::{failed, odd};
use crate::store::{After, InvocationFilter, InvocationRow, LogRow, StoreError};
use sless_backend::Moment;

/// The number that stands for `function` in records.
pub(in crate::store) async fn owner(store: &Database, f: &FunctionRef) -> Result<i64, StoreError> {
    if let Some(known) = store.owners.read().await.get(f) {
        return Ok(*known);
    }
    // In a transaction of its own and not in the batch's: what is remembered must never be rolled back. And in one that is
    // committed by a statement of its own: `RETURNING` gives its row before SQLite has written it, and a full disk shows after that.
    let sql = "INSERT INTO owners (namespace, function) VALUES ($1, $2)
               ON CONFLICT (namespace, function) DO UPDATE SET function = excluded.function RETURNING id";
    let query = sqlx::query_scalar(sql).bind(f.namespace.as_str()).bind(f.name.as_str());
    let mut tx = store.write().await?;
    let id: i64 = query.fetch_one(&mut *tx).await.map_err(failed("note whose records these are"))?;
    tx.commit().await.map_err(failed("note whose records these are"))?;
    store.owners.write().await.insert(f.clone(), id);
    Ok(id)
}

/// Of a list; one record has the bodies too.
const LISTED: &str = "i.id, i.attempt, i.started_at, i.started, i.replay_of, i.revision, i.trigger, i.method, i.path, i.status, i.finished_at, i.http_status,
    i.duration_ms, i.queue_ms, i.init_ms, i.cpu_ms, i.max_rss_bytes, i.log_bytes, i.log_dropped_bytes, o.function";
const WITHOUT_BODIES: &str = "NULL AS request, NULL AS result, NULL AS error";
const WITH_BODIES: &str = "i.request, i.result, i.error";
const NO_SUCCESS: &str = "(i.status IS NULL OR i.status <> 'success')";

fn invocation(row: &Row) -> Result<InvocationRow, StoreError> {
    fn get<'r, T: sqlx::Decode<'r, Driver> + sqlx::Type<Driver>>(
        row: &'r Row,
        column: &str,
    ) -> Result<T, StoreError> {
        row.try_get(column).map_err(odd)
    }
    // 64 bits each, since PostgreSQL gives nothing but what the column is.
    let number = |column| get::<Option<i64>>(row, column);
    let text = |column| get::<Option<String>>(row, column);
    let sent = |column| Ok(text(column)?.map(given));
    Ok(InvocationRow {
        id: get(row, "id")?,
        function: get::<String>(row, "function")?.parse::<FunctionName>().map_err(odd)?,
        attempt: get::<i64>(row, "attempt")?.try_into().map_err(odd)?,
        started_at: Moment(get(row, "started_at")?),
        started: get(row, "started")?,
        replay_of: get(row, "replay_of")?,
        revision: sent("revision")?,
        trigger: sent("trigger")?,
        method: sent("method")?,
        path: sent("path")?,
        status: text("status")?,
        finished_at: number("finished_at")?.map(Moment),
        http_status: number("http_status")?.map(u16::try_from).transpose().map_err(odd)?,
        duration_ms: get(row, "duration_ms")?,
        queue_ms: get(row, "queue_ms")?,
        init_ms: get(row, "init_ms")?,
        cpu_ms: get(row, "cpu_ms")?,
        max_rss_bytes: number("max_rss_bytes")?,
        log_bytes: number("log_bytes")?,
        log_dropped_bytes: number("log_dropped_bytes")?,
        request: text("request")?,
        result: text("result")?,
        error: text("error")?,
    })
}

async fn attempts(
    store: &Database,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Vec<InvocationRow>, StoreError> {
    // The function whose record began first has the id: another one can't put its own in front of it.
    let sql = format!(
        "SELECT {LISTED}, {WITH_BODIES} FROM invocations i JOIN owners o ON o.id = i.owner
         WHERE i.id = $1 AND i.owner = (SELECT j.owner FROM invocations j JOIN owners p ON p.id = j.owner
                                        WHERE j.id = $1 AND p.namespace = $2 ORDER BY j.row LIMIT 1)
         ORDER BY i.attempt"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(namespace.as_str());
    query.fetch_all(&store.readers).await.map_err(failed("read a record"))?.iter().map(invocation).collect()
}

pub(super) async fn one(
    store: &Database,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Option<InvocationRow>, StoreError> {
    Ok(attempts(store, namespace, id).await?.pop())
}

pub(super) async fn earlier(
    store: &Database,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Vec<InvocationRow>, StoreError> {
    let mut all = attempts(store, namespace, id).await?;
    all.pop();
    Ok(all)
}

pub(super) async fn page(
    store: &Database,
    f: &FunctionRef,
    filter: &InvocationFilter,
    after: Option<After>,
    limit: u32,
) -> Result<Vec<InvocationRow>, StoreError> {
    // What did not succeed, and what did not come by HTTP, has an index of its own, in whose words it must be asked for.
    let status = match filter.status.as_deref() {
        None => "$7 IS NULL".to_owned(),
        Some("success") => "i.status = $7".to_owned(),
        Some("running") => format!("i.status IS NULL AND i.started AND {NO_SUCCESS} AND $7 = 'running'"),
        Some("queued") => format!("i.status IS NULL AND NOT i.started AND {NO_SUCCESS} AND $7 = 'queued'"),
        Some(_) => format!("i.status = $7 AND {NO_SUCCESS}"),
    };
    let trigger = match filter.trigger.as_deref() {
        None => "$8 IS NULL",
        Some("http") => "i.trigger = $8",
        Some(_) => "i.trigger = $8 AND i.trigger <> 'http'",
    };
    let sql = format!(
        "SELECT {LISTED}, {WITHOUT_BODIES} FROM invocations i JOIN owners o ON o.id = i.owner
         WHERE i.owner = (SELECT id FROM owners WHERE namespace = $1 AND function = $2)
           AND i.started_at >= (SELECT CASE WHEN since > $3 THEN since ELSE $3 END FROM owners WHERE namespace = $1 AND function = $2)
           AND i.started_at < $4
           AND ($5 IS NULL OR (i.started_at, i.id) < ($5, $6))
           AND {status}
           AND {trigger}
           AND NOT EXISTS (SELECT 1 FROM invocations l WHERE l.id = i.id AND l.owner = i.owner AND l.attempt > i.attempt)
         ORDER BY i.started_at DESC, i.id DESC LIMIT $9"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(f.namespace.as_str()).bind(f.name.as_str());
    // A page that goes on begins its search in the index where the last one ended.
    let end = after.map_or(i64::MAX, |a| a.started_at.0.saturating_add(1));
    let end = filter.until.map_or(end, |m| m.0.min(end));
    let query = query.bind(filter.since.map_or(i64::MIN, |m| m.0)).bind(end);
    let query = query.bind(after.map(|a| a.started_at.0)).bind(after.map(|a| a.id));
    let query = query
        .bind(filter.status.as_deref().map(kept))
        .bind(filter.trigger.as_deref().map(kept))
        .bind(i64::from(limit));
    query.fetch_all(&store.readers).await.map_err(failed("list records"))?.iter().map(invocation).collect()
}

fn log_row(row: &Row) -> Result<LogRow, StoreError> {
    Ok(LogRow {
        place: row.try_get("row").map_err(odd)?,
        id: row.try_get("id").map_err(odd)?,
        seq: row.try_get::<i64, _>("seq").map_err(odd)?.try_into().map_err(odd)?,
        lines: row.try_get("lines").map_err(odd)?,
    })
}

pub(super) async fn log_lines(
    store: &Database,
    namespace: &Namespace,
    id: Uuid,
    attempt: u32,
    after: Option<u32>,
) -> Result<Vec<LogRow>, StoreError> {
    let sql = "SELECT l.row, l.id, l.seq, l.lines FROM log_lines l JOIN owners o ON o.id = l.owner
               WHERE l.id = $1 AND o.namespace = $2 AND l.attempt = $3 AND l.seq > $4 ORDER BY l.seq";
    let query = sqlx::query(sql).bind(id).bind(namespace.as_str()).bind(i64::from(attempt));
    let rows = query.bind(after.map_or(-1, i64::from)).fetch_all(&store.readers).await;
    rows.map_err(failed("read log lines"))?.iter().map(log_row).collect()
}

pub(super) async fn log_end(store: &Database) -> Result<i64, StoreError> {
    let query = sqlx::query_scalar("SELECT coalesce(max(row), 0) FROM log_lines");
    query.fetch_one(&store.readers).await.map_err(failed("find the end of the logs"))
}

pub(super) async fn function_log(
    store: &Database,
    f: &FunctionRef,
    place: i64,
    limit: u32,
) -> Result<(Vec<LogRow>, i64), StoreError> {
    // First, so that what comes in meanwhile is left for the next time.
    let end = log_end(store).await?;
    // Once all lines have gone, SQLite's numbers begin anew.
    let place = if end < place { 0 } else { place };
    let sql = "SELECT row, id, seq, lines FROM log_lines WHERE row > $1 AND row <= $2
               AND owner = (SELECT id FROM owners WHERE namespace = $3 AND function = $4) ORDER BY row LIMIT $5";
    let query = sqlx::query(sql).bind(place).bind(end).bind(f.namespace.as_str()).bind(f.name.as_str());
    let rows =
        query.bind(i64::from(limit)).fetch_all(&store.readers).await.map_err(failed("read log lines"))?;
    let rows: Vec<LogRow> = rows.iter().map(log_row).collect::<Result<_, _>>()?;
    // All of it was looked at, unless the page is full: nobody has to look through the others' lines again.
    let next = rows.last().filter(|_| rows.len() == limit as usize).map_or(end, |row| row.place);
    Ok((rows, next))
}
