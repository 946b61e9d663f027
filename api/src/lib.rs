//! The API: what people and programs ask of sless, the public proxy, and where records arrive.
//!
//! [`Server::start`] takes an [`ApiConfig`] and a [`Platform`] and listens; [`Server::shutdown`] lets running calls
//! finish, stops the backend, takes the last records and closes the database. The binary decides which backend it is:
//!
//! ```no_run
//! # async fn example(config: sless_api::ApiConfig, data: std::path::PathBuf, backend: std::sync::Arc<dyn sless_backend::Backend>)
//! # -> Result<(), sless_api::StartError> {
//! let code = std::sync::Arc::new(sless_api::DirStore::new(data.join("code"))); // the backend reads code from the same store
//! let platform = sless_api::Platform::Here { backend, code, secrets_key: data.join("secrets.key") };
//! let server = sless_api::Server::start(config, platform).await?;
//! println!("listening on http://{}", server.local_addr());
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Below: `routes/` parse and render, `proxy/` passes calls on, `ingest/` takes records, `store/` is the only place with SQL,
//! `reconcile.rs` tells the backend what should be.

mod app;
mod auth;
mod config;
mod detached;
mod ingest;
mod metrics;
mod news;
mod problem;
mod proxy;
mod reconcile;
mod routes;
mod server;
mod store;
mod vault;

pub use config::{ApiConfig, Database, Listen};
pub use server::{Platform, Server, StartError, StoreErrorSource};
pub use store::DirStore;

/// Makes `to`, an empty file or none, a copy of the SQLite database `from` as it is now; it may be in use.
///
/// # Errors
/// What the database said.
pub async fn snapshot(from: &std::path::Path, to: &std::path::Path) -> Result<(), StoreErrorSource> {
    store::snapshot(from, to).await.map_err(StoreErrorSource)
}

/// For `fuzz/`: reads a batch of records, and returns how many lines were taken and refused.
#[doc(hidden)]
#[must_use]
pub fn fuzz_batch(body: &[u8]) -> (u64, u64) {
    let parsed = ingest::parse(body);
    (parsed.taken, parsed.refused)
}
