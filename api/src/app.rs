//! What all requests share.

use std::sync::Arc;

use sless_backend::{Backend, CodeStore, Definitions, FunctionRef, FunctionRow};
use sless_core::HostName;
use tokio::sync::{RwLock, watch};
use tokio_util::sync::CancellationToken;

use crate::auth::Auth;
use crate::config::ApiConfig;
use crate::detached::Runs;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::proxy::{Proxy, Table};
use crate::reconcile::Changes;
use crate::store::{Records, Upkeep};

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: ApiConfig,
    pub(crate) auth: Auth,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) definitions: Arc<dyn Definitions>,
    /// The same definitions, if it is the API that brings them to the backend; `None` where somebody else does.
    pub(crate) upkeep: Option<Arc<dyn Upkeep>>,
    pub(crate) code: Arc<dyn CodeStore>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) table: Arc<Table>,
    pub(crate) proxy: Proxy,
    pub(crate) changes: Changes,
    pub(crate) metrics: Arc<Metrics>,
    /// How callers reach this, without a slash at the end.
    pub(crate) external_url: String,
    /// `host:port` where Prometheus finds the metrics.
    pub(crate) metrics_addr: String,
    /// Read while code is put into the code store until the database knows of it, written while what the database does not know is
    /// removed.
    pub(crate) code_in_use: RwLock<()>,
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

    /// Scheme and rest of `external_url`.
    fn external(&self) -> (&str, &str) {
        self.external_url.split_once("://").unwrap_or(("http", &self.external_url))
    }

    /// Where callers reach a trigger that has this host.
    pub(crate) fn address_of(&self, host: &HostName) -> String {
        let (scheme, rest) = self.external();
        let authority = rest.split('/').next().unwrap_or_default();
        // Not the colons of an IPv6 address.
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        port.map_or_else(|| format!("{scheme}://{host}"), |port| format!("{scheme}://{host}:{port}"))
    }

    /// Whether this host is where all functions are.
    pub(crate) fn is_own_host(&self, host: &HostName) -> bool {
        if self.config.own_hosts.contains(host) {
            return true;
        }
        let authority = self.external().1.split('/').next().unwrap_or_default();
        authority.split(':').next().unwrap_or_default().eq_ignore_ascii_case(host.as_str())
    }

    /// A function that is there, also while it is being deleted.
    pub(crate) async fn function(&self, function: &FunctionRef) -> Result<FunctionRow, Problem> {
        let row = self.definitions.function(function).await?;
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
        Ok(self.table.reload(&*self.definitions).await?)
    }

    /// To be called after each write that the backend must hear of.
    pub(crate) fn tell(&self, function: FunctionRef) {
        if self.upkeep.is_some() {
            self.changes.push(function);
        }
    }
}
