//! Records into SQLite, and out when they are old.

use std::collections::HashMap;
use std::fmt::Write;

use sless_backend::FunctionRef;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::SqliteStore;
use super::sql::{failed, owner};
use crate::store::{Attempt, Batch, LogLines, StoreError};
use sless_backend::Moment;

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
