//! Records into PostgreSQL, and out when they are old.

use std::collections::HashMap;
use std::sync::LazyLock;

use sless_backend::FunctionRef;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::sql::{failed, owner};
use super::{PostgresStore, kept};
use crate::store::{Attempt, Batch, LogLines, StoreError};
use sless_backend::Moment;

/// Of one statement, so that its size is bounded.
const ROWS: usize = 1000;
const BYTES: usize = 16 << 20;

/// One array for each of these columns: the whole batch is one statement with as many parameters as there are columns.
const COLUMNS: [(&str, &str); 23] = [
    ("id", "UUID"),
    ("owner", "BIGINT"),
    ("attempt", "BIGINT"),
    ("started_at", "BIGINT"),
    ("started", "BOOLEAN"),
    ("revision", "TEXT"),
    ("trigger", "TEXT"),
    ("method", "TEXT"),
    ("path", "TEXT"),
    ("pod", "TEXT"),
    ("request", "TEXT"),
    ("status", "TEXT"),
    ("finished_at", "BIGINT"),
    ("http_status", "BIGINT"),
    ("duration_ms", "FLOAT8"),
    ("queue_ms", "FLOAT8"),
    ("init_ms", "FLOAT8"),
    ("cpu_ms", "FLOAT8"),
    ("max_rss_bytes", "BIGINT"),
    ("log_bytes", "BIGINT"),
    ("log_dropped_bytes", "BIGINT"),
    ("result", "TEXT"),
    ("error", "TEXT"),
];
/// Where the columns of `started` and of `finished` begin.
const STARTED: usize = 5;
const FINISHED: usize = 11;

/// The first `started` and the first `finished` count, whatever their order; a `finished` that is `lost` gives way to another one.
static INSERT: LazyLock<String> = LazyLock::new(|| {
    let begins = "excluded.started AND NOT i.started";
    let ends = "excluded.status IS NOT NULL AND coalesce(i.status, 'lost') = 'lost'";
    let names: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let arrays: Vec<_> =
        COLUMNS.iter().enumerate().map(|(n, (_, kind))| format!("${}::{kind}[]", n + 1)).collect();
    let known = names[STARTED..FINISHED].iter().map(|c| format!("{c} = coalesce(i.{c}, excluded.{c})"));
    let of_end =
        names[FINISHED..].iter().map(|c| format!("{c} = CASE WHEN {ends} THEN excluded.{c} ELSE i.{c} END"));
    let merged: Vec<_> = known.chain(of_end).collect();
    format!(
        "INSERT INTO invocations AS i ({}) SELECT * FROM UNNEST({})
         ON CONFLICT (id, owner, attempt) DO UPDATE SET
             started_at = CASE WHEN {begins} THEN excluded.started_at ELSE i.started_at END,
             started = i.started OR excluded.started, {}
         WHERE ({begins}) OR ({ends})",
        names.join(", "),
        arrays.join(", "),
        merged.join(", ")
    )
});

