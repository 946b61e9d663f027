use std::collections::HashMap;
use std::fmt::Write;

use sless_backend::FunctionRef;
use sless_core::{FunctionName, Namespace};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row, Sqlite, SqliteConnection};
use uuid::Uuid;

use super::{SqliteStore, failed, odd};
use crate::store::{After, Attempt, Batch, InvocationFilter, InvocationRow, LogLines, LogRow, StoreError};
use crate::time::Moment;

/// Rows of one statement. A few sizes only, so that each is prepared once; a statement with many rows saves the way to SQLite's
/// thread and back for each of them.
const CHUNKS: [usize; 4] = [64, 16, 4, 1];

const INSERT: &str = "INSERT INTO invocations (id, owner, attempt, started_at, started, revision, trigger, method, path, pod, request,
    status, finished_at, http_status, duration_ms, queue_ms, init_ms, cpu_ms, max_rss_bytes, log_bytes, log_dropped_bytes, result, error)
    VALUES ";

/// The first `started` and the first `finished` count, whatever their order; a `finished` that is `lost` gives way to another one.
const MERGE: &str = "
    ON CONFLICT (id, owner, attempt) DO UPDATE SET
        started_at = iif(excluded.started AND NOT started, excluded.started_at, started_at),
        started = started OR excluded.started,
        revision = coalesce(revision, excluded.revision),
        trigger = coalesce(trigger, excluded.trigger),
        method = coalesce(method, excluded.method),
        path = coalesce(path, excluded.path),
        pod = coalesce(pod, excluded.pod),
        request = coalesce(request, excluded.request),
        status = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.status, status),
        finished_at = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.finished_at, finished_at),
        http_status = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.http_status, http_status),
        duration_ms = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.duration_ms, duration_ms),
        queue_ms = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.queue_ms, queue_ms),
        init_ms = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.init_ms, init_ms),
        cpu_ms = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.cpu_ms, cpu_ms),
        max_rss_bytes = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.max_rss_bytes, max_rss_bytes),
        log_bytes = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.log_bytes, log_bytes),
        log_dropped_bytes =
            iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.log_dropped_bytes, log_dropped_bytes),
        result = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.result, result),
        error = iif(excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost', excluded.error, error)
    WHERE (excluded.started AND NOT started) OR (excluded.status NOT NULL AND coalesce(status, 'lost') = 'lost')";

const INSERT_LOGS: &str = "INSERT INTO log_lines (id, owner, attempt, seq, lines) VALUES ";
const IGNORE_KNOWN: &str = " ON CONFLICT (id, owner, attempt, seq) DO NOTHING";

fn statement(insert: &str, columns: usize, rows: usize, end: &str) -> String {
    let row = format!("(?{})", ", ?".repeat(columns - 1));
    let mut sql = String::with_capacity(insert.len() + end.len() + rows * (row.len() + 2));
    sql.push_str(insert);
    for n in 0..rows {
        // Writing to a String can't fail.
        let _ = write!(sql, "{}{row}", if n == 0 { "" } else { ", " });
    }
    sql.push_str(end);
    sql
}

type Insert = Query<'static, Sqlite, SqliteArguments>;

fn bind_attempt(query: Insert, owner: i64, row: Attempt) -> Insert {
    let (started, finished) = (row.started, row.finished);
    let at = started.as_ref().map_or(row.seen_at, |s| s.at);
    let query = query.bind(row.id).bind(owner).bind(row.attempt).bind(at.0).bind(started.is_some());
    let query = match started {
        Some(s) => {
            query.bind(s.revision).bind(s.trigger).bind(s.method).bind(s.path).bind(s.pod).bind(s.request)
        }
        None => (0..6).fold(query, |q, _| q.bind(None::<String>)),
    };
    match finished {
        Some(f) => query
            .bind(f.status)
            .bind(f.at.0)
            .bind(f.http_status)
            .bind(f.duration_ms)
            .bind(f.queue_ms)
            .bind(f.init_ms)
            .bind(f.cpu_ms)
            .bind(f.max_rss_bytes)
            .bind(f.log_bytes)
            .bind(f.log_dropped_bytes)
            .bind(f.result)
            .bind(f.error),
        None => (0..12).fold(query, |q, _| q.bind(None::<String>)),
    }
}

fn bind_lines(query: Insert, owner: i64, row: LogLines) -> Insert {
    query.bind(row.id).bind(owner).bind(row.attempt).bind(row.seq).bind(row.lines)
}

/// Inserts all rows, many with each statement.
async fn insert_all<T>(
    connection: &mut SqliteConnection,
    (insert, columns, end): (&str, usize, &str),
    owner: i64,
    rows: Vec<T>,
    bind: fn(Insert, i64, T) -> Insert,
) -> Result<(), sqlx::Error> {
    let mut rows = rows.into_iter();
    for size in CHUNKS {
        while rows.len() >= size {
            let query = sqlx::query(AssertSqlSafe(statement(insert, columns, size, end)));
            rows.by_ref()
                .take(size)
                .fold(query, |query, row| bind(query, owner, row))
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(())
}

/// The number that stands for `function` in records.
pub(super) async fn owner(store: &SqliteStore, f: &FunctionRef) -> Result<i64, StoreError> {
    if let Some(known) = store.owners.read().await.get(f) {
        return Ok(*known);
    }
    // By itself and not within the batch's transaction: what is remembered must never be rolled back.
    let sql = "INSERT INTO owners (namespace, function) VALUES (?, ?)
               ON CONFLICT (namespace, function) DO UPDATE SET function = excluded.function RETURNING id";
    let query = sqlx::query_scalar(sql).bind(f.namespace.as_str()).bind(f.name.as_str());
    let id: i64 = query.fetch_one(&store.writer).await.map_err(failed("note whose records these are"))?;
    store.owners.write().await.insert(f.clone(), id);
    Ok(id)
}

pub(super) async fn store(
    store: &SqliteStore,
    batches: HashMap<FunctionRef, Batch>,
) -> Result<(), StoreError> {
    let mut owned = Vec::with_capacity(batches.len());
    for (function, batch) in batches {
        owned.push((owner(store, &function).await?, batch));
    }
    let mut tx = store.write().await?;
    for (owner, batch) in owned {
        let inserted = insert_all(&mut tx, (INSERT, 23, MERGE), owner, batch.attempts, bind_attempt).await;
        inserted.map_err(failed("store records"))?;
        let inserted =
            insert_all(&mut tx, (INSERT_LOGS, 5, IGNORE_KNOWN), owner, batch.logs, bind_lines).await;
        inserted.map_err(failed("store log lines"))?;
    }
    tx.commit().await.map_err(failed("store records"))
}

/// Of a list; one record has the bodies too.
const LISTED: &str = "i.id, i.attempt, i.started_at, i.started, i.replay_of, i.revision, i.trigger, i.method, i.path, i.status, i.finished_at, i.http_status,
    i.duration_ms, i.queue_ms, i.init_ms, i.cpu_ms, i.max_rss_bytes, i.log_bytes, i.log_dropped_bytes, o.function";
const WITHOUT_BODIES: &str = "NULL AS request, NULL AS result, NULL AS error";
const WITH_BODIES: &str = "i.request, i.result, i.error";

fn invocation(row: &SqliteRow) -> Result<InvocationRow, StoreError> {
    fn get<'r, T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>>(
        row: &'r SqliteRow,
        column: &str,
    ) -> Result<T, StoreError> {
        row.try_get(column).map_err(odd)
    }
    Ok(InvocationRow {
        id: get(row, "id")?,
        function: get::<String>(row, "function")?.parse::<FunctionName>().map_err(odd)?,
        attempt: get(row, "attempt")?,
        started_at: Moment(get(row, "started_at")?),
        started: get(row, "started")?,
        replay_of: get(row, "replay_of")?,
        revision: get(row, "revision")?,
        trigger: get(row, "trigger")?,
        method: get(row, "method")?,
        path: get(row, "path")?,
        status: get(row, "status")?,
        finished_at: get::<Option<i64>>(row, "finished_at")?.map(Moment),
        http_status: get(row, "http_status")?,
        duration_ms: get(row, "duration_ms")?,
        queue_ms: get(row, "queue_ms")?,
        init_ms: get(row, "init_ms")?,
        cpu_ms: get(row, "cpu_ms")?,
        max_rss_bytes: get(row, "max_rss_bytes")?,
        log_bytes: get(row, "log_bytes")?,
        log_dropped_bytes: get(row, "log_dropped_bytes")?,
        request: get(row, "request")?,
        result: get(row, "result")?,
        error: get(row, "error")?,
    })
}

async fn attempts(
    store: &SqliteStore,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Vec<InvocationRow>, StoreError> {
    // The function whose record began first has the id: another one can't put its own in front of it.
    let sql = format!(
        "SELECT {LISTED}, {WITH_BODIES} FROM invocations i JOIN owners o ON o.id = i.owner
         WHERE i.id = ?1 AND i.owner = (SELECT j.owner FROM invocations j JOIN owners p ON p.id = j.owner
                                        WHERE j.id = ?1 AND p.namespace = ?2 ORDER BY j.row LIMIT 1)
         ORDER BY i.attempt"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(namespace.as_str());
    query.fetch_all(&store.readers).await.map_err(failed("read a record"))?.iter().map(invocation).collect()
}

pub(super) async fn one(
    store: &SqliteStore,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Option<InvocationRow>, StoreError> {
    Ok(attempts(store, namespace, id).await?.pop())
}

pub(super) async fn earlier(
    store: &SqliteStore,
    namespace: &Namespace,
    id: Uuid,
) -> Result<Vec<InvocationRow>, StoreError> {
    let mut all = attempts(store, namespace, id).await?;
    all.pop();
    Ok(all)
}

pub(super) async fn page(
    store: &SqliteStore,
    f: &FunctionRef,
    filter: &InvocationFilter,
    after: Option<After>,
    limit: u32,
) -> Result<Vec<InvocationRow>, StoreError> {
    let sql = format!(
        "SELECT {LISTED}, {WITHOUT_BODIES} FROM invocations i JOIN owners o ON o.id = i.owner
         WHERE i.owner = (SELECT id FROM owners WHERE namespace = ?1 AND function = ?2)
           AND i.started_at >= ?3 AND i.started_at < ?4
           AND (?5 IS NULL OR (i.started_at, i.id) < (?5, ?6))
           AND (?7 IS NULL OR coalesce(i.status, iif(i.started, 'running', 'queued')) = ?7)
           AND (?8 IS NULL OR i.trigger = ?8)
           AND NOT EXISTS (SELECT 1 FROM invocations l WHERE l.id = i.id AND l.owner = i.owner AND l.attempt > i.attempt)
         ORDER BY i.started_at DESC, i.id DESC LIMIT ?9"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(f.namespace.as_str()).bind(f.name.as_str());
    // A page that goes on begins its search in the index where the last one ended.
    let end = after.map_or(i64::MAX, |a| a.started_at.0.saturating_add(1));
    let end = filter.until.map_or(end, |m| m.0.min(end));
    let query = query.bind(filter.since.map_or(i64::MIN, |m| m.0)).bind(end);
    let query = query.bind(after.map(|a| a.started_at.0)).bind(after.map(|a| a.id));
    let query = query.bind(filter.status.clone()).bind(filter.trigger.clone()).bind(limit);
    query.fetch_all(&store.readers).await.map_err(failed("list records"))?.iter().map(invocation).collect()
}

fn log_row(row: &SqliteRow) -> Result<LogRow, StoreError> {
    Ok(LogRow {
        place: row.try_get("row").map_err(odd)?,
        id: row.try_get("id").map_err(odd)?,
        seq: row.try_get("seq").map_err(odd)?,
        lines: row.try_get("lines").map_err(odd)?,
    })
}

pub(super) async fn log_lines(
    store: &SqliteStore,
    namespace: &Namespace,
    id: Uuid,
    attempt: u32,
    after: Option<u32>,
) -> Result<Vec<LogRow>, StoreError> {
    let sql = "SELECT l.row, l.id, l.seq, l.lines FROM log_lines l JOIN owners o ON o.id = l.owner
               WHERE l.id = ? AND o.namespace = ? AND l.attempt = ? AND l.seq > ? ORDER BY l.seq";
    let query = sqlx::query(sql).bind(id).bind(namespace.as_str()).bind(attempt);
    let rows = query.bind(after.map_or(-1, i64::from)).fetch_all(&store.readers).await;
    rows.map_err(failed("read log lines"))?.iter().map(log_row).collect()
}

pub(super) async fn log_end(store: &SqliteStore) -> Result<i64, StoreError> {
    let query = sqlx::query_scalar("SELECT coalesce(max(row), 0) FROM log_lines");
    query.fetch_one(&store.readers).await.map_err(failed("find the end of the logs"))
}

pub(super) async fn function_log(
    store: &SqliteStore,
    f: &FunctionRef,
    place: i64,
    limit: u32,
) -> Result<(Vec<LogRow>, i64), StoreError> {
    // First, so that what comes in meanwhile is left for the next time.
    let end = log_end(store).await?;
    // Once all lines have gone, their numbers begin anew.
    let place = if end < place { 0 } else { place };
    let sql = "SELECT row, id, seq, lines FROM log_lines WHERE row > ? AND row <= ?
               AND owner = (SELECT id FROM owners WHERE namespace = ? AND function = ?) ORDER BY row LIMIT ?";
    let query = sqlx::query(sql).bind(place).bind(end).bind(f.namespace.as_str()).bind(f.name.as_str());
    let rows = query.bind(limit).fetch_all(&store.readers).await.map_err(failed("read log lines"))?;
    let rows: Vec<LogRow> = rows.iter().map(log_row).collect::<Result<_, _>>()?;
    // All of it was looked at, unless the page is full: nobody has to look through the others' lines again.
    let next = rows.last().filter(|_| rows.len() == limit as usize).map_or(end, |row| row.place);
    Ok((rows, next))
}

pub(super) async fn expire(store: &SqliteStore, before: Moment, keep: u32) -> Result<u64, StoreError> {
    // A bounded number at a time, so that records that come in never wait long for the writer. CROSS JOIN is SQLite's way to say
    // that owners come first: the other way round the bound is searched for each record.
    let sql = "DELETE FROM invocations WHERE row IN (
                   SELECT i.row FROM owners o CROSS JOIN invocations i
                   WHERE i.owner = o.id AND i.started_at < max(?1, coalesce((SELECT started_at FROM invocations k WHERE k.owner = o.id
                                                          ORDER BY started_at DESC, id DESC LIMIT 1 OFFSET ?2 - 1), ?1))
                   LIMIT 500)";
    let query = sqlx::query(sql).bind(before.0).bind(keep.max(1));
    Ok(query.execute(&store.writer).await.map_err(failed("remove old records"))?.rows_affected())
}
