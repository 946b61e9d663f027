//! The connection to a cluster, and what is known of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use sless_backend::BackendError;
use sless_crds::names::{COMPONENT_ASIDE, LABEL_COMPONENT, LABEL_FUNCTION, LABEL_REVISION};
use sless_crds::{Function, Trigger};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::aside::Asides;
use crate::calls::Calls;
use crate::error::unavailable;
use crate::identity::Identities;
use crate::index::Index;
use crate::mirror::Mirror;
use crate::proxy_key::ProxyKey;
use crate::settings::Settings;

/// Longest wait for all objects to be listed at start.
const FIRST_LISTS: Duration = Duration::from_secs(60);
/// Longest silence of the API server on a connection that it should speak on.
const SILENCE: Duration = Duration::from_secs(60);
/// It ends each watch after so many seconds, less than [`SILENCE`]; one that does not end a few seconds later is given up. So this is how
/// long what is told may be old when the other end is gone without a word.
const WATCH_SECONDS: u32 = 45;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Between looks at the pods of earlier revisions.
const RENEW_EVERY: Duration = Duration::from_secs(30);

/// What [`crate::KubernetesBackend`] and [`crate::KubernetesDefinitions`] share.
pub struct Cluster {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    /// Where API and controller run.
    pub(crate) system: String,
    pub(crate) index: Arc<Index>,
    pub(crate) functions: Mirror<Function>,
    pub(crate) triggers: Mirror<Trigger>,
    pub(crate) namespaces: Mirror<Namespace>,
    pub(crate) revisions: Mirror<ControllerRevision>,
    pub(crate) proxy_key: ProxyKey,
    pub(crate) identities: Identities,
    /// Calls of functions without an endpoint, and of those that have some.
    pub(crate) wakes: Calls,
    pub(crate) calls: Calls,
    pub(crate) asides: Asides,
    pub(crate) stop: CancellationToken,
    /// They end with this.
    tasks: Mutex<JoinSet<()>>,
    /// What is written for a call without its waiting for it.
    pub(crate) notes: TaskTracker,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Connects to the cluster that this process runs in, else to that of `KUBECONFIG`, and waits until all that is there is known.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if it does not answer or refuses; [`BackendError::Conflict`] if our Secret in it is damaged.
    pub async fn connect(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let config = kube::Config::infer().await.map_err(|source| BackendError::Unavailable {
            action: "find a cluster (in a pod that of its ServiceAccount, else that of KUBECONFIG)"
                .to_owned(),
            source: Box::new(source),
        })?;
        Self::with_config(config, settings).await
    }

    /// As [`Cluster::connect`], for who knows where the cluster is.
    ///
    /// # Errors
    /// The same.
    pub async fn with_config(
        mut config: kube::Config,
        settings: Settings,
    ) -> Result<Arc<Self>, BackendError> {
        // By default a list is waited for as long as its connection seems to be there.
        config.read_timeout.get_or_insert(SILENCE);
        config.connect_timeout = Some(CONNECT_WITHIN);
        let client = Client::try_from(config).map_err(unavailable("prepare to speak to the API server"))?;
        let system = settings.system_namespace.as_deref().unwrap_or(client.default_namespace()).to_owned();
        let proxy_key = ProxyKey::load(&client, &system).await?;
        let index = Arc::new(Index::default());
        let mut tasks = JoinSet::new();
        let told = index.clone();
        let functions =
            Mirror::spawn(Api::<Function>::all(client.clone()), watched(), &mut tasks, move |event| {
                told.function_event(event);
            });
        let triggers = Mirror::spawn(Api::<Trigger>::all(client.clone()), watched(), &mut tasks, |_| {});
        let namespaces = Mirror::spawn(Api::<Namespace>::all(client.clone()), watched(), &mut tasks, |_| {});
        // Each function that is shown shows what is in one of them.
        let kept = watched().labels(LABEL_REVISION);
        let all = Api::<ControllerRevision>::all(client.clone());
        let revisions = Mirror::spawn(all, kept, &mut tasks, |_| {});
        let told = index.clone();
        let ours = watched().labels(LABEL_FUNCTION);
        let slices =
            Mirror::spawn(Api::<EndpointSlice>::all(client.clone()), ours, &mut tasks, move |event| {
                told.slice_event(event);
            });
        let told = index.clone();
        let asides = watched().labels(&format!("{LABEL_COMPONENT}={COMPONENT_ASIDE}"));
        let pods = Mirror::spawn(Api::<Pod>::all(client.clone()), asides, &mut tasks, move |event| {
            told.aside_event(event);
        });
        let complete = tokio::try_join!(
            functions.complete(FIRST_LISTS),
            triggers.complete(FIRST_LISTS),
            namespaces.complete(FIRST_LISTS),
            revisions.complete(FIRST_LISTS),
            slices.complete(FIRST_LISTS),
            pods.complete(FIRST_LISTS),
        );
        complete.map_err(|why| BackendError::Unavailable {
            action: "learn what is in the cluster".to_owned(),
            source: why.into(),
        })?;
        let cluster = Arc::new(Self {
            client,
            settings,
            system,
            index,
            functions,
            triggers,
            namespaces,
            revisions,
            proxy_key,
            identities: Identities::default(),
            wakes: Calls::default(),
            calls: Calls::default(),
            asides: Asides::default(),
            stop: CancellationToken::new(),
            tasks: Mutex::new(tasks),
            notes: TaskTracker::new(),
        });
        cluster.renew_asides();
        Ok(cluster)
    }

    fn renew_asides(self: &Arc<Self>) {
        // Weak, for the tasks end with the cluster and not the cluster with them.
        let cluster = Arc::downgrade(self);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(RENEW_EVERY).await;
                let Some(cluster) = cluster.upgrade() else { return };
                cluster.asides.renew(&cluster).await;
            }
        });
    }

    /// Ends all that this process does with the cluster; nothing in it changes.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.notes.close();
        self.notes.wait().await;
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }
}

fn watched() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}
