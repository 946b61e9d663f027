//! What a Function's status says, in the port's words.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use sless_backend::{BuildStatus, FunctionRef, FunctionStatus, Generation};
use sless_core::Phase;
use sless_crds::Function;
use sless_crds::names::RETRY;

/// Whose object this is; `None` for one where no function of ours can be.
pub(crate) fn function_ref(namespace: Option<&str>, name: &str) -> Option<FunctionRef> {
    Some(FunctionRef { namespace: namespace?.parse().ok()?, name: name.parse().ok()? })
}

/// Wishes to try once more; the annotation counts them.
pub(crate) fn retries(annotation: Option<&String>) -> u64 {
    annotation.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The port's count of changes. A wish to try again changes no spec, and is counted beside Kubernetes' own count.
pub(crate) fn generation(of_spec: Option<i64>, retry: Option<&String>) -> u64 {
    of_spec.and_then(|count| u64::try_from(count).ok()).unwrap_or(0).saturating_add(retries(retry))
}

/// `None` for an object that is no function of ours.
pub(crate) fn function_status(object: &Function) -> Option<FunctionStatus> {
    let function = function_ref(object.metadata.namespace.as_deref(), &object.name_any())?;
    let status = object.status.clone().unwrap_or_default();
    let deleting = object.metadata.deletion_timestamp.is_some();
    let (phase, message) = match status.phase {
        _ if deleting => (Phase::Terminating, status.message),
        None => (Phase::Pending, status.message),
        Some(phase) => (to_phase(phase), status.message),
    };
    let (wished, answered) = (object.annotations().get(RETRY), status.retried.as_ref());
    let observed = generation(status.observed_generation, answered);
    // What somebody has written by hand need not be a count: until it is answered, what is said is of the time before.
    let by_hand = wished != answered && retries(wished) == retries(answered);
    let generation = Generation(if by_hand { observed.saturating_sub(1) } else { observed });
    Some(FunctionStatus {
        function,
        generation,
        phase,
        message: message.filter(|text| !text.is_empty()),
        active_revision: status.revision,
        gone: false,
    })
}

pub(crate) fn build_status(object: &Function) -> Option<BuildStatus> {
    let build = object.status.as_ref()?.build.as_ref()?;
    Some(BuildStatus {
        name: build.name.clone(),
        phase: to_phase(build.phase),
        started_at: moment(&build.started_at),
        finished_at: build.finished_at.as_ref().map(moment),
        message: build.message.clone(),
    })
}

fn to_phase(phase: sless_crds::Phase) -> Phase {
    match phase {
        sless_crds::Phase::Pending => Phase::Pending,
        sless_crds::Phase::Building => Phase::Building,
        sless_crds::Phase::Ready => Phase::Ready,
        sless_crds::Phase::Failed => Phase::Failed,
        sless_crds::Phase::Terminating => Phase::Terminating,
    }
}

fn moment(time: &Time) -> SystemTime {
    time.0.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(metadata: Value, status: Value) -> FunctionStatus {
        let mut object = json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"namespace": "team", "name": "f"},
            "spec": {"runtime": "nodejs20"}, "status": status});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        function_status(&serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn what_nobody_has_looked_at_is_pending() {
        let seen = read(json!({"generation": 1}), Value::Null);
        assert_eq!(
            (seen.phase, seen.generation, seen.active_revision),
            (Phase::Pending, Generation(0), None)
        );
    }

    #[test]
    fn a_status_tells_of_the_generation_that_was_seen() {
        let status = json!({"observedGeneration": 3, "phase": "Failed", "message": "no", "revision": "a"});
        let seen = read(json!({"generation": 4}), status);
        assert_eq!((seen.phase, seen.generation), (Phase::Failed, Generation(3)));
        assert_eq!((seen.message.as_deref(), seen.active_revision.as_deref()), (Some("no"), Some("a")));
    }

    #[test]
    fn a_retry_counts_as_a_change_until_it_is_answered() {
        let asked = |text: &str| json!({"annotations": {RETRY: text}});
        let status = |retried: Value| json!({"observedGeneration": 3, "phase": "Failed", "retried": retried});
        assert_eq!(generation(Some(3), Some(&"2".to_owned())), 5);
        for (text, retried, told) in [
            ("2", json!("1"), 4),
            ("1", Value::Null, 3),
            ("2", json!("2"), 5),
            ("now", Value::Null, 2),
            ("now", json!("now"), 3),
        ] {
            assert_eq!(read(asked(text), status(retried)).generation, Generation(told), "{text}");
        }
    }

    #[test]
    fn deletion_is_seen_at_once() {
        let seen = read(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            json!({"observedGeneration": 1, "phase": "Ready"}),
        );
        assert_eq!(seen.phase, Phase::Terminating);
    }
}
