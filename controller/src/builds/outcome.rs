//! What became of a build, as its Job and pod tell.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde::Deserialize;

use super::job::{INSTALL, PACK};
use crate::revision::Dependencies;
use crate::troubles;

/// Both programs say by it: not the author's fault, try again.
const TRY_AGAIN: i32 = 75;
/// The packer's: without known dependencies.
const FORGOTTEN: i32 = 76;

/// What the packer wrote.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Packed {
    pub(crate) digest: String,
    #[serde(default)]
    pub(crate) content_sha256: Option<String>,
    #[serde(default)]
    pub(crate) dependencies: Option<Dependencies>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Still at it; a word about what keeps it, if something does.
    Running(Option<String>),
    Built(Packed),
    /// The author's fault, in this container.
    Refused {
        container: &'static str,
        message: String,
    },
    /// Ours or the cluster's: worth another attempt.
    Broken(String),
    /// A layer of dependencies that the registry was said to have is gone: another attempt has to do without.
    Forgotten(String),
}

#[derive(Deserialize)]
struct Said {
    error: String,
}

/// The pods of a Job.
pub(crate) fn pods_of(job: &Job, pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let name = job.name_any();
    let of = |pod: &&Arc<Pod>| {
        pod.labels().get("batch.kubernetes.io/job-name").or_else(|| pod.labels().get("job-name"))
            == Some(&name)
    };
    pods.iter().filter(of).cloned().collect()
}

pub(crate) fn outcome(job: &Job, pods: &[Arc<Pod>], timeout_sec: f64) -> Outcome {
    let failed = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Failed" && condition.status == "True");
    let Some(pod) = pods.first() else {
        return match failed {
            Some(failed) => {
                Outcome::Broken(failed.message.clone().unwrap_or_else(|| "its pod is gone".into()))
            }
            None if finished(job) => Outcome::Broken("its pod is gone".into()),
            None => Outcome::Running(None),
        };
    };
    let status = pod.status.as_ref();
    if status.and_then(|status| status.reason.as_deref()) == Some("DeadlineExceeded") {
        let message = format!("the build did not end within {timeout_sec} s");
        return Outcome::Refused { container: INSTALL, message };
    }
    let ended = |statuses: Option<&Vec<ContainerStatus>>, name: &str| {
        let status = statuses?.iter().find(|status| status.name == name)?;
        status.state.as_ref()?.terminated.clone()
    };
    let install = ended(status.and_then(|status| status.init_container_statuses.as_ref()), INSTALL);
    let pack = ended(status.and_then(|status| status.container_statuses.as_ref()), PACK);
    for (container, ended) in [(INSTALL, install), (PACK, pack)] {
        let Some(ended) = ended else { continue };
        let text = ended.message.as_deref().unwrap_or_default().trim();
        let said = serde_json::from_str::<Said>(text).map(|said| said.error).ok();
        match ended.exit_code {
            0 if container == INSTALL => {}
            0 => {
                return match serde_json::from_str::<Packed>(text) {
                    Ok(packed) if packed.digest.starts_with("sha256:") => Outcome::Built(packed),
                    _ => Outcome::Broken(format!("the packer ended well and said no digest but {text:?}")),
                };
            }
            1 => {
                let message = said.unwrap_or_else(|| format!("the step {container} failed"));
                return Outcome::Refused { container, message };
            }
            _ if ended.reason.as_deref() == Some("OOMKilled") => {
                let message = format!("the step {container} of the build ran out of memory");
                return Outcome::Refused { container, message };
            }
            TRY_AGAIN => {
                return Outcome::Broken(
                    said.unwrap_or_else(|| format!("the step {container} could not go on")),
                );
            }
            FORGOTTEN => return Outcome::Forgotten(said.unwrap_or_else(|| "a layer is gone".to_owned())),
            code => return Outcome::Broken(format!("the step {container} ended with code {code}")),
        }
    }
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Failed") => {
            let why = status.and_then(|status| status.message.clone().or_else(|| status.reason.clone()));
            Outcome::Broken(why.unwrap_or_else(|| "its pod failed".into()))
        }
        _ if failed.is_some() => Outcome::Broken("its pod was removed".into()),
        _ => Outcome::Running(troubles::of_pod(pod).map(|trouble| trouble.message)),
    }
}

/// Whether the Job has come to an end.
pub(crate) fn finished(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

/// When that was.
pub(crate) fn finished_at(job: &Job) -> Option<Time> {
    let status = job.status.as_ref()?;
    let failed = status.conditions.iter().flatten().find(|c| c.type_ == "Failed" && c.status == "True");
    status.completion_time.clone().or_else(|| failed?.last_transition_time.clone())
}

/// When its last container ended.
pub(crate) fn ended_at(pods: &[Arc<Pod>]) -> Option<Time> {
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let ends = statuses.filter_map(|status| match &status.state {
        Some(ContainerState { terminated: Some(ended), .. }) => ended.finished_at.clone(),
        _ => None,
    });
    ends.max()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(status: Value) -> Outcome {
        let job = serde_json::from_value(json!({"metadata": {"name": "b-1"}})).unwrap();
        let pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap();
        outcome(&job, &[Arc::new(pod)], 600.0)
    }

    fn ended(name: &str, code: i32, message: &Value) -> Value {
        json!([{"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "message": message.to_string()}}}])
    }

    #[test]
    fn each_end_of_a_build_has_its_meaning() {
        let fine = ended("install", 0, &json!({}));
        let packed = json!({"digest": "sha256:1", "content_sha256": "c", "dependencies": {"key": "k", "digest": "d", "diff_id": "i", "size": 3}});
        let Outcome::Built(built) =
            with(json!({"initContainerStatuses": fine, "containerStatuses": ended("pack", 0, &packed)}))
        else {
            panic!("not built")
        };
        assert_eq!((built.digest.as_str(), built.dependencies.unwrap().size), ("sha256:1", 3));
        let refused =
            with(json!({"initContainerStatuses": ended("install", 1, &json!({"error": "no such package"}))}));
        assert_eq!(refused, Outcome::Refused { container: "install", message: "no such package".into() });
        for broken in [
            json!({"initContainerStatuses": ended("install", 75, &json!({"error": "S3 is away"}))}),
            json!({"initContainerStatuses": ended("install", 137, &json!(""))}),
            json!({"initContainerStatuses": fine, "containerStatuses": ended("pack", 0, &json!("junk"))}),
            json!({"phase": "Failed", "reason": "Evicted"}),
        ] {
            assert!(matches!(with(broken.clone()), Outcome::Broken(_)), "{broken}");
        }
        assert_eq!(with(json!({"initContainerStatuses": fine})), Outcome::Running(None));
        let Outcome::Refused { message, .. } = with(json!({"phase": "Failed", "reason": "DeadlineExceeded"}))
        else {
            panic!("not refused")
        };
        assert!(message.contains("600 s"), "{message}");
    }

    #[test]
    fn a_job_that_lost_its_pod_is_broken() {
        let job = |status: Value| {
            serde_json::from_value(json!({"metadata": {"name": "b-1"}, "status": status})).unwrap()
        };
        assert_eq!(outcome(&job(json!({})), &[], 1.0), Outcome::Running(None));
        let failed = json!({"conditions": [{"type": "Failed", "status": "True", "message": "deadline"}]});
        assert_eq!(outcome(&job(failed), &[], 1.0), Outcome::Broken("deadline".into()));
    }
}
