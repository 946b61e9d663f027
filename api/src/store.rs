//! What is kept in a database: records and tokens always, functions, triggers and secrets where no cluster has them; uploaded zips
//! beside it. The only place that speaks SQL.

mod code;
#[cfg(test)]
mod measure;
mod postgres;
#[cfg(test)]
mod several;
mod sqlite;
#[cfg(test)]
mod suite;
mod tokens;
mod upkeep;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use sless_backend::{BoxStream, FunctionRef, LogLine, Moment};
use sless_core::{FunctionName, Namespace};
use uuid::Uuid;

use crate::config::Database;
use crate::vault::Vault;

pub use code::DirStore;
use postgres::PostgresStore;
/// Why the store did not do it: one type for all that is kept, wherever it lies.
pub(crate) use sless_backend::DefinitionError as StoreError;
use sqlite::SqliteStore;
pub(crate) use sqlite::snapshot;
pub(crate) use tokens::{TokenRow, Tokens};
pub(crate) use upkeep::{Contents, Upkeep};

/// What one attempt's events tell, so far; those of one batch merged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) id: Uuid,
    pub(crate) attempt: u32,
    pub(crate) started: Option<Started>,
    pub(crate) finished: Option<Finished>,
    /// When the first of these events was, for an attempt whose `started` is not here yet.
    pub(crate) seen_at: Moment,
}

/// A `started` event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) at: Moment,
    pub(crate) revision: String,
    pub(crate) trigger: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) pod: String,
    /// JSON, as it came.
    pub(crate) request: Option<String>,
}

/// A `finished` event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finished {
    pub(crate) at: Moment,
    pub(crate) status: &'static str,
    pub(crate) http_status: Option<u16>,
    pub(crate) duration_ms: f64,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) init_ms: Option<f64>,
    pub(crate) cpu_ms: Option<f64>,
    pub(crate) max_rss_bytes: Option<i64>,
    pub(crate) log_bytes: i64,
    pub(crate) log_dropped_bytes: i64,
    /// JSON, as it came.
    pub(crate) result: Option<String>,
    /// JSON, as it came.
    pub(crate) error: Option<String>,
}

/// A `log` event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLines {
    pub(crate) id: Uuid,
    pub(crate) attempt: u32,
    pub(crate) seq: u32,
    /// A JSON list, as it came.
    pub(crate) lines: String,
}

/// A `log` event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogRow {
    /// Where it stands among all that are kept: only grows.
    pub(crate) place: i64,
    pub(crate) id: Uuid,
    pub(crate) seq: u32,
    /// A JSON list, as it came.
    pub(crate) lines: String,
}

/// A call that the API sends by itself, before a supervisor has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) id: Uuid,
    pub(crate) at: Moment,
    pub(crate) trigger: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// JSON, as in a `started` event.
    pub(crate) request: Option<String>,
    /// The invocation whose request it sends again.
    pub(crate) replay_of: Option<Uuid>,
}

/// The events of one function that go into the database together.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Batch {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) logs: Vec<LogLines>,
}

/// A record: the last attempt of an invocation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InvocationRow {
    pub(crate) id: Uuid,
    pub(crate) function: FunctionName,
    pub(crate) attempt: u32,
    pub(crate) started_at: Moment,
    /// A supervisor has it; else it waits.
    pub(crate) started: bool,
    pub(crate) replay_of: Option<Uuid>,
    pub(crate) revision: Option<String>,
    pub(crate) trigger: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) finished_at: Option<Moment>,
    pub(crate) http_status: Option<u16>,
    pub(crate) duration_ms: Option<f64>,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) init_ms: Option<f64>,
    pub(crate) cpu_ms: Option<f64>,
    pub(crate) max_rss_bytes: Option<i64>,
    pub(crate) log_bytes: Option<i64>,
    pub(crate) log_dropped_bytes: Option<i64>,
    /// These three only when one record is read, JSON as it came.
    pub(crate) request: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
}

/// Which records of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InvocationFilter {
    pub(crate) status: Option<String>,
    pub(crate) trigger: Option<String>,
    pub(crate) since: Option<Moment>,
    pub(crate) until: Option<Moment>,
}

/// What the processes that share a database tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Records have come in.
    Stored,
    /// Whoever has this call, which no supervisor has yet, is to end it.
    Cancel(Uuid),
}

/// Where a page of records ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) started_at: Moment,
    pub(crate) id: Uuid,
}

