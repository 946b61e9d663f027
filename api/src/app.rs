//! What all requests share.

use std::sync::Arc;

use sless_backend::{Backend, CodeStore, FunctionRef};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::auth::Auth;
use crate::config::ApiConfig;
use crate::detached::Runs;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::proxy::{Proxy, Table};
use crate::reconcile::Changes;
use crate::store::{FunctionRow, Store};
use crate::vault::Vault;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: ApiConfig,
    pub(crate) auth: Auth,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) code: Arc<dyn CodeStore>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) vault: Vault,
    pub(crate) table: Arc<Table>,
    pub(crate) proxy: Proxy,
    pub(crate) changes: Changes,
    pub(crate) metrics: Arc<Metrics>,
    /// How callers reach this, without a slash at the end.
    pub(crate) external_url: String,
    /// `host:port` where Prometheus finds the metrics.
    pub(crate) metrics_addr: String,
    /// Held while code is put into the code store until the database knows of it, and while what the database does not know is
    /// removed.
    pub(crate) code_in_use: Mutex<()>,
    /// Calls that the API sends by itself.
    pub(crate) runs: Runs,
    /// Changes with each commit of records.
    pub(crate) news: watch::Receiver<()>,
    /// Cancelled once no more calls are taken.
    pub(crate) draining: CancellationToken,
}

impl App {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// A function that is there, also while it is being deleted.
    pub(crate) async fn function(&self, function: &FunctionRef) -> Result<FunctionRow, Problem> {
        let row = self.store.function(function).await?;
        row.ok_or_else(|| {
            Problem::not_found(format!(
                "function {:?} in namespace {:?}",
                function.name.as_str(),
                function.namespace.as_str()
            ))
        })
    }

    /// To be called after each change of functions or triggers, before its caller hears of it.
    pub(crate) async fn reload_routes(&self) -> Result<(), Problem> {
        Ok(self.table.reload(&*self.store).await?)
    }
}
