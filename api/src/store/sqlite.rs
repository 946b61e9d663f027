//! The store in one SQLite file: WAL, one writer, a pool of readers.

mod channel;
mod ingest;
#[path = "sql/store.rs"]
mod sql;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sless_backend::FunctionRef;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection as _, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::sync::RwLock;

use super::StoreError;
use sql::failed;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/sqlite");

// What the shared SQL is compiled for.
type Database = SqliteStore;
type Row = SqliteRow;
type Driver = Sqlite;
type Connection = SqliteConnection;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct SqliteStore {
    /// One connection: SQLite has one writer anyway, and waiting here is fair, which waiting for its lock is not.
    writer: SqlitePool,
    readers: SqlitePool,
    /// The numbers that stand for functions in records; they never change.
    owners: Arc<RwLock<HashMap<FunctionRef, i64>>>,
}

impl SqliteStore {
    /// Opens the file, or makes it, and brings its tables up to date.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if it can't be opened or is of a later version.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A crash of this process loses nothing that was committed; only a power cut may lose the last moments.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5))
            .pragma("cache_size", "-16000")
            // Larger than the default of 1000 pages: fewer checkpoints while records pour in.
            .pragma("wal_autocheckpoint", "4000")
            .pragma("journal_size_limit", "67108864");
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            // SQLite rolls back by itself when the disk is full; a connection that has lost count of its transactions is of no use.
            .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
            .connect_with(options.clone())
            .await;
        let writer = writer.map_err(failed("open the database"))?;
        let migrated = MIGRATIONS.run(&writer).await;
        migrated
            .map_err(|e| StoreError::Failed { action: "bring the database up to date", source: e.into() })?;
        let readers = SqlitePoolOptions::new().max_connections(4).connect_lazy_with(options.read_only(true));
        Ok(Self { writer, readers, owners: Arc::default() })
    }

    /// A transaction that is a writer from its beginning, so that it never fails half-way for lack of the lock.
    async fn write(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failed("begin to write"))
    }
}

/// Copies a database that may be in use into `to`, an empty file or none.
///
/// # Errors
/// [`StoreError::Failed`] if it can't be read, or `to` not be written.
pub(crate) async fn snapshot(from: &Path, to: &Path) -> Result<(), StoreError> {
    let options = SqliteConnectOptions::new().filename(from).busy_timeout(Duration::from_secs(30));
    let mut connection = options.connect().await.map_err(failed("open the database"))?;
    let copy = sqlx::query("VACUUM INTO $1").bind(to.to_string_lossy().into_owned());
    copy.execute(&mut connection).await.map_err(failed("copy the database"))?;
    connection.close().await.map_err(failed("close the database"))
}

/// Of SQLite's codes those that speak of the disk and of who else uses the file, not of the question: `SQLITE_BUSY`, `SQLITE_LOCKED`,
/// `SQLITE_IOERR`, `SQLITE_FULL`, `SQLITE_CANTOPEN`. What stands above the lowest byte only says more of the same.
fn code_means_away(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6 | 10 | 13 | 14))
}

/// A text as it is kept: SQLite takes any.
fn kept(text: &str) -> Cow<'_, str> {
    text.into()
}

/// The reverse of [`kept`].
fn given(text: String) -> String {
    text
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::suite::function;
    use crate::store::{Attempt, Batch, LogLines, Records};
    use sless_backend::Moment;

    #[test]
    fn the_disks_troubles_are_told_from_ours() {
        // SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_BUSY_SNAPSHOT; SQLITE_ERROR, SQLITE_CONSTRAINT_UNIQUE, SQLITE_CORRUPT.
        assert!(["13", "778", "517"].into_iter().all(code_means_away));
        assert!(!["1", "2067", "11", "", "?"].into_iter().any(code_means_away));
    }

    #[tokio::test]
    async fn the_room_of_removed_records_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sless.db");
        let store = SqliteStore::open(&file).await.unwrap();
        let mut sizes = Vec::new();
        for round in 0..6_u128 {
            let records = (0..500).map(|n| {
                let (id, at) = (Uuid::from_u128(round * 500 + n), Moment(1));
                Attempt { id, attempt: 1, started: None, finished: None, seen_at: at }
            });
            let attempts: Vec<_> = records.collect();
            let lines = format!("[{:?}]", "x".repeat(4000));
            let logs =
                attempts.iter().map(|a| LogLines { id: a.id, attempt: 1, seq: 1, lines: lines.clone() });
            let batch = Batch { logs: logs.collect(), attempts };
            store.store_events(HashMap::from([(function("f"), batch)])).await.unwrap();
            while store.expire(Moment(2), 10_000).await.unwrap() > 0 {}
            let all: i64 =
                sqlx::query_scalar("SELECT count(*) FROM log_lines").fetch_one(&store.readers).await.unwrap();
            assert_eq!(all, 0);
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&store.writer).await.unwrap();
            sizes.push(std::fs::metadata(&file).unwrap().len());
        }
        assert!(sizes[0] > 2_000_000 && sizes[5] <= sizes[1], "{sizes:?}");
    }
}
