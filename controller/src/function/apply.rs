//! What is wanted of the cluster for one revision, and what its pods say.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use sless_core::FunctionSettings;
use sless_crds::names;

use super::objects::{Objects, Workload};
use super::pass::Pass;
use super::{probe, rollout};
use crate::applied::ensure;
use crate::error::{Error, acting};
use crate::revision::Revision;
use crate::troubles::{self, Trouble};

/// How its pods are.
pub(super) struct Pods {
    pub(super) complete: bool,
    pub(super) available: i32,
    pub(super) trouble: Option<Trouble>,
    /// One has started, and nobody has told yet how it is.
    pub(super) starting: bool,
}

impl Pass<'_> {
    pub(super) fn workload<'w>(
        &'w self,
        target: &'w Revision,
        settings: &'w FunctionSettings,
        variables: &'w BTreeMap<String, ByteString>,
        replicas: u32,
        proxy_token: &'w str,
    ) -> Workload<'w> {
        Workload {
            config: &self.context.config,
            namespace: &self.valid.of.namespace,
            name: &self.valid.of.name,
            revision: &target.name,
            image: target.image.as_deref().unwrap_or_default(),
            settings,
            variables,
            replicas,
            proxy_token,
            pull_secret: self.context.pull_secret().is_some(),
            egress: &self.valid.egress,
        }
    }

    pub(super) async fn apply(
        &self,
        target: &Revision,
        settings: &FunctionSettings,
        variables: &BTreeMap<String, ByteString>,
        replicas: u32,
    ) -> Result<Arc<Deployment>, Error> {
        let token = self.context.proxy_token(&self.valid.of.namespace, &self.valid.of.name);
        let Objects { secrets, account, service, policy, deployment } =
            self.workload(target, settings, variables, replicas, &token).objects();
        let (client, stores) = (&self.context.client, &self.context.stores);
        let namespace = names::workload_namespace(&self.valid.of.namespace);
        for secret in secrets {
            let name = secret.name_any();
            let live = stores.secrets.get(&ObjectRef::new(&name).within(&namespace));
            ensure(client, live.as_deref(), secret).await.map_err(acting("write the Secret", &name))?;
        }
        let name = account.name_any();
        let live = stores.accounts.get(&ObjectRef::new(&name).within(&namespace));
        ensure(client, live.as_deref(), account).await.map_err(acting("write the ServiceAccount", &name))?;
        let live = stores.policies.get(&ObjectRef::new(&name).within(&namespace));
        ensure(client, live.as_deref(), policy).await.map_err(acting("write the NetworkPolicy", &name))?;
        let service_name = service.name_any();
        let live = stores.services.get(&ObjectRef::new(&service_name).within(&namespace));
        ensure(client, live.as_deref(), service).await.map_err(acting("write the Service", &service_name))?;
        let live = stores.deployments.get(&ObjectRef::new(&name).within(&namespace));
        let written = ensure(client, live.as_deref(), deployment)
            .await
            .map_err(acting("write the Deployment", &name))?;
        match (written, live) {
            (Some(written), _) => Ok(Arc::new(written)),
            (None, Some(live)) => Ok(live),
            (None, None) => Err(Error::Stale { name }),
        }
    }

    pub(super) async fn look(&self, target: &Revision, deployment: &Deployment) -> Pods {
        let complete =
            rollout::complete(deployment) && rollout::revision_of(deployment) == Some(&target.name);
        let available = deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
        let mut pods = Pods { complete, available, trouble: None, starting: false };
        if complete {
            return pods;
        }
        pods.trouble = troubles::of_deployment(deployment);
        let image = target.image.as_deref();
        let of = |pod: &Pod| {
            let label = |name: &str| pod.labels().get(name).map(String::as_str);
            label(names::LABEL_FUNCTION) == Some(self.valid.of.name.as_str())
                && label(names::LABEL_NAMESPACE) == Some(self.valid.of.namespace.as_str())
                && label(names::LABEL_COMPONENT) == Some(names::COMPONENT_FUNCTION)
                && label(names::LABEL_REVISION) == Some(&target.name)
                && pod.metadata.deletion_timestamp.is_none()
                && pod
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.containers.iter().any(|c| c.image.as_deref() == image))
        };
        for pod in self.context.stores.pods.state_filter(|pod| of(pod)) {
            match troubles::of_pod(&pod) {
                Some(trouble) if trouble.code || pods.trouble.is_none() => pods.trouble = Some(trouble),
                Some(_) => {}
                None => match probe::of_pod(&pod).await {
                    probe::Readiness::Failed(why) => pods.trouble = Some(Trouble::code("LoadFailed", why)),
                    probe::Readiness::Starting => pods.starting = true,
                    probe::Readiness::NotAsked => {}
                },
            }
        }
        pods
    }

    /// Values of secrets that no pod needs any more.
    pub(super) async fn tidy_secrets(&self, keep: &[Option<String>]) -> Result<(), Error> {
        let head = format!("{}-env-", names::object_name(&self.valid.of.name));
        let namespace = names::workload_namespace(&self.valid.of.namespace);
        let stale = self.context.stores.secrets.state_filter(|secret| {
            let name = secret.name_any();
            secret.metadata.namespace.as_ref() == Some(&namespace)
                && secret.labels().get(names::LABEL_FUNCTION).map(String::as_str)
                    == Some(self.valid.of.name.as_str())
                && name.starts_with(&head)
                && !keep.contains(&Some(name))
        });
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &namespace);
        for secret in stale {
            let name = secret.name_any();
            match api.delete(&name, &kube::api::DeleteParams::default()).await {
                Err(error) if !crate::error::is_absent(&error) => {
                    return Err(acting("delete the Secret", &name)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
