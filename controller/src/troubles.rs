//! What keeps a pod from running, in words for the function's author.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// One word, for a condition.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Whether the author's code is the cause: then waiting does not help.
    pub(crate) code: bool,
}

impl Trouble {
    fn ours(reason: &'static str, message: String) -> Self {
        Self { reason, message, code: false }
    }

    pub(crate) fn code(reason: &'static str, message: String) -> Self {
        Self { reason, message, code: true }
    }
}

/// Of one pod, as far as its status says.
pub(crate) fn of_pod(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
    for condition in unscheduled {
        if condition.reason.as_deref() == Some("Unschedulable") {
            let why = condition.message.as_deref().unwrap_or("no reason given");
            return Some(Trouble::ours("Unschedulable", format!("no node has room for a pod: {why}")));
        }
    }
    if let Some(reason) = status.reason.as_deref().filter(|_| status.phase.as_deref() == Some("Failed")) {
        let why = status.message.as_deref().unwrap_or(reason);
        return Some(Trouble::ours("PodFailed", format!("a pod was ended by its node: {why}")));
    }
    let containers =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    containers.filter(|container| !container.ready).find_map(of_container)
}

fn of_container(container: &ContainerStatus) -> Option<Trouble> {
    let state = container.state.as_ref();
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let said = waiting.message.as_deref().unwrap_or_default();
        match waiting.reason.as_deref()? {
            "CrashLoopBackOff" => return Some(crash(container)),
            reason @ ("ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "ImageInspectError"
            | "SignatureValidationFailed") => {
                return Some(Trouble::ours(
                    "ImagePullFailed",
                    format!("the image {} could not be pulled ({reason}): {said}", container.image),
                ));
            }
            reason @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") => {
                return Some(Trouble::ours(
                    "ContainerFailed",
                    format!("the container could not be started ({reason}): {said}"),
                ));
            }
            _ => {}
        }
    }
    // It exits as soon as it starts, and has just been started once more.
    (container.restart_count >= 2).then(|| crash(container))
}

fn crash(container: &ContainerStatus) -> Trouble {
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let Some(last) = last else {
        return Trouble::code("CrashLoop", "the function's process exits again and again".into());
    };
    if last.reason.as_deref() == Some("OOMKilled") {
        return Trouble::code(
            "OutOfMemory",
            "the function ran out of memory while it started; raise memoryMb".into(),
        );
    }
    let words = last.message.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let words = words.map(|text| format!(": {}", end_of(text, 2048))).unwrap_or_default();
    Trouble::code(
        "CrashLoop",
        format!("the function's process exits with code {} as soon as it starts{words}", last.exit_code),
    )
}

/// Of a Deployment whose pods are refused before they are made.
pub(crate) fn of_deployment(deployment: &Deployment) -> Option<Trouble> {
    let conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let failure = conditions
        .into_iter()
        .find(|c| c.type_.as_deref() == Some("ReplicaFailure") && c.status.as_deref() == Some("True"))?;
    let said = failure.message.as_deref().unwrap_or_default();
    Some(if said.contains("exceeded quota") {
        Trouble::ours("QuotaExceeded", format!("the namespace's quota has no room for a pod: {said}"))
    } else {
        Trouble::ours("PodRefused", format!("the cluster refuses the pod: {said}"))
    })
}

/// The last bytes of a text, in whole lines where there are any.
pub(crate) fn end_of(text: &str, most: usize) -> &str {
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let end = text.get(from..).unwrap_or_default();
    match end.split_once('\n') {
        Some((_, lines)) if from > 0 => lines,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Option<(&'static str, bool)> {
        let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
        of_pod(&pod).map(|trouble| (trouble.reason, trouble.code))
    }

    fn container(restarts: i32, state: Value, last: Value) -> Value {
        json!({"containerStatuses": [{"name": "function", "image": "i", "imageID": "", "ready": false, "restartCount": restarts,
            "state": state, "lastState": last}]})
    }

    #[test]
    fn each_trouble_is_named_and_the_codes_own_told_apart() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "m"}});
        let exited = |reason: &str| json!({"terminated": {"exitCode": 78, "reason": reason}});
        let none = json!({});
        for (status, expected) in [
            (container(0, waiting("ImagePullBackOff"), none.clone()), Some(("ImagePullFailed", false))),
            (container(0, waiting("ContainerCreating"), none.clone()), None),
            (
                container(0, waiting("CreateContainerConfigError"), none.clone()),
                Some(("ContainerFailed", false)),
            ),
            (container(1, waiting("CrashLoopBackOff"), exited("Error")), Some(("CrashLoop", true))),
            (container(1, waiting("CrashLoopBackOff"), exited("OOMKilled")), Some(("OutOfMemory", true))),
            (container(1, json!({"running": {}}), exited("Error")), None),
            (container(2, json!({"running": {}}), exited("Error")), Some(("CrashLoop", true))),
            (
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
                Some(("Unschedulable", false)),
            ),
            (json!({"phase": "Failed", "reason": "Evicted"}), Some(("PodFailed", false))),
            (none, None),
        ] {
            assert_eq!(pod(status.clone()), expected, "{status}");
        }
    }

    #[test]
    fn a_refusal_by_quota_is_told_as_such() {
        let with = |message: &str| {
            let status =
                json!({"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]});
            of_deployment(&serde_json::from_value(json!({"status": status})).unwrap()).unwrap().reason
        };
        assert_eq!(with("pods \"x\" is forbidden: exceeded quota: functions"), "QuotaExceeded");
        assert_eq!(with("admission webhook denied"), "PodRefused");
    }

    #[test]
    fn the_end_of_a_text_is_in_whole_lines() {
        assert_eq!(end_of("one\ntwo\nthree\n", 9), "three");
        assert_eq!(end_of("one\ntwo", 100), "one\ntwo");
        assert_eq!(end_of("ééé", 3), "é");
    }
}
