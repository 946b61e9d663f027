//! The Job of a build: one container installs with no credential in reach, the next one packs and pushes without running any of the author's code.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    ConfigMapEnvSource, ConfigMapVolumeSource, Container, EnvFromSource, EnvVar, KeyToPath,
    LocalObjectReference, PodSpec, PodTemplateSpec, ResourceRequirements, SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};
use sless_backend::FunctionRef;
use sless_core::FunctionSettings;
use sless_crds::{Source, names};

use crate::config::Config;
use crate::context::RuntimeImage;
use crate::function::{container_security, mount, scratch, security, variable, whole};
use crate::objects::meta;
use crate::revision::{ATTEMPT, Dependencies};
use crate::tags;

/// The container that has the author's code run.
pub(crate) const INSTALL: &str = "install";
/// The one that has the push credential.
pub(crate) const PACK: &str = "pack";
/// Label: it moves a function to a new runtime image.
pub(crate) const LABEL_REBASE: &str = "sless.kube5s.ru/rebase";
/// For the end of a build that was stopped at its limit: to write why.
const SPARE_SEC: i64 = 15;
/// For a node that is not there yet.
const SCHEDULE_SEC: i64 = 1800;
/// An URL in the Job's spec is of use for as long as the build may wait and run.
const URL_SPARE_SEC: i64 = SCHEDULE_SEC + 600;

/// All that a Job is made from.
#[derive(Debug, Clone)]
pub(crate) struct Build<'a> {
    pub(crate) config: &'a Config,
    pub(crate) function: &'a FunctionRef,
    pub(crate) revision: &'a str,
    pub(crate) source: &'a Source,
    pub(crate) settings: &'a FunctionSettings,
    pub(crate) runtime: &'a str,
    pub(crate) image: &'a RuntimeImage,
    pub(crate) attempt: u32,
    pub(crate) rebase: bool,
    pub(crate) code_url: &'a str,
    pub(crate) known: &'a [Dependencies],
    /// Keys of the private index's Secret; empty if there is none.
    pub(crate) index: bool,
    pub(crate) registry_auth: bool,
}

/// The same input has the same name, so that it is never built twice at once, whoever starts it.
pub(crate) fn name(function: &FunctionRef, identity: &str, image: &str, attempt: u32) -> String {
    let input = format!("{}/{}/{identity}/{image}/{attempt}", function.namespace, function.name);
    let digest = sless_core::Digest::new(Sha256::digest(input).into()).to_string();
    format!("b-{}", digest.get(..20).unwrap_or_default())
}

/// Of the copy of the private index's Secret.
pub(crate) fn index_name(job: &str) -> String {
    format!("{job}-index")
}

/// For how long the code's URL has to be good.
pub(crate) fn url_lasts(settings: &FunctionSettings) -> std::time::Duration {
    std::time::Duration::from_secs((whole(settings.build_timeout_sec.get()) + URL_SPARE_SEC).unsigned_abs())
}

