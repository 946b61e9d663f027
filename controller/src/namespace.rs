//! `sless-fn-{ns}`: where what runs for a namespace lies.

use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, ResourceQuota, ResourceQuotaSpec, Secret};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::DeleteParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use sless_core::Namespace;
use sless_crds::names;

use crate::applied::{self, ensure};
use crate::context::Context;
use crate::error::{Error, acting, chain};
use crate::function::PULL_SECRET;
use crate::objects::meta;
use crate::quota::Quota;

const DEFAULT_DENY: &str = "default-deny";
const QUOTA: &str = "functions";

/// What lies in it beside the functions.
#[derive(Debug, Clone)]
struct Objects {
    namespace: KubeNamespace,
    policy: NetworkPolicy,
    quota: ResourceQuota,
    pull: Option<Secret>,
}

fn build(namespace: &Namespace, quota: Quota, pull: Option<&Secret>) -> Objects {
    let name = names::workload_namespace(namespace);
    let mut whole = KubeNamespace { metadata: meta(&name, ""), ..KubeNamespace::default() };
    whole.metadata.namespace = None;
    whole.labels_mut().extend(
        [
            (names::LABEL_NAMESPACE, namespace.as_str()),
            ("pod-security.kubernetes.io/enforce", "restricted"),
            ("pod-security.kubernetes.io/enforce-version", "latest"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let within = |object: &str| {
        let mut meta = meta(object, &name);
        meta.labels.get_or_insert_default().insert(names::LABEL_NAMESPACE.into(), namespace.to_string());
        meta
    };
    Objects {
        namespace: whole,
        policy: NetworkPolicy {
            metadata: within(DEFAULT_DENY),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(LabelSelector::default()),
                policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
                ..NetworkPolicySpec::default()
            }),
        },
        quota: ResourceQuota {
            metadata: within(QUOTA),
            spec: Some(ResourceQuotaSpec { hard: Some(quota), ..ResourceQuotaSpec::default() }),
            ..ResourceQuota::default()
        },
        pull: pull.map(|secret| Secret {
            metadata: within(PULL_SECRET),
            data: secret.data.clone(),
            type_: secret.type_.clone(),
            ..Secret::default()
        }),
    }
}

/// Makes it, or puts right what is not as it should be.
///
/// # Errors
/// [`Error::Taken`] if there is one of that name that somebody else made; [`Error::Kube`].
pub(crate) async fn ensure_workloads(
    context: &Context,
    namespace: &Namespace,
    quota: Quota,
) -> Result<(), Error> {
    let name = names::workload_namespace(namespace);
    let stores = &context.stores;
    let live = stores.namespaces.get(&ObjectRef::new(&name));
    if let Some(live) = &live {
        if live.labels().get(names::LABEL_NAMESPACE).map(String::as_str) != Some(namespace.as_str()) {
            return Err(Error::Taken { name });
        }
        if live.metadata.deletion_timestamp.is_some() {
            return Err(Error::Ending { name });
        }
    }
    let objects = build(namespace, quota, context.pull_secret().as_deref());
    let client = &context.client;
    let api = Api::all(client.clone());
    if live.is_none() {
        // The cache may be behind, and what somebody else made must not be taken over.
        let there: Option<KubeNamespace> =
            api.get_opt(&name).await.map_err(acting("read the namespace", &name))?;
        if let Some(there) = there
            && there.labels().get(names::LABEL_NAMESPACE).map(String::as_str) != Some(namespace.as_str())
        {
            return Err(Error::Taken { name });
        }
    }
    let made = applied::ensure_with(&api, live.as_deref(), objects.namespace).await;
    if made.map_err(acting("make the namespace", &name))?.is_some() {
        tracing::info!(namespace = %namespace, "made {name} as it should be");
    }
    let live = stores.policies.get(&ObjectRef::new(DEFAULT_DENY).within(&name));
    ensure(client, live.as_deref(), objects.policy)
        .await
        .map_err(acting("make the NetworkPolicy of", &name))?;
    let live = stores.quotas.get(&ObjectRef::new(QUOTA).within(&name));
    ensure(client, live.as_deref(), objects.quota).await.map_err(acting("make the quota of", &name))?;
    if let Some(pull) = objects.pull {
        let live = stores.secrets.get(&ObjectRef::new(PULL_SECRET).within(&name));
        ensure(client, live.as_deref(), pull).await.map_err(acting("copy the pull secret to", &name))?;
    }
    Ok(())
}

/// Removes what runs for a namespace that is going or gone, once none of its functions is left.
///
/// # Errors
/// [`Error::Kube`].
pub(crate) async fn sweep(context: &Context, namespace: &Namespace) -> Result<(), Error> {
    let stores = &context.stores;
    let staying = stores
        .namespaces
        .get(&ObjectRef::new(namespace.as_str()))
        .is_some_and(|live| live.metadata.deletion_timestamp.is_none());
    let functions =
        || stores.functions.find(|function| function.namespace().as_deref() == Some(namespace.as_str()));
    let name = names::workload_namespace(namespace);
    let ours = stores.namespaces.get(&ObjectRef::new(&name)).is_some_and(|live| {
        live.metadata.deletion_timestamp.is_none()
            && live.labels().get(names::LABEL_NAMESPACE).map(String::as_str) == Some(namespace.as_str())
            && live.labels().get(names::LABEL_MANAGED_BY).map(String::as_str) == Some(names::MANAGER)
    });
    if staying || functions().is_some() {
        return Ok(());
    }
    let api: Api<KubeNamespace> = Api::all(context.client.clone());
    // Watches of two kinds have no common order: asked once more, what is there is surely gone.
    let there = api.get_opt(namespace.as_str()).await.map_err(acting("read the namespace", namespace))?;
    if there.is_some_and(|there| there.metadata.deletion_timestamp.is_none()) {
        return Ok(());
    }
    if ours {
        match api.delete(&name, &DeleteParams::default()).await {
            Err(error) if !crate::error::is_absent(&error) => {
                return Err(acting("delete the namespace", &name)(error));
            }
            _ => tracing::info!(namespace = %namespace, "removed {name}: its namespace is gone"),
        }
    }
    // Code can be kept for a function that nobody has made.
    match context.code.forget(namespace).await {
        Ok(0) => {}
        Ok(zips) => tracing::info!(namespace = %namespace, zips, "removed code of {namespace}: it is gone"),
        Err(error) => {
            tracing::warn!(namespace = %namespace, error = %chain(&error), "remove the code of {namespace}")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_closed_restricted_and_bounded() {
        let objects = build(&"team".parse().unwrap(), crate::quota::parse("pods=5").unwrap(), None);
        assert_eq!(
            serde_json::to_value(&objects.namespace).unwrap()["metadata"],
            json!({"name": "sless-fn-team", "labels": {
                "app.kubernetes.io/managed-by": "sless-controller",
                "sless.kube5s.ru/namespace": "team",
                "pod-security.kubernetes.io/enforce": "restricted",
                "pod-security.kubernetes.io/enforce-version": "latest",
            }})
        );
        assert_eq!(
            serde_json::to_value(&objects.policy).unwrap()["spec"],
            json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
        );
        assert_eq!(serde_json::to_value(&objects.quota).unwrap()["spec"], json!({"hard": {"pods": "5"}}));
    }
}
