//! The store in PostgreSQL.

mod channel;
mod ingest;
#[path = "sql/store.rs"]
#[allow(clippy::duplicate_mod, reason = "the same SQL, compiled for the types of the other driver")]
mod sql;

use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sless_backend::{FunctionRef, Secret};
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::RwLock;
use uuid::Uuid;

use super::StoreError;
use sql::failed;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres");

/// Of one API. Calls do not pass through the database, so few suffice.
const CONNECTIONS: u32 = 8;
/// How long somebody waits for a connection before he hears that there is none.
const WITHIN: Duration = Duration::from_secs(5);

// What the shared SQL is compiled for.
type Database = PostgresStore;
type Row = PgRow;
type Driver = Postgres;
type Connection = PgConnection;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct PostgresStore {
    writer: PgPool,
    /// The same pool.
    readers: PgPool,
    /// One connection, on which this process hears the others.
    listener: PgPool,
    /// This process, among those that share the database.
    me: Uuid,
    /// The numbers that stand for functions in records; they never change.
    owners: Arc<RwLock<HashMap<FunctionRef, i64>>>,
}

impl PostgresStore {
    /// Connects, and brings the tables up to date; of several that start at once one does, and the others wait for it.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if `url` is none, nobody answers there, or the tables are of a later version.
    pub(crate) async fn open(url: &Secret) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url.reveal()).map_err(failed("understand DATABASE_URL"))?;
        let options = options.application_name("sless");
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(WITHIN);
        let pool = pool.connect_with(options).await.map_err(failed("connect to PostgreSQL"))?;
        // Under an advisory lock.
        let migrated = MIGRATIONS.run(&pool).await;
        migrated
            .map_err(|e| StoreError::Failed { action: "bring the database up to date", source: e.into() })?;
        let listener = PgPoolOptions::new().max_connections(1).acquire_timeout(WITHIN);
        let listener = listener.connect_lazy_with((*pool.connect_options()).clone());
        Ok(Self { writer: pool.clone(), readers: pool, listener, me: Uuid::now_v7(), owners: Arc::default() })
    }

    async fn write(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        self.writer.begin().await.map_err(failed("begin to write"))
    }
}

/// Of the classes of SQLSTATE those that speak of the server and not of the question: connection, invalid authorisation (a server that
/// is set up anew), rolled back for others' sake, no resources, operator's intervention (starting, stopping), system error; and a
/// server that only reads, as one does that is not the first any more.
fn code_means_away(code: &str) -> bool {
    matches!(code.get(..2), Some("08" | "28" | "40" | "53" | "57" | "58")) || code == "25006"
}

/// Stands before the digit that is written for a character that PostgreSQL has not in its texts, or for this one.
const ESCAPE: char = '\u{10ffff}';

/// A text as it is kept: PostgreSQL has no NUL in one.
fn kept(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return text.into();
    }
    text.replace(ESCAPE, "\u{10ffff}1").replace('\0', "\u{10ffff}0").into()
}

/// The reverse of [`kept`].
fn given(text: String) -> String {
    if text.contains(ESCAPE) {
        text.replace("\u{10ffff}0", "\0").replace("\u{10ffff}1", "\u{10ffff}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_troubles_are_told_from_ours() {
        // admin_shutdown, cannot_connect_now, disk_full, deadlock_detected; unique_violation, undefined_table.
        assert!(["57P01", "57P03", "53100", "40P01", "08006", "25006"].into_iter().all(code_means_away));
        assert!(!["23505", "42P01", "25001", "", "5"].into_iter().any(code_means_away));
    }

    #[test]
    fn every_text_comes_back() {
        for text in ["", "a", "\0", "a\0b\0", "\u{10ffff}", "\u{10ffff}0", "\u{10ffff}1\0", "\0\u{10ffff}1"] {
            assert!(!kept(text).contains('\0'));
            assert_eq!(given(kept(text).into_owned()), text);
        }
    }
}
