//! Which revision is to answer, with how many pods, and how far that has come. Pure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use sless_core::FunctionSettings;
use sless_crds::{Function, Trigger, names};

use crate::revision::{Revision, Stage};

/// The revision whose pods are wanted: the newest one that has an image and has not failed to load, else the one that answers.
pub(super) fn target<'a>(
    wanted: Option<&'a Revision>,
    answering: Option<&'a Revision>,
    key: &str,
) -> Option<&'a Revision> {
    let Some(wanted) = wanted.filter(|wanted| wanted.image.is_some()) else { return answering };
    let failed = wanted.failed(Stage::Load).is_some_and(|failure| failure.key == key);
    match answering {
        Some(answering) if failed && answering.name != wanted.name => Some(answering),
        _ => Some(wanted),
    }
}

/// How many pods, and when that is to be thought about again.
pub(super) struct Replicas {
    pub(super) count: u32,
    pub(super) again: Option<Duration>,
}

/// `proven`: since when the target has been known to load; `None` while it is not, so that it needs a pod to show it.
pub(super) fn replicas(
    function: &Function,
    settings: &FunctionSettings,
    triggers: &[impl AsRef<Trigger>],
    proven: Option<Timestamp>,
    now: Timestamp,
) -> Replicas {
    let Some(proven) = proven else { return Replicas { count: settings.min_replicas.max(1), again: None } };
    // It had triggers, and none calls it now.
    let mut own =
        triggers.iter().map(AsRef::as_ref).filter(|t| t.metadata.deletion_timestamp.is_none()).peekable();
    let idle = own.peek().is_some() && own.all(|trigger| !trigger.spec.enabled);
    if settings.min_replicas > 0 && !idle {
        return Replicas { count: settings.min_replicas, again: None };
    }
    let called = function.annotations().get(names::LAST_CALL).and_then(|text| text.parse::<Timestamp>().ok());
    // A trigger that is disabled stops it now; what nobody calls gets its idle time.
    let last = match (called, idle) {
        (Some(called), true) => called,
        (None, true) => return Replicas { count: 0, again: None },
        (called, false) => called.map_or(proven, |called| called.max(proven)),
    };
    let limit = SignedDuration::try_from(settings.idle_timeout_sec.duration()).unwrap_or(SignedDuration::MAX);
    let left = limit.saturating_sub(now.duration_since(last));
    match Duration::try_from(left) {
        Ok(left) if !left.is_zero() => Replicas { count: settings.min_replicas.max(1), again: Some(left) },
        _ => Replicas { count: 0, again: None },
    }
}

/// Whether all that the Deployment has are pods of what it was last told, ready ones.
pub(super) fn complete(deployment: &Deployment) -> bool {
    let (spec, Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    let wanted = spec.replicas.unwrap_or(1);
    let count = |count: Option<i32>| count.unwrap_or(0);
    status.observed_generation >= deployment.metadata.generation
        && count(status.updated_replicas) == wanted
        && count(status.replicas) == wanted
        && count(status.available_replicas) >= wanted
}

/// The revision of its pods.
pub(super) fn revision_of(deployment: &Deployment) -> Option<&String> {
    deployment.spec.template.metadata.as_ref()?.labels.as_ref()?.get(names::LABEL_REVISION)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::revision::{self, Failure};

    fn revision(name: &str, image: Option<&str>, failed: Option<&str>) -> Revision {
        let object =
            revision::object(&fixtures::function("team", "f", 1), name, 1, Timestamp::UNIX_EPOCH).unwrap();
        let mut revision = Revision::read(&Arc::new(object)).unwrap();
        revision.image = image.map(str::to_owned);
        revision.failure = failed.map(|key| Failure {
            stage: Stage::Load,
            message: "no module".into(),
            key: key.to_owned(),
        });
        revision
    }

    #[test]
    fn what_does_not_load_gives_way_to_what_answered_until_it_is_asked_for_again() {
        let old = revision("old", Some("i"), None);
        let name = |wanted: &Revision, answering: Option<&Revision>, key| {
            target(Some(wanted), answering, key).map(|target| target.name.clone())
        };
        let (building, built) = (revision("new", None, None), revision("new", Some("i"), None));
        let failed = revision("new", Some("i"), Some("key"));
        assert_eq!(name(&building, Some(&old), "key").as_deref(), Some("old"));
        assert_eq!(name(&building, None, "key"), None);
        assert_eq!(name(&built, Some(&old), "key").as_deref(), Some("new"));
        assert_eq!(name(&failed, Some(&old), "key").as_deref(), Some("old"));
        assert_eq!(name(&failed, Some(&old), "other").as_deref(), Some("new"));
        assert_eq!(name(&failed, None, "key").as_deref(), Some("new"));
    }

    #[test]
    fn replicas_follow_triggers_and_calls() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let trigger = |enabled: bool| {
            let spec = json!({"type": "http", "functionRef": "f", "enabled": enabled});
            Arc::new(serde_json::from_value::<Trigger>(json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Trigger", "metadata": {"name": "t"}, "spec": spec})).unwrap())
        };
        let count = |min: u32, triggers: &[Arc<Trigger>], call: Option<i64>, proven: Option<i64>| {
            let mut function = fixtures::function("team", "f", 1);
            if let Some(call) = call {
                function.annotations_mut().insert(names::LAST_CALL.into(), at(call).to_string());
            }
            let Value::Object(settings) = json!({"min_replicas": min, "max_replicas": 3}) else {
                unreachable!()
            };
            let settings = FunctionSettings::from_object(&settings).unwrap();
            let made = replicas(&function, &settings, triggers, proven.map(at), at(1000));
            (made.count, made.again.map(|pause| pause.as_secs()))
        };
        let (on, off) = (trigger(true), trigger(false));
        assert_eq!(count(2, &[], None, Some(0)), (2, None));
        assert_eq!(count(1, &[on.clone(), off.clone()], None, Some(0)), (1, None));
        assert_eq!(count(1, std::slice::from_ref(&off), None, Some(0)), (0, None));
        assert_eq!(count(1, std::slice::from_ref(&off), Some(900), Some(0)), (1, Some(200)));
        assert_eq!(count(1, std::slice::from_ref(&off), Some(600), Some(0)), (0, None));
        assert_eq!(count(0, std::slice::from_ref(&on), None, Some(0)), (0, None));
        assert_eq!(count(0, &[], None, Some(990)), (1, Some(290)));
        assert_eq!(count(0, &[], Some(800), Some(0)), (1, Some(100)));
        // What has not yet shown that it loads needs a pod.
        assert_eq!(count(0, &[off], None, None), (1, None));
    }

    #[test]
    fn a_rollout_is_over_when_nothing_of_the_one_before_is_left() {
        let deployment = |status: Value| {
            serde_json::from_value::<Deployment>(json!({
                "metadata": {"generation": 2},
                "spec": {"replicas": 1, "selector": {}, "template": {}},
                "status": status,
            }))
            .unwrap()
        };
        let done =
            json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        assert!(complete(&deployment(done.clone())));
        for (field, value) in
            [("observedGeneration", 1), ("replicas", 2), ("updatedReplicas", 0), ("availableReplicas", 0)]
        {
            let mut status = done.clone();
            status[field] = value.into();
            assert!(!complete(&deployment(status)), "{field}");
        }
    }
}
