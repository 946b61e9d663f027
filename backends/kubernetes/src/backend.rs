use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sless_backend::{
    Backend, BackendError, BoxStream, BuildStatus, Endpoint, FunctionRef, FunctionSpec, FunctionStatus,
    Generation, Identity, LogLine, Revision, Secret,
};
use sless_core::{Phase, Runtime, Seconds};
use sless_crds::{Function, proxy_token};
use tokio::time::Instant;

use crate::aside::{WITHIN, late};
use crate::calls::tell;
use crate::cluster::Cluster;
use crate::{build_log, status, statuses};

/// Functions on a cluster. The controller makes what the objects say come true; this tells the API of it.
///
/// What should be true is written by [`crate::KubernetesDefinitions`] (and by `kubectl`), so that there is nothing to be asked for here:
/// [`Backend::apply_function`] and [`Backend::delete_function`] have nothing to do. A list of endpoints that is replaced is not held
/// back until its holders have let go: pods are ended by Kubernetes, and a supervisor ends the calls that it has first.
#[derive(Debug, Clone)]
pub struct KubernetesBackend {
    cluster: Arc<Cluster>,
}

impl KubernetesBackend {
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster }
    }

    fn object(&self, function: &FunctionRef) -> Option<Arc<Function>> {
        self.cluster.functions.get(function.namespace.as_str(), function.name.as_str())
    }

    /// Whether its pods end when nobody calls, and after which time.
    fn ends_when_idle(&self, function: &FunctionRef) -> Option<Duration> {
        let object = self.object(function)?;
        let settings = object.spec.settings().ok()?;
        let by_trigger = self.cluster.triggers.all().iter().any(|trigger| {
            trigger.spec.enabled
                && trigger.metadata.deletion_timestamp.is_none()
                && trigger.metadata.namespace.as_deref() == Some(function.namespace.as_str())
                && trigger.spec.function_ref == function.name.as_str()
        });
        (settings.min_replicas == 0 || !by_trigger).then(|| Seconds::duration(settings.idle_timeout_sec))
    }
}

/// A function whose idle time is a few seconds costs a write so often while it is called.
const LEAST: Duration = Duration::from_secs(1);

#[async_trait]
impl Backend for KubernetesBackend {
    fn runtimes(&self) -> Vec<Runtime> {
        self.cluster.settings.runtimes.clone()
    }

    async fn apply_function(&self, _: FunctionSpec, _: Generation) -> Result<(), BackendError> {
        Ok(())
    }

    async fn delete_function(&self, _: &FunctionRef) -> Result<(), BackendError> {
        Ok(())
    }

    fn status(&self, function: &FunctionRef) -> Option<FunctionStatus> {
        self.cluster.index.status(function).map(|status| FunctionStatus::clone(&status))
    }

    fn watch_functions(&self) -> BoxStream<FunctionStatus> {
        statuses::watch(self.cluster.index.clone(), self.cluster.stop.clone())
    }

    fn endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        self.cluster.index.endpoints(function)
    }

    async fn revision_endpoints(
        &self,
        function: &FunctionRef,
        revision: Revision,
    ) -> Result<Arc<[Endpoint]>, BackendError> {
        let active = self.cluster.index.status(function).and_then(|status| status.active_revision.clone());
        if active.as_deref() == Some(&revision.name) {
            if self.endpoints(function).is_empty() {
                self.wake(function).await?;
                tokio::time::timeout(WITHIN, self.awake(function)).await.map_err(|_| late(&revision.name))?;
            }
            return Ok(self.endpoints(function));
        }
        self.cluster.asides.endpoints(&self.cluster, function, &revision.name).await
    }

    fn supervisors(&self, function: &FunctionRef) -> Vec<Endpoint> {
        self.cluster.index.supervisors(function)
    }

    async fn wake(&self, function: &FunctionRef) -> Result<bool, BackendError> {
        let status = self.cluster.index.status(function);
        let expected = status.is_some_and(|s| s.active_revision.is_some() && s.phase != Phase::Terminating);
        if expected && self.cluster.wakes.due(function, Instant::now()) {
            tell(&self.cluster.client, function).await?;
        }
        Ok(expected)
    }

    async fn awake(&self, function: &FunctionRef) {
        let mut changes = self.cluster.index.address_changes();
        loop {
            changes.mark_unchanged();
            // Without a sender there is no index either, and nothing to come.
            if !self.endpoints(function).is_empty() || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn called(&self, function: &FunctionRef) {
        let now = Instant::now();
        if !self.cluster.calls.due(function, now) {
            return;
        }
        let Some(idle) = self.ends_when_idle(function) else { return };
        let (cluster, function) = (self.cluster.clone(), function.clone());
        self.cluster.notes.spawn(async move {
            match tell(&cluster.client, &function).await {
                Ok(()) => cluster.calls.again_at(&function, now + (idle / 3).max(LEAST)),
                Err(error) => {
                    tracing::warn!(function = %function, error = %error, "failed to note that a function is called, trying again with a later call");
                }
            }
        });
    }

    fn proxy_token(&self, function: &FunctionRef) -> Secret {
        Secret::new(proxy_token(self.cluster.proxy_key.bytes(), &function.namespace, &function.name))
    }

    async fn platform_identity(&self, token: &str) -> Result<Option<Identity>, BackendError> {
        self.cluster.identities.of(&self.cluster.client, &self.cluster.system, token).await
    }

    fn build(&self, function: &FunctionRef) -> Option<BuildStatus> {
        status::build_status(&*self.object(function)?)
    }

    async fn build_log(
        &self,
        function: &FunctionRef,
        build: &str,
        from: usize,
    ) -> Result<Option<Vec<LogLine>>, BackendError> {
        build_log::read(&self.cluster.client, function, build, from).await
    }

    async fn shutdown(&self) {
        self.cluster.close().await;
    }
}