const INSERT_LOGS: &str = "INSERT INTO log_lines (id, owner, attempt, seq, lines)
    SELECT * FROM UNNEST($1::UUID[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::TEXT[])
    ON CONFLICT (id, owner, attempt, seq) DO NOTHING";

/// Rows as columns.
#[derive(Debug, Default)]
struct Attempts {
    bytes: usize,
    id: Vec<Uuid>,
    owner: Vec<i64>,
    attempt: Vec<i64>,
    started_at: Vec<i64>,
    started: Vec<bool>,
    /// Those of `started`: revision, trigger, method, path, pod, request.
    sent: [Vec<Option<String>>; FINISHED - STARTED],
    status: Vec<Option<&'static str>>,
    finished_at: Vec<Option<i64>>,
    http_status: Vec<Option<i64>>,
    duration_ms: Vec<Option<f64>>,
    queue_ms: Vec<Option<f64>>,
    init_ms: Vec<Option<f64>>,
    cpu_ms: Vec<Option<f64>>,
    max_rss_bytes: Vec<Option<i64>>,
    log_bytes: Vec<Option<i64>>,
    log_dropped_bytes: Vec<Option<i64>>,
    result: Vec<Option<String>>,
    error: Vec<Option<String>>,
}

impl Attempts {
    fn push(&mut self, owner: i64, row: Attempt) {
        let (started, finished) = (row.started, row.finished);
        self.id.push(row.id);
        self.owner.push(owner);
        self.attempt.push(row.attempt.into());
        self.started_at.push(started.as_ref().map_or(row.seen_at, |s| s.at).0);
        self.started.push(started.is_some());
        let sent = match started {
            Some(s) => {
                let texts = [s.revision, s.trigger, s.method, s.path, s.pod]
                    .map(|text| Some(kept(&text).into_owned()));
                let [revision, trigger, method, path, pod] = texts;
                [revision, trigger, method, path, pod, s.request]
            }
            None => [const { None }; FINISHED - STARTED],
        };
        for (column, text) in self.sent.iter_mut().zip(sent) {
            self.bytes += text.as_ref().map_or(0, String::len);
            column.push(text);
        }
        let f = finished.as_ref();
        self.status.push(f.map(|f| f.status));
        self.finished_at.push(f.map(|f| f.at.0));
        self.http_status.push(f.and_then(|f| f.http_status).map(i64::from));
        self.duration_ms.push(f.map(|f| f.duration_ms));
        self.queue_ms.push(f.and_then(|f| f.queue_ms));
        self.init_ms.push(f.and_then(|f| f.init_ms));
        self.cpu_ms.push(f.and_then(|f| f.cpu_ms));
        self.max_rss_bytes.push(f.and_then(|f| f.max_rss_bytes));
        self.log_bytes.push(f.map(|f| f.log_bytes));
        self.log_dropped_bytes.push(f.map(|f| f.log_dropped_bytes));
        let (result, error) = finished.map_or((None, None), |f| (f.result, f.error));
        self.bytes += result.as_ref().map_or(0, String::len) + error.as_ref().map_or(0, String::len);
        self.result.push(result);
        self.error.push(error);
    }

    fn is_full(&self) -> bool {
        self.id.len() >= ROWS || self.bytes >= BYTES
    }

    /// Writes them and is empty again.
    async fn flush(&mut self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let all = std::mem::take(self);
        if all.id.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(AssertSqlSafe(INSERT.as_str()));
        let query =
            query.bind(all.id).bind(all.owner).bind(all.attempt).bind(all.started_at).bind(all.started);
        let query = all.sent.into_iter().fold(query, |query, column| query.bind(column));
        let query = query.bind(all.status).bind(all.finished_at).bind(all.http_status).bind(all.duration_ms);
        let query = query.bind(all.queue_ms).bind(all.init_ms).bind(all.cpu_ms).bind(all.max_rss_bytes);
        let query = query.bind(all.log_bytes).bind(all.log_dropped_bytes).bind(all.result).bind(all.error);
        query.execute(connection).await.map(drop).map_err(failed("store records"))
    }
}

/// Rows as columns.
#[derive(Debug, Default)]
struct Logs {
    bytes: usize,
    id: Vec<Uuid>,
    owner: Vec<i64>,
    attempt: Vec<i64>,
    seq: Vec<i64>,
    lines: Vec<String>,
}

impl Logs {
    fn push(&mut self, owner: i64, row: LogLines) {
        self.id.push(row.id);
        self.owner.push(owner);
        self.attempt.push(row.attempt.into());
        self.seq.push(row.seq.into());
        self.bytes += row.lines.len();
        self.lines.push(row.lines);
    }

    fn is_full(&self) -> bool {
        self.id.len() >= ROWS || self.bytes >= BYTES
    }

    /// Writes them and is empty again.
    async fn flush(&mut self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let all = std::mem::take(self);
        if all.id.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(INSERT_LOGS).bind(all.id).bind(all.owner).bind(all.attempt);
        let query = query.bind(all.seq).bind(all.lines);
        query.execute(connection).await.map(drop).map_err(failed("store log lines"))
    }
}

/// Any number that nobody else takes.
const LOG_LOCK: i64 = 0x73_6c_65_73_73_6c_6f_67;

/// Makes others that write log lines wait until this transaction is over. A reader goes on from the last place that it has seen: no
/// lines may appear before that, as they would if another API took its numbers first and committed last.
async fn in_turn(connection: &mut PgConnection) -> Result<(), StoreError> {
    let query = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOG_LOCK);
    query.execute(connection).await.map(drop).map_err(failed("wait for others that write log lines"))
}

