//! What is kept: functions, triggers and records in a database, uploaded zips beside it. The only place that speaks SQL.

mod code;
#[cfg(test)]
mod measure;
mod postgres;
mod secrets;
#[cfg(test)]
mod several;
mod sqlite;
#[cfg(test)]
mod suite;
mod tokens;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use sless_backend::{CodeRef, FunctionRef};
use sless_core::{FunctionName, FunctionSettings, HttpTrigger, Namespace, Runtime, TriggerKind, TriggerName};
use uuid::Uuid;

use crate::config::Database;
use sless_backend::Moment;

pub use code::DirStore;
use postgres::PostgresStore;
pub(crate) use secrets::{SecretRow, Secrets};
use sqlite::SqliteStore;
pub(crate) use sqlite::snapshot;
pub(crate) use tokens::{TokenRow, Tokens};

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The name is taken.
    #[error("the name is taken")]
    Exists,
    /// Another trigger has the host.
    #[error("the host is taken")]
    HostTaken,
    /// Somebody else has written meanwhile.
    #[error("it has changed since")]
    Stale,
    /// What should be changed isn't there.
    #[error("it is not there")]
    Gone,
    /// A function names a secret that isn't there.
    #[error("there is no secret {0:?}")]
    NoSecret(String),
    /// The database is away, full or overloaded: the same again may well work a little later.
    #[error("{action}")]
    Away {
        /// A verb in the present, with its object.
        action: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A fault of ours, or of who has changed the database.
    #[error("{action}")]
    Failed {
        /// A verb in the present, with its object.
        action: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A function as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FunctionRow {
    /// Only grows: the order of creation.
    pub(crate) id: i64,
    pub(crate) function: FunctionRef,
    pub(crate) runtime: Runtime,
    pub(crate) settings: FunctionSettings,
    /// Counts every write.
    pub(crate) version: u64,
    /// Counts the writes that the backend must hear of.
    pub(crate) generation: u64,
    /// The revision that should answer; `None` before the first upload.
    pub(crate) wanted: Option<String>,
    /// The revision that answered last.
    pub(crate) active: Option<String>,
    pub(crate) deleting: bool,
    pub(crate) created_at: Moment,
    pub(crate) updated_at: Moment,
}

/// A revision as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RevisionRow {
    pub(crate) name: String,
    pub(crate) settings: FunctionSettings,
    pub(crate) code: CodeRef,
    pub(crate) created_at: Moment,
}

/// What somebody wants a trigger to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TriggerWish {
    pub(crate) kind: TriggerKind,
    pub(crate) enabled: bool,
    pub(crate) function: FunctionName,
    pub(crate) http: HttpTrigger,
}

/// A trigger as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TriggerRow {
    /// Only grows: the order of creation.
    pub(crate) id: i64,
    pub(crate) namespace: Namespace,
    pub(crate) name: TriggerName,
    pub(crate) wish: TriggerWish,
    pub(crate) version: u64,
    pub(crate) created_at: Moment,
    pub(crate) updated_at: Moment,
}

/// A function that calls may be sent to, for the proxy's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reachable {
    pub(crate) function: FunctionRef,
    /// Its enabled http triggers, in the order of their creation.
    pub(crate) triggers: Vec<HttpTrigger>,
}

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

/// Where a page of records ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) started_at: Moment,
    pub(crate) id: Uuid,
}

/// Opens the store, and brings its tables up to date.
///
/// # Errors
/// [`StoreError::Away`] if it does not answer; [`StoreError::Failed`] if its tables are of a later version.
pub(crate) async fn open(database: &Database) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match database {
        Database::Sqlite(path) => Arc::new(SqliteStore::open(path).await?),
        Database::Postgres(url) => Arc::new(PostgresStore::open(url).await?),
    })
}

/// What the API keeps. Lists are newest first.
#[async_trait]
pub(crate) trait Store: Tokens + Secrets + Debug + Send + Sync {
    async fn insert_function(
        &self,
        function: &FunctionRef,
        runtime: &Runtime,
        settings: &FunctionSettings,
    ) -> Result<FunctionRow, StoreError>;
    async fn function(&self, function: &FunctionRef) -> Result<Option<FunctionRow>, StoreError>;
    /// Those of a namespace with an id below `below`.
    async fn functions(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<FunctionRow>, StoreError>;
    async fn all_functions(&self) -> Result<Vec<FunctionRow>, StoreError>;
    /// Writes what may change of `row` over the version that it was read as; with a revision, that is kept too.
    async fn update_function(
        &self,
        row: &FunctionRow,
        revision: Option<&RevisionRow>,
    ) -> Result<FunctionRow, StoreError>;
    /// Notes which revision answers. Changes no version: it is nobody's write.
    async fn set_active(&self, function: &FunctionRef, revision: &str) -> Result<(), StoreError>;
    async fn remove_function(&self, function: &FunctionRef) -> Result<(), StoreError>;
    async fn revision(&self, function_id: i64, name: &str) -> Result<Option<RevisionRow>, StoreError>;
    async fn revisions(&self, function_id: i64) -> Result<Vec<RevisionRow>, StoreError>;
    /// Forgets all but the newest `keep` revisions, the wanted and the active one, and returns those that went.
    async fn forget_revisions(&self, function_id: i64, keep: u32) -> Result<Vec<RevisionRow>, StoreError>;
    /// Every function that is not being deleted, with what lets the public in.
    async fn reachable(&self) -> Result<Vec<Reachable>, StoreError>;

    /// # Errors
    /// [`StoreError::Exists`] if the name is taken, [`StoreError::HostTaken`] if another trigger has the host.
    async fn insert_trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, StoreError>;
    async fn trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
    ) -> Result<Option<TriggerRow>, StoreError>;
    async fn triggers(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TriggerRow>, StoreError>;
    /// Writes the wish over the version that `row` was read as.
    async fn update_trigger(&self, row: &TriggerRow) -> Result<TriggerRow, StoreError>;
    /// Removes the version that `row` was read as.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is another by now, or gone.
    async fn remove_trigger(&self, row: &TriggerRow) -> Result<(), StoreError>;

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

    /// Whether it answers.
    async fn ping(&self) -> Result<(), StoreError>;
    /// Finishes what is being written and closes.
    async fn close(&self);
}
