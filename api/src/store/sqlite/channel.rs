//! The file has one owner: there is nobody to be told anything.

use sless_backend::BoxStream;

use super::SqliteStore;
use crate::store::{News, StoreError};

#[expect(clippy::unused_async, reason = "the other database's is asynchronous")]
pub(super) async fn tell(_: &SqliteStore, _: News) -> Result<(), StoreError> {
    Ok(())
}

pub(super) fn hear(_: &SqliteStore) -> BoxStream<News> {
    Box::pin(tokio_stream::pending())
}
