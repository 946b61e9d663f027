//! What both databases are asked in the same words. Compiled once in the module of each, whose `Database` and `Row` it uses: the
//! types of the driver differ, the SQL (with `$1`, which both understand) does not. What differs is in their `ingest`.

mod builds;
mod definitions;
mod functions;
mod records;
mod runs;
mod secrets;
mod tokens;
mod triggers;

use std::collections::HashMap;

use async_trait::async_trait;
use sless_backend::{BoxStream, FunctionRef, LogLine, Moment};
use sless_core::Namespace;
use uuid::Uuid;

use super::{Database, channel, code_means_away, ingest};
use crate::store::{
    After, Batch, InvocationFilter, InvocationRow, LogRow, News, Queued, Records, StoreError,
};
pub(super) use records::owner;

pub(super) fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| {
        if is_away(&source) {
            StoreError::Away { action, source: source.into() }
        } else {
            StoreError::Failed { action, source: source.into() }
        }
    }
}

/// Whether it is the database's trouble, and not that of what it was asked.
fn is_away(error: &sqlx::Error) -> bool {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed => true,
        E::Database(error) => error.code().is_some_and(|code| code_means_away(&code)),
        _ => false,
    }
}

/// What is in the database was checked when it went in; if it is no longer right, the file was changed by somebody else.
pub(super) fn odd<E: std::error::Error + Send + Sync + 'static>(source: E) -> StoreError {
    StoreError::Failed { action: "understand a row of the database", source: source.into() }
}

pub(super) fn unique(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match &source {
        sqlx::Error::Database(e) if e.is_unique_violation() => StoreError::Exists,
        _ => failed(action)(source),
    }
}

#[async_trait]
impl Records for Database {
    async fn store_events(&self, batches: HashMap<FunctionRef, Batch>) -> Result<(), StoreError> {
        ingest::store(self, batches).await
    }

    async fn invocation(&self, namespace: &Namespace, id: Uuid) -> Result<Option<InvocationRow>, StoreError> {
        records::one(self, namespace, id).await
    }

    async fn earlier_attempts(
        &self,
        namespace: &Namespace,
        id: Uuid,
    ) -> Result<Vec<InvocationRow>, StoreError> {
        records::earlier(self, namespace, id).await
    }

    async fn invocations(
        &self,
        function: &FunctionRef,
        filter: &InvocationFilter,
        after: Option<After>,
        limit: u32,
    ) -> Result<Vec<InvocationRow>, StoreError> {
        records::page(self, function, filter, after, limit).await
    }

    async fn log_lines(
        &self,
        namespace: &Namespace,
        id: Uuid,
        attempt: u32,
        after: Option<u32>,
    ) -> Result<Vec<LogRow>, StoreError> {
        records::log_lines(self, namespace, id, attempt, after).await
    }

    async fn log_end(&self) -> Result<i64, StoreError> {
        records::log_end(self).await
    }

    async fn function_log(
        &self,
        function: &FunctionRef,
        place: i64,
        limit: u32,
    ) -> Result<(Vec<LogRow>, i64), StoreError> {
        records::function_log(self, function, place, limit).await
    }

    async fn queue(&self, function: &FunctionRef, queued: &Queued) -> Result<(), StoreError> {
        runs::queue(self, function, queued).await
    }

    async fn unfinished(&self) -> Result<Vec<FunctionRef>, StoreError> {
        runs::unfinished(self).await
    }

    async fn lose(
        &self,
        function: &FunctionRef,
        running_since: Moment,
        queued_since: Moment,
        error: &str,
    ) -> Result<u64, StoreError> {
        runs::lose(self, function, running_since, queued_since, error).await
    }

    async fn expire(&self, before: Moment, keep: u32) -> Result<u64, StoreError> {
        ingest::expire(self, before, keep).await
    }

    async fn keep_build_log(
        &self,
        function: &FunctionRef,
        build: &str,
        lines: &[LogLine],
    ) -> Result<(), StoreError> {
        builds::keep(self, function, build, lines).await
    }

    async fn build_log(
        &self,
        function: &FunctionRef,
        build: &str,
    ) -> Result<Option<Vec<LogLine>>, StoreError> {
        builds::read(self, function, build).await
    }

    async fn expire_build_logs(&self, before: Moment) -> Result<(), StoreError> {
        builds::expire(self, before).await
    }

    async fn tell(&self, news: News) -> Result<(), StoreError> {
        channel::tell(self, news).await
    }

    fn hear(&self) -> BoxStream<News> {
        channel::hear(self)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.readers).await.map(drop).map_err(failed("ask the database"))
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