impl Build<'_> {
    pub(crate) fn name(&self) -> String {
        name(self.function, self.source.identity(), &self.image.pull, self.attempt)
    }

    /// Where the image goes: a repository of the function's own, a tag that says what is in it.
    pub(crate) fn target(&self) -> String {
        let repository = tags::repository(&self.config.registry, self.function);
        format!("{repository}:{}", tags::tag(self.source.identity(), &self.image.pull))
    }

    pub(crate) fn job(&self) -> Job {
        let timeout = whole(self.settings.build_timeout_sec.get());
        let mut metadata = meta(&self.name(), names::BUILDS);
        metadata.labels.get_or_insert_default().extend(self.labels());
        metadata.annotations = Some([(ATTEMPT.to_owned(), self.attempt.to_string())].into());
        Job {
            metadata,
            spec: Some(JobSpec {
                backoff_limit: Some(0),
                // The pod's own limit keeps the pod, and its log with it; this one is for pods that never run.
                active_deadline_seconds: Some(timeout + SPARE_SEC + SCHEDULE_SEC),
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta { labels: Some(self.labels()), ..ObjectMeta::default() }),
                    spec: Some(self.pod(timeout + SPARE_SEC)),
                },
                ..JobSpec::default()
            }),
            ..Job::default()
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels: BTreeMap<_, _> = [
            (names::LABEL_MANAGED_BY, names::MANAGER),
            (names::LABEL_NAMESPACE, self.function.namespace.as_str()),
            (names::LABEL_FUNCTION, self.function.name.as_str()),
            (names::LABEL_REVISION, self.revision),
            (names::LABEL_COMPONENT, names::COMPONENT_BUILD),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        if self.rebase {
            labels.insert(LABEL_REBASE.into(), "true".into());
        }
        labels
    }

    fn pod(&self, limit: i64) -> PodSpec {
        let mut volumes = vec![
            scratch("work", "4Gi"),
            scratch("tmp-install", "2Gi"),
            scratch("tmp-pack", "2Gi"),
            authorities(),
        ];
        if self.index {
            volumes.push(secret("index", &index_name(&self.name()), None));
        }
        if self.registry_auth {
            volumes.push(secret(
                "registry",
                names::REGISTRY_AUTH,
                Some((".dockerconfigjson", "config.json")),
            ));
        }
        PodSpec {
            restart_policy: Some("Never".into()),
            active_deadline_seconds: Some(limit),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            runtime_class_name: self.config.runtime_class.clone(),
            image_pull_secrets: self
                .registry_auth
                .then(|| vec![LocalObjectReference { name: names::REGISTRY_AUTH.into() }]),
            security_context: Some(security()),
            init_containers: Some(vec![self.install()]),
            containers: vec![self.pack()],
            volumes: Some(volumes),
            ..PodSpec::default()
        }
    }

    fn install(&self) -> Container {
        let mut mounts = vec![
            mount("work", "/work", false),
            mount("tmp-install", "/tmp", false),
            mount("ca", "/var/run/sless/ca", true),
        ];
        if self.index {
            mounts.push(mount("index", "/var/run/sless/index", true));
        }
        Container {
            name: INSTALL.into(),
            image: Some(self.image.pull.clone()),
            command: Some(vec!["sless-install".into()]),
            env: Some(env(&[
                ("CODE_URL", self.code_url),
                ("CODE_SHA256", &self.source.sha256),
                ("CONTENT_SHA256", self.source.content_sha256.as_deref().unwrap_or("")),
                ("RUNTIME", self.runtime),
                ("RUNTIME_IMAGE", &self.image.pull),
                ("ENTRYPOINT", &self.settings.entrypoint.to_string()),
                ("BUILD_TIMEOUT_SEC", &self.settings.build_timeout_sec.get().to_string()),
                ("KNOWN_DEPENDENCIES", &self.known_json()),
            ])),
            resources: Some(resources("250m", "256Mi", "2Gi")),
            env_from: Some(vec![EnvFromSource {
                config_map_ref: Some(ConfigMapEnvSource {
                    name: names::BUILD_ENVIRONMENT.into(),
                    optional: Some(true),
                }),
                ..EnvFromSource::default()
            }]),
            volume_mounts: Some(mounts),
            ..container()
        }
    }

    fn pack(&self) -> Container {
        let mut mounts = vec![mount("work", "/work", false), mount("tmp-pack", "/tmp", false)];
        if self.registry_auth {
            mounts.push(mount("registry", "/var/run/sless/registry", true));
        }
        Container {
            name: PACK.into(),
            image: Some(self.config.builder_image.clone()),
            command: Some(vec!["sless-pack".into()]),
            env: Some(env(&[
                ("BASE", &self.image.push),
                ("TARGET", &self.target()),
                ("KNOWN_DEPENDENCIES", &self.known_json()),
                ("REGISTRY_INSECURE", if self.config.registry_insecure { "true" } else { "false" }),
            ])),
            resources: Some(resources("250m", "128Mi", "1Gi")),
            volume_mounts: Some(mounts),
            ..container()
        }
    }

    fn known_json(&self) -> String {
        // Texts and numbers always have a JSON form.
        serde_json::to_string(self.known).unwrap_or_else(|_| "[]".to_owned())
    }
}

pub(super) fn container() -> Container {
    Container {
        image_pull_policy: Some("IfNotPresent".into()),
        security_context: Some(container_security()),
        termination_message_policy: Some("File".into()),
        ..Container::default()
    }
}

pub(super) fn env(variables: &[(&str, &str)]) -> Vec<EnvVar> {
    variables.iter().map(|(name, value)| variable(name, value)).collect()
}

pub(super) fn resources(cpu: &str, memory: &str, most: &str) -> ResourceRequirements {
    let quantity = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
    ResourceRequirements {
        requests: Some([quantity("cpu", cpu), quantity("memory", memory)].into()),
        limits: Some([quantity("memory", most)].into()),
        claims: None,
    }
}

/// Certificates of the network that builds run in, if it has some of its own.
fn authorities() -> Volume {
    Volume {
        name: "ca".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: names::BUILD_CA.into(),
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// All keys of a Secret as files, or one of them under another name.
pub(super) fn secret(volume: &str, name: &str, one: Option<(&str, &str)>) -> Volume {
    Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.to_owned()),
            default_mode: Some(0o440),
            items: one.map(|(key, path)| {
                vec![KeyToPath { key: key.into(), path: path.into(), ..KeyToPath::default() }]
            }),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}
