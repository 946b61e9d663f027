//! A function's revisions, as `ControllerRevision` objects keep them.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sless_core::FunctionSettings;
use sless_crds::{Function, FunctionSpec, RevisionData, Source, names};

/// Annotation: SHA-256 of what is in the zip, as the build has found it.
pub(crate) const CONTENT: &str = "sless.kube5s.ru/content-sha256";
/// Annotation: the number in the name of the build's Job.
pub(crate) const ATTEMPT: &str = "sless.kube5s.ru/attempt";
/// Annotation: not before then (RFC 3339) is it tried again.
pub(crate) const NOT_BEFORE: &str = "sless.kube5s.ru/not-before";
/// Annotation: the Job whose outcome is in the others.
pub(crate) const CONCLUDED: &str = "sless.kube5s.ru/concluded-job";
/// Annotation: why it is not tried again, a [`Failure`].
pub(crate) const FAILURE: &str = "sless.kube5s.ru/failure";
/// Annotation (value `true`): the next attempt has to install, whatever is known.
pub(crate) const AFRESH: &str = "sless.kube5s.ru/install-afresh";
/// Annotation: the runtime image onto which it could not be moved.
pub(crate) const NOT_ONTO: &str = "sless.kube5s.ru/not-onto";
/// Annotation: image and runtime image before the last move, until the new ones have answered.
pub(crate) const BEFORE: &str = "sless.kube5s.ru/image-before";

/// Which step it failed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    Build,
    Load,
}

/// The author's fault, until something changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) message: String,
    /// What was asked for then: see [`retry_key`].
    pub(crate) key: String,
}

/// A layer of dependencies that is in the registry, as packer and controller tell each other of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dependencies {
    pub(crate) key: String,
    /// The repository that has it.
    #[serde(default)]
    pub(crate) repository: String,
    pub(crate) digest: String,
    pub(crate) diff_id: String,
    pub(crate) size: u64,
}

/// One of a function's revisions.
#[derive(Debug, Clone)]
pub(crate) struct Revision {
    pub(crate) name: String,
    pub(crate) runtime: String,
    pub(crate) spec: FunctionSpec,
    pub(crate) source: Source,
    pub(crate) number: i64,
    pub(crate) image: Option<String>,
    pub(crate) runtime_image: Option<String>,
    pub(crate) dependencies: Option<Dependencies>,
    pub(crate) content: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) concluded: Option<String>,
    pub(crate) failure: Option<Failure>,
    pub(crate) afresh: bool,
    pub(crate) not_onto: Option<String>,
    pub(crate) before: Option<(String, String)>,
    pub(crate) object: Arc<ControllerRevision>,
}

impl Revision {
    /// `None` if somebody else wrote it, or it was damaged: it is as good as absent then.
    pub(crate) fn read(object: &Arc<ControllerRevision>) -> Option<Self> {
        let RevisionData { spec, source } = RevisionData::read(object).ok()?;
        let note = |name: &str| object.annotations().get(name).cloned();
        Some(Self {
            name: object.labels().get(names::LABEL_REVISION)?.clone(),
            runtime: spec.runtime.clone(),
            spec,
            source,
            number: object.revision.unwrap_or(0),
            image: note(names::IMAGE),
            runtime_image: note(names::RUNTIME_IMAGE),
            dependencies: note(names::DEPENDENCIES).and_then(|text| serde_json::from_str(&text).ok()),
            content: note(CONTENT),
            attempt: note(ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(0),
            not_before: note(NOT_BEFORE).and_then(|text| text.parse().ok()),
            concluded: note(CONCLUDED),
            failure: note(FAILURE).and_then(|text| serde_json::from_str(&text).ok()),
            afresh: note(AFRESH).is_some(),
            not_onto: note(NOT_ONTO),
            before: note(BEFORE).and_then(|text| serde_json::from_str(&text).ok()),
            object: Arc::clone(object),
        })
    }

    /// The settings that it fixes; those that it doesn't are the function's of then.
    pub(crate) fn settings(&self) -> Option<FunctionSettings> {
        self.spec.settings().ok()
    }

    pub(crate) fn failed(&self, stage: Stage) -> Option<&Failure> {
        self.failure.as_ref().filter(|failure| failure.stage == stage)
    }
}

/// Changes when whoever wrote the function asks for another attempt, or gives it other limits.
pub(crate) fn retry_key(function: &Function, settings: &FunctionSettings) -> String {
    let asked = function.annotations().get(names::RETRY).map_or("", String::as_str);
    format!("{}/{asked}", settings.build_timeout_sec.get())
}

/// The object of a new revision; `None` if the spec has no code or no JSON form.
pub(crate) fn object(
    function: &Function,
    revision: &str,
    number: i64,
    now: Timestamp,
) -> Option<ControllerRevision> {
    let name: sless_core::FunctionName = function.name_any().parse().ok()?;
    let data = RevisionData::of(&function.spec)?.write().ok()?;
    let mut object = ControllerRevision {
        metadata: crate::objects::meta(&names::revision_object(&name, revision), &function.namespace()?),
        data,
        revision: Some(number),
    };
    let labels = object.labels_mut();
    labels.insert(names::LABEL_NAMESPACE.into(), function.namespace()?);
    labels.insert(names::LABEL_FUNCTION.into(), name.to_string());
    labels.insert(names::LABEL_REVISION.into(), revision.to_owned());
    let created = k8s_openapi::jiff::fmt::strtime::format("%Y-%m-%dT%H:%M:%S.%6fZ", now).ok()?;
    object.annotations_mut().insert(names::CREATED_AT.into(), created);
    object.metadata.owner_references = Some(vec![crate::objects::owner(function)?]);
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn what_is_written_is_read_again() {
        let function = fixtures::function("team", "hello", 1);
        let object = object(&function, "abc", 7, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(object.metadata.name.as_deref(), Some("hello-abc"));
        assert_eq!(object.annotations()[names::CREATED_AT], "1970-01-01T00:00:00.000000Z");
        let revision = Revision::read(&Arc::new(object.clone())).unwrap();
        assert_eq!((revision.name.as_str(), revision.number, revision.image), ("abc", 7, None));
        assert_eq!(Some(revision.source), function.spec.source);
        assert_eq!(revision.spec.settings().unwrap(), function.spec.settings().unwrap());
        assert!(!object.data.0["settings"].as_object().unwrap().contains_key("runtime"));
    }

    #[test]
    fn a_damaged_one_is_as_good_as_absent() {
        let function = fixtures::function("team", "hello", 1);
        let mut damaged = object(&function, "abc", 7, Timestamp::UNIX_EPOCH).unwrap();
        damaged.data.0["source"] = serde_json::Value::Null;
        assert!(Revision::read(&Arc::new(damaged)).is_none());
    }
}
