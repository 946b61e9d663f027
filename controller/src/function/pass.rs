//! One pass over a function that can be made: its image, then the revision that is to answer, then how far that has come.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt};
use serde_json::json;
use sless_crds::{BuildStatus, Function, LAST_BUILT_S3KEY, Phase, names};

use super::aside::Aside;
use super::status::{self, Check, Found};
use super::validate::{Given, Valid};
use super::{Known, rollout, tell};
use crate::applied::manager;
use crate::builds::{self, Kind, Wish};
use crate::context::Context;
use crate::error::{Error, acting};
use crate::revision::{self, Failure, Revision, Stage};

/// Between looks at a pod that has started and is not ready: nothing on the cluster tells that its code does not load.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// After a write of this very pass.
const SOON: Duration = Duration::from_millis(100);
/// Once that is known and there is nothing to go back to.
const LOOK_AGAIN_LATER: Duration = Duration::from_secs(15);

/// One pass over a function that can be made.
pub(super) struct Pass<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) known: &'a Known,
    pub(super) given: &'a Given<'a>,
    pub(super) valid: &'a Valid,
    pub(super) now: Timestamp,
}

/// Where things stand beside the revision that is to answer.
struct Standing<'a> {
    wanted: Option<&'a Revision>,
    answering: Option<&'a Revision>,
    /// Of the wanted one's image.
    state: Option<&'a builds::State>,
    key: &'a str,
    aside: &'a Aside,
}