pub(super) async fn store(
    store: &PostgresStore,
    batches: HashMap<FunctionRef, Batch>,
) -> Result<(), StoreError> {
    let (mut attempts, mut logs) = (Vec::new(), Vec::new());
    for (function, batch) in batches {
        let owner = owner(store, &function).await?;
        attempts.extend(batch.attempts.into_iter().map(|row| (owner, row)));
        logs.extend(batch.logs.into_iter().map(|row| (owner, row)));
    }
    // In one order everywhere, so that two writers never wait for each other in a circle; and stable, so that of two ends of an
    // attempt the first is still the first.
    attempts.sort_by_key(|(owner, row)| (row.id, *owner, row.attempt));
    logs.sort_by_key(|(owner, row)| (row.id, *owner, row.attempt, row.seq));
    let mut tx = store.write().await?;
    let mut rows = Attempts::default();
    let mut last = None;
    for (owner, row) in attempts {
        let key = (row.id, owner, row.attempt);
        // A statement may not change a row twice.
        if rows.is_full() || last == Some(key) {
            rows.flush(&mut tx).await?;
        }
        last = Some(key);
        rows.push(owner, row);
    }
    rows.flush(&mut tx).await?;
    if !logs.is_empty() {
        in_turn(&mut tx).await?;
    }
    let mut rows = Logs::default();
    for (owner, row) in logs {
        if rows.is_full() {
            rows.flush(&mut tx).await?;
        }
        rows.push(owner, row);
    }
    rows.flush(&mut tx).await?;
    tx.commit().await.map_err(failed("store records"))
}

pub(super) async fn expire(store: &PostgresStore, before: Moment, keep: u32) -> Result<u64, StoreError> {
    // A bounded number at a time. Owners come first: the bound is searched once for each of them, in the index.
    let sql = "WITH old AS MATERIALIZED (
                   SELECT i.row FROM owners o
                   CROSS JOIN LATERAL (SELECT greatest($1, coalesce((
                       SELECT k.started_at FROM invocations k WHERE k.owner = o.id
                       ORDER BY k.started_at DESC, k.id DESC LIMIT 1 OFFSET $2 - 1), $1)) AS bound) b
                   CROSS JOIN LATERAL (SELECT row FROM invocations WHERE owner = o.id AND started_at < b.bound
                                       ORDER BY started_at LIMIT 500) i
                   LIMIT 500)
               DELETE FROM invocations WHERE row IN (SELECT row FROM old) RETURNING id, owner, attempt";
    let mut tx = store.write().await?;
    let query = sqlx::query_as::<_, (Uuid, i64, i64)>(sql).bind(before.0).bind(i64::from(keep.max(1)));
    let gone = query.fetch_all(&mut *tx).await.map_err(failed("remove old records"))?;
    let count = gone.len() as u64;
    let (mut ids, mut owners, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
    for (id, owner, attempt) in gone {
        ids.push(id);
        owners.push(owner);
        attempts.push(attempt);
    }
    // A statement of its own, so that it sees lines that came while the first one waited for their record.
    let lines =
        "DELETE FROM log_lines l USING UNNEST($1::UUID[], $2::BIGINT[], $3::BIGINT[]) g (id, owner, attempt)
                 WHERE l.id = g.id AND l.owner = g.owner AND l.attempt = g.attempt";
    let query = sqlx::query(lines).bind(ids).bind(owners).bind(attempts);
    query.execute(&mut *tx).await.map_err(failed("remove old log lines"))?;
    tx.commit().await.map_err(failed("remove old records"))?;
    Ok(count)
}
