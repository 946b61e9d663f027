//! What runs for a function, as objects. Pure: everything is decided before.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, Secret, Service, ServiceAccount, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sha2::{Digest as _, Sha256};
use sless_core::{FunctionName, FunctionSettings, Namespace};
use sless_crds::names;

use super::{network, pod};
use crate::config::Config;
use crate::egress::Allowed;
use crate::objects::meta;

/// The one container of a function's pods.
pub(crate) const CONTAINER: &str = "function";

/// All that the objects are made from.
#[derive(Debug, Clone)]
pub(crate) struct Workload<'a> {
    pub(crate) config: &'a Config,
    pub(crate) namespace: &'a Namespace,
    pub(crate) name: &'a FunctionName,
    pub(crate) revision: &'a str,
    pub(crate) image: &'a str,
    /// Those of the revision where it fixes them, else the function's.
    pub(crate) settings: &'a FunctionSettings,
    /// Keys of the secrets that it names.
    pub(crate) variables: &'a BTreeMap<String, ByteString>,
    pub(crate) replicas: u32,
    pub(crate) proxy_token: &'a str,
    pub(crate) pull_secret: bool,
    pub(crate) egress: &'a [Allowed],
}

/// They are made in this order: pods come last.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    pub(crate) secrets: Vec<Secret>,
    pub(crate) account: ServiceAccount,
    pub(crate) service: Service,
    pub(crate) policy: k8s_openapi::api::networking::v1::NetworkPolicy,
    pub(crate) deployment: Deployment,
}

/// Which of a function's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Those that answer its calls.
    Main,
    /// The one of an earlier revision.
    Aside,
}

impl Role {
    pub(crate) fn component(self) -> &'static str {
        match self {
            Self::Main => names::COMPONENT_FUNCTION,
            Self::Aside => names::COMPONENT_ASIDE,
        }
    }
}

impl Workload<'_> {
    pub(crate) fn objects(&self) -> Objects {
        let mut secrets = vec![self.platform_secret()];
        secrets.extend(self.variables_secret());
        Objects {
            secrets,
            account: self.account(),
            service: self.service(),
            policy: network::policy(self),
            deployment: self.deployment(Role::Main),
        }
    }

    pub(super) fn object(&self) -> String {
        names::object_name(self.name)
    }

    pub(super) fn meta(&self, name: &str) -> ObjectMeta {
        let mut meta = meta(name, &names::workload_namespace(self.namespace));
        meta.labels.get_or_insert_default().extend(self.labels());
        meta
    }

    /// Whose it is.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        [(names::LABEL_NAMESPACE, self.namespace.to_string()), (names::LABEL_FUNCTION, self.name.to_string())]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    /// Which pods are meant; it can't be changed later.
    pub(super) fn selector(&self, role: Role) -> BTreeMap<String, String> {
        let mut labels = self.labels();
        labels.insert(names::LABEL_COMPONENT.into(), role.component().into());
        if role == Role::Aside {
            labels.insert(names::LABEL_REVISION.into(), self.revision.into());
        }
        labels
    }

    pub(super) fn platform_name(&self) -> String {
        format!("{}-platform", self.object())
    }

    /// By content: a pod of the revision before must not start with the next one's values.
    pub(super) fn variables_name(&self) -> Option<String> {
        if self.variables.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for (name, value) in self.variables {
            hash.update(name);
            hash.update([0]);
            hash.update(value.0.len().to_le_bytes());
            hash.update(&value.0);
        }
        let digest = sless_core::Digest::new(hash.finalize().into()).to_string();
        Some(format!("{}-env-{}", self.object(), digest.get(..10).unwrap_or_default()))
    }

    fn platform_secret(&self) -> Secret {
        Secret {
            metadata: self.meta(&self.platform_name()),
            data: Some([(pod::PROXY_TOKEN.into(), ByteString(self.proxy_token.into()))].into()),
            ..Secret::default()
        }
    }

    fn variables_secret(&self) -> Option<Secret> {
        Some(Secret {
            metadata: self.meta(&self.variables_name()?),
            data: Some(self.variables.clone()),
            immutable: Some(true),
            ..Secret::default()
        })
    }

    fn account(&self) -> ServiceAccount {
        ServiceAccount {
            metadata: self.meta(&self.object()),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        }
    }

    /// For its EndpointSlices alone, so without an address of its own.
    fn service(&self) -> Service {
        let port = |name: &str, port: u16| ServicePort {
            name: Some(name.to_owned()),
            port: port.into(),
            target_port: Some(IntOrString::String(name.to_owned())),
            ..ServicePort::default()
        };
        Service {
            metadata: self.meta(&names::service_name(self.name)),
            spec: Some(ServiceSpec {
                cluster_ip: Some("None".into()),
                selector: Some(self.selector(Role::Main)),
                ports: Some(vec![port("http", names::HTTP_PORT), port("admin", names::ADMIN_PORT)]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    pub(crate) fn deployment(&self, role: Role) -> Deployment {
        let name = match role {
            Role::Main => self.object(),
            Role::Aside => format!("{}-{}", self.object(), self.revision),
        };
        let mut metadata = self.meta(&name);
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(names::LABEL_COMPONENT.into(), role.component().into());
        labels.insert(names::LABEL_REVISION.into(), self.revision.into());
        let mut pods = self.selector(role);
        pods.insert(names::LABEL_REVISION.into(), self.revision.into());
        pods.insert(names::LABEL_MANAGED_BY.into(), names::MANAGER.into());
        let scraped = [
            ("prometheus.io/scrape", "true".to_owned()),
            ("prometheus.io/port", names::ADMIN_PORT.to_string()),
        ];
        Deployment {
            metadata,
            spec: DeploymentSpec {
                replicas: Some(i32::try_from(self.replicas).unwrap_or(i32::MAX)),
                revision_history_limit: Some(1),
                selector: LabelSelector {
                    match_labels: Some(self.selector(role)),
                    ..LabelSelector::default()
                },
                strategy: Some(DeploymentStrategy {
                    type_: Some("RollingUpdate".into()),
                    // What answers goes on answering until the next one does.
                    rolling_update: Some(RollingUpdateDeployment {
                        max_surge: Some(IntOrString::Int(1)),
                        max_unavailable: Some(IntOrString::Int(0)),
                    }),
                }),
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(pods),
                        annotations: Some(scraped.map(|(name, value)| (name.to_owned(), value)).into()),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(pod::spec(self)),
                },
                ..DeploymentSpec::default()
            },
            ..Deployment::default()
        }
    }
}
