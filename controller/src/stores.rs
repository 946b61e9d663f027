//! What is on the cluster, as watches tell it: one watch of each kind, kept in memory, and each change sent to whom it concerns.

use std::fmt::Debug;
use std::hash::Hash;

use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sless_crds::{Function, Trigger, names};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::changes::{self, Changed};
use crate::config::Config;

/// The caches.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) functions: Store<Function>,
    pub(crate) triggers: Store<Trigger>,
    pub(crate) namespaces: Store<Namespace>,
    pub(crate) revisions: Store<ControllerRevision>,
    pub(crate) deployments: Store<Deployment>,
    pub(crate) pods: Store<Pod>,
    pub(crate) jobs: Store<Job>,
    pub(crate) services: Store<Service>,
    pub(crate) accounts: Store<ServiceAccount>,
    pub(crate) policies: Store<NetworkPolicy>,
    pub(crate) quotas: Store<ResourceQuota>,
    pub(crate) ingresses: Store<Ingress>,
    /// The controller's own.
    pub(crate) secrets: Store<Secret>,
    /// Those that functions may name.
    pub(crate) named: Store<Secret>,
    /// Those beside the controller that it copies.
    pub(crate) installed: Store<Secret>,
}

impl Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}

/// Starts the watches in `tasks`; each of them ends only when the process does.
pub(crate) fn start(
    client: &Client,
    config: &Config,
    queues: &mpsc::Sender<Changed>,
    tasks: &mut JoinSet<()>,
) -> Stores {
    let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGER);
    let ours = watcher::Config::default().labels(&ours);
    let all = watcher::Config::default();
    let named = watcher::Config::default().labels(&format!("{}=true", names::LABEL_SECRET));
    let installed =
        watcher::Config::default().fields(&format!("metadata.name={}", crate::function::PULL_SECRET));
    let mut watches = Watches { queues, tasks };
    Stores {
        functions: watches.watch(Api::all(client.clone()), &all, changes::function),
        triggers: watches.watch(Api::all(client.clone()), &all, changes::trigger),
        namespaces: watches.watch(Api::all(client.clone()), &all, changes::namespace),
        revisions: watches.watch(Api::all(client.clone()), &ours, changes::child),
        deployments: watches.watch(Api::all(client.clone()), &ours, changes::child),
        pods: watches.watch(Api::all(client.clone()), &ours, changes::child),
        jobs: watches.watch(Api::namespaced(client.clone(), names::BUILDS), &ours, changes::build),
        services: watches.watch(Api::all(client.clone()), &ours, changes::child),
        accounts: watches.watch(Api::all(client.clone()), &ours, changes::child),
        policies: watches.watch(Api::all(client.clone()), &ours, changes::child),
        quotas: watches.watch(Api::all(client.clone()), &ours, changes::child),
        ingresses: watches.watch(
            Api::namespaced(client.clone(), &config.system_namespace),
            &ours,
            changes::ingress,
        ),
        secrets: watches.watch(Api::all(client.clone()), &ours, changes::child),
        named: watches.watch(Api::all(client.clone()), &named, changes::named_secret),
        installed: watches.watch(
            Api::namespaced(client.clone(), &config.system_namespace),
            &installed,
            |_: &Secret| Changed::Nothing,
        ),
    }
}

impl Stores {
    /// Returns once each has been filled.
    pub(crate) async fn filled(&self) {
        // A writer that is gone has taken the process with it.
        let _ = tokio::join!(
            self.functions.wait_until_ready(),
            self.triggers.wait_until_ready(),
            self.namespaces.wait_until_ready(),
            self.revisions.wait_until_ready(),
            self.deployments.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.jobs.wait_until_ready(),
            self.services.wait_until_ready(),
            self.accounts.wait_until_ready(),
            self.policies.wait_until_ready(),
            self.quotas.wait_until_ready(),
            self.ingresses.wait_until_ready(),
            self.secrets.wait_until_ready(),
            self.named.wait_until_ready(),
            self.installed.wait_until_ready(),
        );
    }
}

struct Watches<'a> {
    queues: &'a mpsc::Sender<Changed>,
    tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    fn watch<K>(&mut self, api: Api<K>, config: &watcher::Config, concerns: fn(&K) -> Changed) -> Store<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        let (reader, writer) = store();
        let queues = self.queues.clone();
        let stream = watch(api, config.clone()).default_backoff().modify(|object: &mut K| {
            // A third of each object, and nobody reads it.
            object.managed_fields_mut().clear();
        });
        let stream = reflector(writer, stream);
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) => {
                        // Nobody listens any more only when the process ends.
                        let _ = queues.send(concerns(&object)).await;
                    }
                    Ok(Event::Init | Event::InitDone) => {}
                    // It goes on by itself, with back-off.
                    Err(error) => tracing::warn!(
                        kind = %K::kind(&K::DynamicType::default()),
                        error = %crate::error::chain(&error),
                        "watch failed"
                    ),
                }
            }
        });
        reader
    }
}
