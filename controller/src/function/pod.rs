//! A function's pod.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource, EnvVar, HTTPGetAction,
    KeyToPath, LocalObjectReference, PodSecurityContext, PodSpec, Probe, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecretEnvSource, SecretProjection, SecurityContext,
    ServiceAccountTokenProjection, TopologySpreadConstraint, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sless_crds::names;

use super::objects::{CONTAINER, Role, Workload};

/// Nobody's, in images and pods alike.
pub(crate) const NOBODY: i64 = 65_532;
/// Key and file of the token by which a pod believes the API.
pub(super) const PROXY_TOKEN: &str = "proxy-token";
/// The Secret with which nodes pull; a copy of one of the same name beside the controller.
pub(crate) const PULL_SECRET: &str = "sless-registry-pull";
const TOKENS: &str = "/var/run/sless";
const SPOOL: &str = "/var/spool/sless";
/// From a call's limit to SIGKILL; the supervisor's own default.
const KILL_GRACE_SEC: i64 = 1;
/// Delivery of the last records: the API may be away for a moment.
const FLUSH_SEC: i64 = 60;
const TOKEN_LASTS_SEC: i64 = 3600;

pub(super) fn spec(workload: &Workload<'_>) -> PodSpec {
    let drain = whole(workload.settings.timeout_sec.get());
    PodSpec {
        service_account_name: Some(workload.object()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        runtime_class_name: workload.config.runtime_class.clone(),
        image_pull_secrets: workload
            .pull_secret
            .then(|| vec![LocalObjectReference { name: PULL_SECRET.into() }]),
        termination_grace_period_seconds: Some(drain + KILL_GRACE_SEC + FLUSH_SEC + 5),
        security_context: Some(security()),
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(LabelSelector {
                match_labels: Some(workload.selector(Role::Main)),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        }]),
        containers: vec![container(workload)],
        volumes: Some(vec![scratch("tmp", "1Gi"), scratch("spool", "128Mi"), tokens(workload)]),
        ..PodSpec::default()
    }
}

/// Seconds, not too few.
#[expect(clippy::cast_possible_truncation, reason = "settings have at most 604,800 seconds")]
pub(crate) fn whole(seconds: f64) -> i64 {
    seconds.ceil() as i64
}

/// What the level `restricted` asks of pods.
pub(crate) fn security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NOBODY),
        run_as_group: Some(NOBODY),
        fs_group: Some(NOBODY),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

/// And of containers.
pub(crate) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}

pub(crate) fn scratch(name: &str, limit: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(limit.to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

pub(crate) fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Kubernetes replaces `$(NAME)` in values, which nobody here means.
pub(crate) fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.replace('$', "$$")), value_from: None }
}

fn tokens(workload: &Workload<'_>) -> Volume {
    let report = ServiceAccountTokenProjection {
        audience: Some(names::AUDIENCE.into()),
        expiration_seconds: Some(TOKEN_LASTS_SEC),
        path: "report-token".into(),
        ..ServiceAccountTokenProjection::default()
    };
    let proxy = SecretProjection {
        name: workload.platform_name(),
        items: Some(vec![KeyToPath {
            key: PROXY_TOKEN.into(),
            path: PROXY_TOKEN.into(),
            ..KeyToPath::default()
        }]),
        optional: None,
    };
    Volume {
        name: "tokens".into(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![
                VolumeProjection { service_account_token: Some(report), ..VolumeProjection::default() },
                VolumeProjection { secret: Some(proxy), ..VolumeProjection::default() },
            ]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn container(workload: &Workload<'_>) -> Container {
    let settings = workload.settings;
    let memory = Quantity(format!("{}Mi", settings.memory_mb));
    let cpu = Quantity(format!("{}m", (settings.cpu_milli / workload.config.cpu_overcommit).max(1)));
    let from = |name: String| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    };
    Container {
        name: CONTAINER.into(),
        image: Some(workload.image.to_owned()),
        // By digest, so what a node has is what is meant.
        image_pull_policy: Some("IfNotPresent".into()),
        ports: Some(vec![port("http", names::HTTP_PORT), port("admin", names::ADMIN_PORT)]),
        env_from: workload.variables_name().map(|name| vec![from(name)]),
        env: Some(variables(workload)),
        readiness_probe: Some(probe("/ready", 1, 3)),
        liveness_probe: Some(probe("/health", 10, 6)),
        resources: Some(ResourceRequirements {
            requests: Some([("memory".to_owned(), memory.clone()), ("cpu".to_owned(), cpu)].into()),
            limits: Some([("memory".to_owned(), memory)].into()),
            claims: None,
        }),
        security_context: Some(container_security()),
        volume_mounts: Some(vec![
            mount("tmp", "/tmp", false),
            mount("spool", SPOOL, false),
            mount("tokens", TOKENS, true),
        ]),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    }
}

fn port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("admin".into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn variables(workload: &Workload<'_>) -> Vec<EnvVar> {
    let settings = workload.settings;
    let ours = [
        ("SLESS_NAMESPACE", workload.namespace.to_string()),
        ("SLESS_FUNCTION", workload.name.to_string()),
        ("SLESS_REVISION", workload.revision.to_owned()),
        ("SLESS_ENTRYPOINT", settings.entrypoint.to_string()),
        ("SLESS_TIMEOUT_SEC", settings.timeout_sec.get().to_string()),
        ("SLESS_INIT_TIMEOUT_SEC", settings.init_timeout_sec.get().to_string()),
        ("SLESS_KILL_GRACE_SEC", KILL_GRACE_SEC.to_string()),
        ("SLESS_WORKERS", settings.workers.to_string()),
        ("SLESS_CONCURRENCY", settings.concurrency.to_string()),
        ("SLESS_REPORT_URL", workload.config.report_url.clone()),
        ("SLESS_REPORT_TOKEN_FILE", format!("{TOKENS}/report-token")),
        ("SLESS_PROXY_TOKEN_FILE", format!("{TOKENS}/{PROXY_TOKEN}")),
        ("SLESS_SPOOL_DIR", SPOOL.to_owned()),
        ("SLESS_FLUSH_SEC", FLUSH_SEC.to_string()),
        ("SLESS_SECRET_NAMES", workload.variables.keys().cloned().collect::<Vec<_>>().join(",")),
        ("SLESS_CAGE", "require".to_owned()),
    ];
    let own = settings.env.iter().map(|(name, value)| variable(name, value));
    own.chain(ours.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| variable(name, value)))
        .collect()
}
