//! A cluster to test on, and namespaces that go again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sless_backend::FunctionRef;
use sless_backend_kubernetes::{Cluster, KubernetesBackend, KubernetesDefinitions, Settings};

/// Longest wait for something to come true.
const WITHIN: Duration = Duration::from_secs(60);

/// Connected, with namespaces of its own.
pub(crate) struct Place {
    pub(crate) client: Client,
    /// As what is tested has it: `SLESS_TEST_AS` may name who that is.
    pub(crate) config: Config,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) backend: KubernetesBackend,
    pub(crate) definitions: KubernetesDefinitions,
    pub(crate) namespace: String,
    /// Where the installation would be.
    pub(crate) system: String,
}

impl Place {
    /// Runs `test` in namespaces that nobody else uses, and removes them.
    pub(crate) async fn run(test: impl AsyncFnOnce(&Self)) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let file = std::env::var("SLESS_TEST_KUBECONFIG")
            .expect("SLESS_TEST_KUBECONFIG must name the kubeconfig of a cluster to test on");
        let kubeconfig = Kubeconfig::read_from(file).unwrap();
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config.clone()).unwrap();
        config.auth_info.impersonate = std::env::var("SLESS_TEST_AS").ok();
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (namespace, system) = (format!("bk-test-{mark}"), format!("bk-test-system-{mark}"));
        make_namespace(&client, &system, &[]).await;
        let settings = Settings {
            system_namespace: Some(system.clone()),
            runtimes: vec!["python3.11".parse().unwrap()],
            host_suffixes: vec![format!("{mark}.example")],
        };
        let cluster = Cluster::with_config(config.clone(), settings).await.unwrap();
        let place = Self {
            backend: KubernetesBackend::new(cluster.clone()),
            definitions: KubernetesDefinitions::new(cluster.clone()),
            client,
            config,
            cluster,
            namespace,
            system,
        };
        // What has failed leaves nothing behind either.
        let outcome = AssertUnwindSafe(test(&place)).catch_unwind().await;
        let namespaces: Api<Namespace> = place.all();
        let all = namespaces.list(&Default::default()).await.unwrap();
        for name in all.items.into_iter().filter_map(|object| object.metadata.name) {
            if name == place.system
                || name == place.namespace
                || name.starts_with(&format!("{}-b", place.namespace))
                || name == place.workloads()
            {
                let _ = namespaces.delete(&name, &DeleteParams::default()).await;
            }
        }
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// A host that triggers may have here.
    pub(crate) fn host(&self) -> String {
        let mark = self.namespace.strip_prefix("bk-test-").unwrap();
        format!("suite.{mark}.example")
    }

    pub(crate) fn workloads(&self) -> String {
        format!("sless-fn-{}", self.namespace)
    }

    pub(crate) fn function(&self, name: &str) -> FunctionRef {
        FunctionRef { namespace: self.namespace.parse().unwrap(), name: name.parse().unwrap() }
    }

    pub(crate) fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(crate) fn within<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

pub(crate) async fn make_namespace(client: &Client, name: &str, labels: &[(&str, &str)]) {
    let labels: BTreeMap<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() };
    let object = Namespace { metadata, ..Default::default() };
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

/// An object as it is written in JSON.
pub(crate) async fn make<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + DeserializeOwned + Debug + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// Waits for what `check` gives.
pub(crate) async fn until<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let began = tokio::time::Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(began.elapsed() < WITHIN, "did not come true within {WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