/// Opens the database, and brings its tables up to date.
///
/// # Errors
/// [`StoreError::Away`] if it does not answer; [`StoreError::Failed`] if its tables are of a later version.
pub(crate) async fn open(database: &Database) -> Result<Opened, StoreError> {
    Ok(match database {
        Database::Sqlite(path) => Opened::Sqlite(SqliteStore::open(path).await?),
        Database::Postgres(url) => Opened::Postgres(PostgresStore::open(url).await?),
    })
}

/// A database, as what it is used for.
#[derive(Debug, Clone)]
pub(crate) enum Opened {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

impl Opened {
    pub(crate) fn records(&self) -> Arc<dyn Records> {
        match self {
            Self::Sqlite(store) => Arc::new(store.clone()),
            Self::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// The definitions that lie in it; `vault` has the key of the secrets.
    pub(crate) fn definitions(&self, vault: Vault) -> Arc<dyn Upkeep> {
        match self {
            Self::Sqlite(store) => Arc::new(store.definitions(vault)),
            Self::Postgres(store) => Arc::new(store.definitions(vault)),
        }
    }
}

/// Records of calls, and tokens: always in the database. Lists are newest first.
#[async_trait]
pub(crate) trait Records: Tokens + Debug + Send + Sync {
    /// Stores batches in one transaction: each event once, the first `finished` of an attempt counts (but any replaces `lost`).
    /// Stored for good when this returns.
    async fn store_events(&self, batches: HashMap<FunctionRef, Batch>) -> Result<(), StoreError>;
    /// One record, its last attempt, by id in a namespace.
    async fn invocation(&self, namespace: &Namespace, id: Uuid) -> Result<Option<InvocationRow>, StoreError>;
    /// The attempts of a record before its last one, in order.
    async fn earlier_attempts(
        &self,
        namespace: &Namespace,
        id: Uuid,
    ) -> Result<Vec<InvocationRow>, StoreError>;
    async fn invocations(
        &self,
        function: &FunctionRef,
        filter: &InvocationFilter,
        after: Option<After>,
        limit: u32,
    ) -> Result<Vec<InvocationRow>, StoreError>;
    /// The log of an attempt, in order; only what comes after `after`, if that is given.
    async fn log_lines(
        &self,
        namespace: &Namespace,
        id: Uuid,
        attempt: u32,
        after: Option<u32>,
    ) -> Result<Vec<LogRow>, StoreError>;
    /// The place of the last log lines of all.
    async fn log_end(&self) -> Result<i64, StoreError>;
    /// The log of a function's calls beyond a place, as it came in, and the place to go on from.
    async fn function_log(
        &self,
        function: &FunctionRef,
        place: i64,
        limit: u32,
    ) -> Result<(Vec<LogRow>, i64), StoreError>;
    /// Notes a call that waits; its events, when they come, are merged into it.
    async fn queue(&self, function: &FunctionRef, queued: &Queued) -> Result<(), StoreError>;
    /// Whose calls wait or run.
    async fn unfinished(&self) -> Result<Vec<FunctionRef>, StoreError>;
    /// Notes as `lost`, with this error (JSON), what runs since before `running_since` or waits since before `queued_since`.
    async fn lose(
        &self,
        function: &FunctionRef,
        running_since: Moment,
        queued_since: Moment,
        error: &str,
    ) -> Result<u64, StoreError>;
    /// Removes records that are older than `before` or beyond the newest `keep` of their function, a bounded number at a time.
    /// Returns how many went; zero means that there are no more.
    async fn expire(&self, before: Moment, keep: u32) -> Result<u64, StoreError>;

    /// Keeps the log of a build that is over; delivered again, it is kept once. Of a function's many the oldest go.
    async fn keep_build_log(
        &self,
        function: &FunctionRef,
        build: &str,
        lines: &[LogLine],
    ) -> Result<(), StoreError>;
    async fn build_log(
        &self,
        function: &FunctionRef,
        build: &str,
    ) -> Result<Option<Vec<LogLine>>, StoreError>;
    /// Removes logs of builds that are older than `before`.
    async fn expire_build_logs(&self, before: Moment) -> Result<(), StoreError>;

    /// Tells the other processes that share the database. It may get lost.
    async fn tell(&self, news: News) -> Result<(), StoreError>;
    /// What the others tell, from now on.
    fn hear(&self) -> BoxStream<News>;

    /// Whether it answers.
    async fn ping(&self) -> Result<(), StoreError>;
    /// Finishes what is being written and closes.
    async fn close(&self);
}
