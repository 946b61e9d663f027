//! What a function's status says. Pure but for the one write.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::{Api, ResourceExt};
use serde_json::json;
use sless_crds::{
    BuildStatus, ConditionType, Function, FunctionStatus, GROUP, Phase, VERSION, condition, names,
};

use crate::applied::manager;
use crate::builds::State;
use crate::context::Context;
use crate::error::{Error, acting};
use crate::revision::Revision;
use crate::troubles::end_of;

/// Of a condition's message, and of the status's own.
const MESSAGE_MAX: usize = 4096;

/// Whether something holds, why in one word, and in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) holds: Option<bool>,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Check {
    pub(super) fn yes(reason: &'static str) -> Self {
        Self { holds: Some(true), reason, message: String::new() }
    }

    pub(super) fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self { holds: Some(false), reason, message: message.into() }
    }

    pub(super) fn unknown(reason: &'static str) -> Self {
        Self { holds: None, reason, message: String::new() }
    }
}

/// What a reconcile has found.
#[derive(Debug, Clone)]
pub(super) struct Found<'a> {
    pub(super) phase: Phase,
    pub(super) message: Option<String>,
    pub(super) built: Check,
    pub(super) deployed: Check,
    pub(super) ready: Check,
    /// The revision that answers; `None`: the one that the status names already.
    pub(super) answers: Option<&'a Revision>,
    /// `None`: as it is.
    pub(super) build: Option<BuildStatus>,
}

impl Found<'_> {
    /// Something has to change first.
    pub(super) fn waits(phase: Phase, reason: &'static str, message: String) -> Self {
        let no = Check::no(reason, message.clone());
        Self {
            phase,
            message: Some(message),
            built: Check::unknown(reason),
            deployed: no.clone(),
            ready: no,
            answers: None,
            build: None,
        }
    }
}

/// Of an image that is still to come; `None` when it is there.
pub(super) fn of_build(state: &State) -> Option<(Phase, Check)> {
    let building = |reason, message: &str| Some((Phase::Building, Check::no(reason, message)));
    match state {
        State::Ready => None,
        State::Running(note) => building("Building", note.as_deref().unwrap_or_default()),
        State::Waiting => {
            building("WaitingForPlace", "other builds run; this one is next when one of them ends")
        }
        State::Retrying { message, at } => {
            building("Retrying", &format!("the build was cut short and is tried again at {at:.0}: {message}"))
        }
        State::Failed(message) => Some((Phase::Failed, Check::no("BuildFailed", message.clone()))),
    }
}

pub(super) fn build(
    function: &Function,
    found: &Found<'_>,
    external_url: &str,
    now: Timestamp,
) -> FunctionStatus {
    let before = function.status.clone().unwrap_or_default();
    let generation = function.metadata.generation;
    let mut conditions: Vec<Condition> = before.conditions;
    for (kind, check) in [
        (ConditionType::Built, &found.built),
        (ConditionType::Deployed, &found.deployed),
        (ConditionType::Ready, &found.ready),
    ] {
        let message = end_of(&check.message, MESSAGE_MAX);
        condition(&mut conditions, kind, check.holds, check.reason, message, generation, &Time(now));
    }
    let message = found.message.as_deref().map(|text| end_of(text, MESSAGE_MAX).to_owned());
    let namespace = function.namespace().unwrap_or_default();
    FunctionStatus {
        observed_generation: generation,
        phase: Some(found.phase),
        message: message.filter(|text| !text.is_empty()),
        url: Some(format!("{external_url}/fn/{namespace}/{}", function.name_any())),
        revision: found.answers.map(|revision| revision.name.clone()).or(before.revision),
        code_sha256: found.answers.map(|revision| revision.source.sha256.clone()).or(before.code_sha256),
        content_sha256: match found.answers {
            Some(revision) => revision.content.clone().or_else(|| revision.source.content_sha256.clone()),
            None => before.content_sha256,
        },
        image: match found.answers {
            Some(revision) => revision.image.clone(),
            None => before.image,
        },
        build: found.build.clone().or(before.build),
        retried: function.annotations().get(names::RETRY).cloned(),
        conditions,
    }
}

/// Writes it, if it differs.
pub(super) async fn write(
    context: &Context,
    function: &Function,
    status: &FunctionStatus,
) -> Result<(), Error> {
    let there = function.status.as_ref();
    // As JSON: moments there have whole seconds.
    if there.is_some_and(|there| serde_json::to_value(there).ok() == serde_json::to_value(status).ok()) {
        return Ok(());
    }
    let (name, namespace) = (function.name_any(), function.namespace().unwrap_or_default());
    let api: Api<Function> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Function", "metadata": { "name": name }, "status": status });
    match api.patch_status(&name, &manager(), &Patch::Apply(patch)).await {
        Err(error) if !crate::error::is_absent(&error) => Err(acting("write the status of", &name)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn found(holds: bool) -> Found<'static> {
        Found {
            phase: Phase::Ready,
            message: None,
            built: Check::yes("Built"),
            deployed: Check::yes("Deployed"),
            ready: if holds { Check::yes("Answering") } else { Check::no("Starting", "") },
            answers: None,
            build: None,
        }
    }

    #[test]
    fn a_condition_moves_only_when_it_turns() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut function = fixtures::function("team", "hello", 1);
        function.status = Some(build(&function, &found(false), "http://x", at(1)));
        function.status = Some(build(&function, &found(false), "http://x", at(2)));
        let status = build(&function, &found(true), "http://x", at(3));
        let moved =
            |kind: &str| status.conditions.iter().find(|c| c.type_ == kind).unwrap().last_transition_time.0;
        assert_eq!((moved("Built"), moved("Ready")), (at(1), at(3)));
        assert_eq!(status.url.as_deref(), Some("http://x/fn/team/hello"));
        assert_eq!(status.observed_generation, Some(1));
    }

    #[test]
    fn what_answered_before_is_still_named() {
        let mut function = fixtures::function("team", "hello", 1);
        function.status = Some(FunctionStatus {
            revision: Some("old".into()),
            image: Some("i".into()),
            ..FunctionStatus::default()
        });
        let status = build(
            &function,
            &Found::waits(Phase::Failed, "InvalidSpec", "no".into()),
            "http://x",
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!((status.revision.as_deref(), status.image.as_deref()), (Some("old"), Some("i")));
        assert_eq!(status.message.as_deref(), Some("no"));
    }
}
