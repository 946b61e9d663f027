//! Functions on one machine: a `sless-supervisor serve` per function, a child process of this one, on Unix sockets.
//!
//! What this backend has not: a share of the CPU for a function, more than one supervisor for it, and a limit of its memory
//! where no control group may be made. Everything else is as the port says. Supervisors end when this process does, also
//! when it is killed: their standard input ends then. Calls that run may finish.

mod admin;
mod aside;
mod builds;
mod cgroup;
mod function;
mod instance;
mod keeper;
mod layout;
mod runtimes;
mod state;
mod tokens;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sless_backend::{
    Backend, BackendError, BoxStream, BuildStatus, CodeStore, Endpoint, FunctionRef, FunctionSpec,
    FunctionStatus, Generation, Identity, LogLine, Revision, Secret,
};
use sless_builder::HostEnvironment;
use sless_core::Runtime;
use tokio_stream::StreamExt;

pub use cgroup::memory_limits;
use function::Want;
pub use layout::Layout;
pub use runtimes::installed as runtimes;
use state::{News, Shared, Told};

/// What the backend needs to know of its machine.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The program `sless-supervisor`.
    pub supervisor: PathBuf,
    /// The folder that has one folder for each runtime.
    pub runtimes_dir: PathBuf,
    /// Where the API takes records.
    pub reports_socket: PathBuf,
    /// Where handlers and supervisors find programs.
    pub path: OsString,
    /// The program whose `build-step` keeps builds from the private folder; without it they are kept from nothing.
    pub cage: Option<PathBuf>,
    /// What installers may see of the host's environment.
    pub host_environment: HostEnvironment,
}

/// See the crate.
#[derive(Debug)]
pub struct LocalBackend {
    shared: Arc<Shared>,
}

impl LocalBackend {
    /// Begins with nothing running: what should run is applied again by the API.
    ///
    /// # Errors
    /// When what an earlier host has left cannot be removed, or the proxy's token cannot be made or read.
    pub fn new(config: LocalConfig, layout: Layout, code: Arc<dyn CodeStore>) -> io::Result<Self> {
        layout.sweep()?;
        let proxy_token = tokens::read_or_make(&layout.proxy_token())?;
        let cgroups = cgroup::Cgroups::open(&layout.tag()).map_err(|why| {
            tracing::warn!("functions and builds have no limit of memory: {why}");
        });
        Ok(Self { shared: Arc::new(Shared::new(config, layout, code, proxy_token, cgroups.ok())) })
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn runtimes(&self) -> Vec<Runtime> {
        runtimes::installed(&self.shared.config.runtimes_dir)
    }

    async fn apply_function(&self, spec: FunctionSpec, generation: Generation) -> Result<(), BackendError> {
        Shared::wish(&self.shared, &spec.function.clone(), Want::Run(Box::new(spec), generation))
    }

    async fn delete_function(&self, function: &FunctionRef) -> Result<(), BackendError> {
        Shared::wish(&self.shared, function, Want::Delete)
    }

    fn status(&self, function: &FunctionRef) -> Option<FunctionStatus> {
        self.shared.status(function)
    }

    fn watch_functions(&self) -> BoxStream<FunctionStatus> {
        self.shared.watch()
    }

    fn endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        self.shared.endpoints_of(function)
    }

    async fn revision_endpoints(
        &self,
        function: &FunctionRef,
        revision: Revision,
    ) -> Result<Arc<[Endpoint]>, BackendError> {
        aside::endpoints(&self.shared, function, revision).await
    }

    fn supervisors(&self, function: &FunctionRef) -> Vec<Endpoint> {
        self.shared.running.of(function)
    }

    /// Nothing sleeps here: what is ready has an endpoint.
    async fn awake(&self, function: &FunctionRef) {
        let mut statuses = self.watch_functions();
        while self.endpoints(function).is_empty() && statuses.next().await.is_some() {}
    }

    fn proxy_token(&self, _: &FunctionRef) -> Secret {
        self.shared.proxy_token.clone()
    }

    async fn platform_identity(&self, token: &str) -> Result<Option<Identity>, BackendError> {
        Ok(self.shared.report_tokens.owner(token).map(Identity::Function))
    }

    fn build(&self, function: &FunctionRef) -> Option<BuildStatus> {
        self.shared.build(function)
    }

    async fn build_log(
        &self,
        function: &FunctionRef,
        build: &str,
        from: usize,
    ) -> Result<Option<Vec<LogLine>>, BackendError> {
        builds::log(&self.shared.layout, function, build, from).await
    }

    async fn shutdown(&self) {
        self.shared.stop().await;
    }
}

/// Functions by name; ordered, so that watchers see them in an order that does not change.
type ByFunction<T> = BTreeMap<FunctionRef, T>;