impl Pass<'_> {
    pub(super) async fn run(&self) -> Result<Action, Error> {
        let function = &self.known.function;
        let mut revisions = self.known.revisions.clone();
        let key = revision::retry_key(function, &self.valid.settings);
        let mut build = None;
        let mut state = None;
        let mut concluded = Vec::new();
        let mut wanted = None;
        if let Some(name) = &self.valid.revision {
            let revision = self.wanted(&revisions, name).await?;
            let wish = Wish {
                function,
                of: &self.valid.of,
                settings: &self.valid.settings,
                image: &self.valid.image,
                kind: Kind::Build,
            };
            builds::cancel_others(self.context, &self.valid.of, &revision).await?;
            self.forget_failures(&mut revisions, name).await?;
            let revision = if revision.image.is_some() {
                state = Some(builds::State::Ready);
                revision
            } else {
                let progress = builds::proceed(self.context, &wish, revision, &revisions, self.now).await?;
                build = progress.build;
                concluded = progress.concluded;
                state = Some(progress.state);
                progress.revision
            };
            self.built(&revision).await?;
            match revisions.iter_mut().find(|other| other.name == revision.name) {
                Some(other) => *other = revision.clone(),
                None => revisions.push(revision.clone()),
            }
            wanted = Some(revision);
        }
        let answered = function.status.as_ref().and_then(|status| status.revision.clone());
        let answering = revisions.iter().find(|r| Some(&r.name) == answered.as_ref() && r.image.is_some());
        let target = rollout::target(wanted.as_ref(), answering, &key);
        let aside = self.aside(&revisions).await?;
        let (found, again) = match target {
            None => (self.nothing_to_run(state.as_ref(), build), None),
            Some(target) => {
                let standing = Standing {
                    wanted: wanted.as_ref(),
                    answering,
                    state: state.as_ref(),
                    key: &key,
                    aside: &aside,
                };
                self.run_target(target, &standing, build).await?
            }
        };
        let mut again = [again, aside.left].into_iter().flatten().min();
        if let Some(builds::State::Retrying { at, .. }) = &state {
            again = Some(Duration::try_from(at.duration_since(self.now)).unwrap_or_default().max(SOON));
        }
        tell(self.context, function, &found, self.now).await?;
        for job in &concluded {
            builds::deliver(self.context, job);
        }
        if found.phase == Phase::Ready
            && let Some(answers) = found.answers.or(answering)
        {
            if let Some(pause) = self.rebase(answers, &revisions).await? {
                again = Some(again.map_or(pause, |again| again.min(pause)));
            }
            let mut used: HashSet<_> = wanted.iter().map(|revision| revision.name.as_str()).collect();
            used.insert(answers.name.as_str());
            used.extend(aside.revision.as_deref());
            self.prune(&revisions, &used).await?;
        }
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }

    /// A failure counts only while nothing else is wanted: whoever comes back to that revision means to try it once more.
    async fn forget_failures(&self, revisions: &mut [Revision], wanted: &str) -> Result<(), Error> {
        for revision in revisions.iter_mut().filter(|r| r.name != wanted && r.failure.is_some()) {
            let notes = json!({ revision::FAILURE: serde_json::Value::Null });
            *revision = builds::annotate(self.context, revision, notes).await?;
        }
        Ok(())
    }

    /// Moves what answers to the runtime image that there is now, without an install.
    async fn rebase(&self, answers: &Revision, revisions: &[Revision]) -> Result<Option<Duration>, Error> {
        let image = &self.valid.image;
        let there = answers.runtime_image.as_deref();
        if there == Some(image.pull.as_str()) || answers.not_onto.as_deref() == Some(image.pull.as_str()) {
            return Ok(None);
        }
        let Some(settings) = answers.settings() else { return Ok(None) };
        let wish = Wish {
            function: &self.known.function,
            of: &self.valid.of,
            settings: &settings,
            image,
            kind: Kind::Rebase,
        };
        let progress = builds::proceed(self.context, &wish, answers.clone(), revisions, self.now).await?;
        for job in &progress.concluded {
            builds::deliver(self.context, job);
        }
        Ok(match progress.state {
            builds::State::Retrying { at, .. } => {
                Duration::try_from(at.duration_since(self.now)).ok().map(|p| p.max(SOON))
            }
            builds::State::Failed(message) => {
                let note = format!("the function stays on its runtime image: {message}");
                self.context.event(&self.known.function, EventType::Warning, "RebaseFailed", &note).await;
                None
            }
            _ => None,
        })
    }

    /// The object of the revision that the spec asks for.
    async fn wanted(&self, revisions: &[Revision], name: &str) -> Result<Revision, Error> {
        if let Some(there) = revisions.iter().find(|revision| revision.name == name) {
            return Ok(there.clone());
        }
        let number = revisions.last().map_or(0, |revision| revision.number) + 1;
        let odd =
            || Error::Away { action: format!("write the revision {name}"), problem: "it has no code".into() };
        let object = revision::object(&self.known.function, name, number, self.now).ok_or_else(odd)?;
        let api: Api<ControllerRevision> =
            Api::namespaced(self.context.client.clone(), self.valid.of.namespace.as_str());
        let name = object.name_any();
        let object = api
            .patch(&name, &manager(), &Patch::Apply(&object))
            .await
            .map_err(acting("write the revision", &name))?;
        Revision::read(&Arc::new(object)).ok_or_else(odd)
    }

    /// Notes on the function what has been built.
    async fn built(&self, revision: &Revision) -> Result<(), Error> {
        let function = &self.known.function;
        if revision.image.is_none()
            || function.annotations().get(LAST_BUILT_S3KEY) == Some(&revision.source.key)
        {
            return Ok(());
        }
        let name = function.name_any();
        let api: Api<Function> =
            Api::namespaced(self.context.client.clone(), self.valid.of.namespace.as_str());
        let patch =
            Patch::Merge(json!({ "metadata": { "annotations": { LAST_BUILT_S3KEY: revision.source.key } } }));
        let params = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(&name, &params, &patch).await.map_err(acting("note what was built on", &name))?;
        Ok(())
    }

    fn nothing_to_run(&self, state: Option<&builds::State>, build: Option<BuildStatus>) -> Found<'static> {
        match state.and_then(status::of_build) {
            Some((phase, built)) => Found {
                phase,
                message: Some(built.message.clone()),
                deployed: Check::no(built.reason, ""),
                ready: Check::no(built.reason, built.message.clone()),
                built,
                answers: None,
                build,
            },
            None => Found::waits(Phase::Pending, "NoCode", "no code has been uploaded yet".into()),
        }
    }

    async fn run_target<'t>(
        &self,
        target: &'t Revision,
        standing: &Standing<'t>,
        build: Option<BuildStatus>,
    ) -> Result<(Found<'t>, Option<Duration>), Error> {
        let Standing { wanted, answering, state, key, aside } = *standing;
        let is_wanted = wanted.is_some_and(|wanted| wanted.name == target.name);
        let proven = answering.is_some_and(|answering| answering.name == target.name);
        let settings = target.settings().unwrap_or_else(|| self.valid.settings.clone());
        let settings = self.valid.settings.clone().with_revised_of(&settings);
        let variables = match self.given.variables(&settings) {
            Ok(variables) => variables,
            // What runs has the values of before and goes on.
            Err(missing) => {
                let phase = if proven && is_wanted { Phase::Ready } else { Phase::Pending };
                let mut found = Found::waits(phase, missing.reason, missing.message);
                found.built = Check::yes("Built");
                found.build = build;
                return Ok((found, None));
            }
        };
        let since = proven.then(|| self.since_ready());
        let replicas =
            rollout::replicas(&self.known.function, &settings, &self.known.triggers, since, self.now);
        let deployment = self.apply(target, &settings, &variables, replicas.count).await?;
        let pods = self.look(target, &deployment).await;
        let mut again = replicas.again;
        if pods.starting {
            again = Some(again.map_or(LOOK_AGAIN, |pause| pause.min(LOOK_AGAIN)));
        }
        let deployed = Check::yes("Deployed");
        let mut found = Found {
            phase: Phase::Ready,
            message: None,
            built: Check::yes("Built"),
            deployed,
            ready: Check::yes(if replicas.count == 0 { "Idle" } else { "Answering" }),
            answers: proven.then_some(target),
            build,
        };
        if !is_wanted {
            // The one before goes on, whatever became of the newest.
            let (phase, check) = state.and_then(status::of_build).unwrap_or_else(|| {
                let failure = wanted.and_then(|wanted| wanted.failed(Stage::Load));
                let message = failure.map(|failure| failure.message.clone()).unwrap_or_default();
                (Phase::Failed, Check::no("LoadFailed", message))
            });
            found.phase = phase;
            found.message = Some(check.message.clone());
            if state != Some(&builds::State::Ready) {
                found.built = check.clone();
            }
            found.deployed = Check::no(check.reason, "");
            found.ready = check;
            return Ok((found, again));
        }
        match (pods.trouble, pods.complete) {
            (None, true) => {
                found.answers = Some(target);
                let keep = [
                    self.workload(target, &settings, &variables, 0, "").variables_name(),
                    aside.variables.clone(),
                ];
                self.tidy_secrets(&keep).await?;
                if target.before.is_some() {
                    builds::annotate(
                        self.context,
                        target,
                        json!({ revision::BEFORE: serde_json::Value::Null }),
                    )
                    .await?;
                }
            }
            (Some(trouble), _) if trouble.code && proven && target.before.is_some() => {
                self.back_to_image(target, &trouble.message).await?;
                again = Some(SOON);
            }
            (Some(trouble), _) if trouble.code && !proven => {
                found.phase = Phase::Failed;
                found.message = Some(trouble.message.clone());
                found.ready = Check::no(trouble.reason, trouble.message.clone());
                if answering.is_some() {
                    let failure =
                        Failure { stage: Stage::Load, message: trouble.message, key: key.to_owned() };
                    let notes = json!({ revision::FAILURE: serde_json::to_string(&failure).ok() });
                    builds::annotate(self.context, target, notes).await?;
                    again = Some(SOON);
                } else {
                    again = Some(LOOK_AGAIN_LATER);
                }
            }
            (trouble, _) => {
                let answers =
                    proven && (pods.available > 0 || trouble.as_ref().is_none_or(|trouble| !trouble.code));
                let (reason, message) =
                    trouble.map_or(("Starting", String::new()), |trouble| (trouble.reason, trouble.message));
                found.phase = match (proven, answers) {
                    (true, true) => Phase::Ready,
                    (true, false) => Phase::Failed,
                    (false, _) => Phase::Pending,
                };
                found.message = (!message.is_empty()).then(|| message.clone());
                // What is known to load and has to have no pod is idle while the last one goes, too: its idle time counts from when
                // it became ready, and would begin anew.
                let idle = proven && replicas.count == 0;
                if !(idle || proven && pods.available > 0) {
                    found.ready = Check::no(reason, message);
                }
                if proven && !answers {
                    again = Some(LOOK_AGAIN_LATER);
                }
            }
        }
        Ok((found, again))
    }

    /// The same revision on a new runtime image does not load: it goes back to the one before.
    async fn back_to_image(&self, target: &Revision, why: &str) -> Result<(), Error> {
        let Some((image, runtime_image)) = &target.before else { return Ok(()) };
        let note = format!("the function does not load on the new runtime image and goes back: {why}");
        self.context.event(&self.known.function, EventType::Warning, "RebaseFailed", &note).await;
        let notes = json!({
            names::IMAGE: image,
            names::RUNTIME_IMAGE: runtime_image,
            revision::NOT_ONTO: target.runtime_image,
            revision::BEFORE: serde_json::Value::Null,
        });
        builds::annotate(self.context, target, notes).await.map(drop)
    }

    fn since_ready(&self) -> Timestamp {
        let conditions = self.known.function.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().find(|c| c.type_ == "Ready").map_or(self.now, |c| c.last_transition_time.0)
    }
}
