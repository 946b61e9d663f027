//! What every reconcile has at hand.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use sless_codestore_s3::S3Store;
use sless_core::{FunctionName, Namespace, Runtime};
use sless_crds::Function;
use sless_image::Registry;

use crate::builds::Places;
use crate::config::Config;
use crate::error::chain;
use crate::metrics::Metrics;
use crate::stores::Stores;
use crate::{jitter, troubles};

/// Kubernetes takes notes of a kilobyte.
const EVENT_MAX: usize = 1000;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// A runtime's image, by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeImage {
    /// As nodes pull it.
    pub(crate) pull: String,
    /// As builds name it.
    pub(crate) push: String,
}

pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) stores: Stores,
    pub(crate) code: S3Store,
    pub(crate) runtimes: BTreeMap<Runtime, RuntimeImage>,
    recorder: Recorder,
    pub(crate) registry: Registry,
    pub(crate) places: Arc<Places>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) proxy_key: Vec<u8>,
    /// Whether there is a credential for pushing.
    pub(crate) registry_auth: bool,
    /// Jobs whose logs are on their way.
    pub(crate) deliveries: Mutex<HashSet<String>>,
    failures: Mutex<HashMap<String, u32>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What a [`Context`] is made from beyond its collections.
pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) stores: Stores,
    pub(crate) runtimes: BTreeMap<Runtime, RuntimeImage>,
    pub(crate) places: Arc<Places>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) proxy_key: Vec<u8>,
    pub(crate) registry_auth: bool,
    pub(crate) registry: Registry,
}

impl Context {
    pub(crate) fn new(parts: Parts, recorder: Recorder) -> Self {
        Self {
            code: S3Store::existing(&parts.config.s3),
            client: parts.client,
            config: parts.config,
            stores: parts.stores,
            runtimes: parts.runtimes,
            recorder,
            registry: parts.registry,
            places: parts.places,
            metrics: parts.metrics,
            proxy_key: parts.proxy_key,
            registry_auth: parts.registry_auth,
            deliveries: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// What a function's supervisor believes the API by: only who has the key can make it, and no function can make another's.
    pub(crate) fn proxy_token(&self, namespace: &Namespace, function: &FunctionName) -> String {
        sless_crds::proxy_token(&self.proxy_key, namespace, function)
    }

    /// The Secret with which nodes pull functions, if the installation has one.
    pub(crate) fn pull_secret(&self) -> Option<Arc<Secret>> {
        let name = ObjectRef::new(crate::function::PULL_SECRET).within(&self.config.system_namespace);
        self.stores.installed.get(&name)
    }

    /// For `kubectl describe`. What can't be written is lost: nothing rests on it.
    pub(crate) async fn event(&self, function: &Function, kind: EventType, reason: &str, note: &str) {
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(troubles::end_of(note, EVENT_MAX).to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &function.object_ref(&())).await {
            tracing::debug!(error = %chain(&error), "write an event of {}", function.name_any());
        }
    }

    /// The pause before an object whose reconcile has failed is looked at again.
    pub(crate) fn pause_after_failure(&self, object: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(object.to_owned()).or_default();
        let pause = jitter::back_off(*count, FIRST_PAUSE, LONGEST_PAUSE);
        *count = count.saturating_add(1);
        pause
    }

    pub(crate) fn succeeded(&self, object: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}
