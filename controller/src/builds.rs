//! Builds: from code in S3 to an image, by a Job that has a name by its input.
//!
//! What came out of it is written to the revision's annotations before the Job goes, so that a controller that is killed at any point
//! finds either the Job or its outcome, and never builds twice.

mod decide;
mod deliver;
mod job;
mod outcome;
mod places;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sless_backend::FunctionRef;
use sless_core::{Digest, FunctionSettings};
use sless_crds::{BuildStatus, Function, Phase, names};

pub(crate) use deliver::deliver;
pub(crate) use places::{Kind, Places};

use crate::context::{Context, RuntimeImage};
use crate::error::{Error, acting, is_conflict};
use crate::jitter;
use crate::objects::meta;
use crate::revision::{self, Failure, Revision, Stage};
use decide::{Facts, Step};
use job::{Build, LABEL_REBASE};
use outcome::Outcome;

/// The Secret in a user's namespace with the address and credentials of a private package index.
const PACKAGE_INDEX: &str = "package-index";
/// So many layers of dependencies are offered to a build.
const KNOWN_MAX: usize = 100;
/// In a merge patch.
const AWAY: Value = Value::Null;
/// After a failure that was not the author's.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Where the image of a revision stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Ready,
    /// A Job is at it.
    Running(Option<String>),
    /// There is no free place.
    Waiting,
    /// Not the author's fault; it goes on at that time.
    Retrying {
        message: String,
        at: Timestamp,
    },
    Failed(String),
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wish<'a> {
    pub(crate) function: &'a Function,
    pub(crate) of: &'a FunctionRef,
    pub(crate) settings: &'a FunctionSettings,
    pub(crate) image: &'a RuntimeImage,
    pub(crate) kind: Kind,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) state: State,
    /// What the status should say of the build, if there is anything new to say.
    pub(crate) build: Option<BuildStatus>,
    /// The revision as it is now.
    pub(crate) revision: Revision,
    /// Its Job has ended and what it said is kept: its log can go to the API.
    pub(crate) concluded: Vec<Arc<Job>>,
}

/// Does the next step towards an image for `wanted`.
///
/// # Errors
/// [`Error::Kube`], [`Error::Away`].
pub(crate) async fn proceed(
    context: &Context,
    wish: &Wish<'_>,
    wanted: Revision,
    all: &[Revision],
    now: Timestamp,
) -> Result<Progress, Error> {
    let jobs = jobs_of(context, wish.of);
    let pods = context.stores.pods.state();
    for job in &jobs {
        context.places.seen(&job.name_any());
    }
    let key = revision::retry_key(wish.function, wish.settings);
    let facts = Facts {
        function: wish.of,
        wanted: &wanted,
        all,
        image: &wish.image.pull,
        jobs: &jobs,
        pods: &pods,
        key: &key,
        timeout_sec: wish.settings.build_timeout_sec.get(),
        now,
    };
    let step = facts.decide();
    let concluded = facts.concluded(all);
    let build = facts.status();
    let mut progress = Progress { state: State::Ready, build, revision: wanted, concluded };
    match step {
        Step::Done => {}
        Step::Take(from) => {
            let notes = notes_of(&from);
            progress.revision = annotate(context, &progress.revision, notes).await?;
        }
        Step::Failed(message) => progress.state = State::Failed(message),
        Step::Later { message, at } => progress.state = State::Retrying { message, at },
        Step::Running(note) => progress.state = State::Running(note),
        Step::Conclude { job, outcome } => {
            conclude(context, wish, &mut progress, &job, outcome, &key, now).await?
        }
        Step::Start { attempt, job } => {
            let function = ObjectRef::from_obj(wish.function);
            if context.places.take(wish.kind, &job, &active(context, wish.kind), &function) {
                let started = start(context, wish, &mut progress.revision, all, attempt).await;
                if started.is_err() {
                    context.places.seen(&job);
                }
                progress.build = Some(started?);
                progress.state = State::Running(None);
            } else {
                progress.state = State::Waiting;
            }
        }
    }
    Ok(progress)
}

fn jobs_of(context: &Context, of: &FunctionRef) -> Vec<Arc<Job>> {
    let mine = |job: &Job| {
        let label = |name: &str| job.labels().get(name).map(String::as_str);
        label(names::LABEL_FUNCTION) == Some(of.name.as_str())
            && label(names::LABEL_NAMESPACE) == Some(of.namespace.as_str())
            && label(names::LABEL_COMPONENT) == Some(names::COMPONENT_BUILD)
    };
    context.stores.jobs.state_filter(|job| mine(job))
}

fn active(context: &Context, kind: Kind) -> Vec<String> {
    let is = |job: &Job| {
        !outcome::finished(job)
            && job.labels().get(names::LABEL_COMPONENT).map(String::as_str) == Some(names::COMPONENT_BUILD)
            && job.labels().contains_key(LABEL_REBASE) == (kind == Kind::Rebase)
    };
    context.stores.jobs.state_filter(|job| is(job)).iter().map(|job| job.name_any()).collect()
}

/// Annotations that say where an image is and what is in it.
fn notes_of(from: &Revision) -> Value {
    json!({
        names::IMAGE: from.image,
        names::RUNTIME_IMAGE: from.runtime_image,
        names::DEPENDENCIES: from.dependencies.as_ref().and_then(|d| serde_json::to_string(d).ok()),
        revision::CONTENT: from.content,
    })
}

/// Writes annotations of a revision (null: away), if they are not as they should be already.
pub(crate) async fn annotate(
    context: &Context,
    revision: &Revision,
    notes: Value,
) -> Result<Revision, Error> {
    let there = revision.object.annotations();
    let same = |(name, value): (&String, &Value)| there.get(name).map(String::as_str) == value.as_str();
    if notes.as_object().is_some_and(|notes| notes.iter().all(same)) {
        return Ok(revision.clone());
    }
    let name = revision.object.name_any();
    let namespace = revision.object.namespace().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": notes } }));
    let params = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
    let object = api.patch(&name, &params, &patch).await.map_err(acting("annotate the revision", &name))?;
    Revision::read(&Arc::new(object)).ok_or_else(|| Error::Away {
        action: format!("read the revision {name} again"),
        problem: "somebody has damaged it; delete it, and it is made anew".into(),
    })
}

async fn conclude(
    context: &Context,
    wish: &Wish<'_>,
    progress: &mut Progress,
    job: &Arc<Job>,
    outcome: Outcome,
    key: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let name = job.name_any();
    let revision = &progress.revision;
    let span = tracing::info_span!("build", function = %wish.function.name_any(), namespace = %wish.of.namespace, build = %name);
    let (notes, state, phase, message) = match outcome {
        Outcome::Running(_) => return Ok(()),
        Outcome::Built(packed) => {
            span.in_scope(|| {
                tracing::info!(
                    "build {name} of {}/{} made {}",
                    wish.of.namespace,
                    wish.of.name,
                    packed.digest
                )
            });
            context.metrics.build("built");
            let FunctionRef { namespace, name: function } = wish.of;
            let image = format!("{}/{namespace}/{function}@{}", context.config.registry_pull, packed.digest);
            let before = match (&revision.image, &revision.runtime_image) {
                (Some(image), Some(runtime)) => serde_json::to_string(&(image, runtime)).ok(),
                _ => None,
            };
            let notes = json!({
                names::IMAGE: image,
                names::RUNTIME_IMAGE: wish.image.pull,
                names::DEPENDENCIES: packed.dependencies.and_then(|d| serde_json::to_string(&d).ok()),
                revision::CONTENT: packed.content_sha256,
                revision::CONCLUDED: name,
                revision::BEFORE: before,
                revision::AFRESH: AWAY,
                revision::FAILURE: AWAY,
                revision::NOT_BEFORE: AWAY,
            });
            (notes, State::Ready, Phase::Ready, None)
        }
        Outcome::Refused { container, message } => {
            let tail = deliver::tail(context, &name, container, &message).await;
            let message = if tail.is_empty() { message } else { format!("{message}\n{tail}") };
            span.in_scope(|| tracing::info!("build {name} of {}/{} failed", wish.of.namespace, wish.of.name));
            context.metrics.build("refused");
            if wish.kind == Kind::Rebase {
                let notes = json!({ revision::NOT_ONTO: wish.image.pull, revision::CONCLUDED: name });
                (notes, State::Failed(message.clone()), Phase::Failed, Some(message))
            } else {
                let failure = Failure { stage: Stage::Build, message: message.clone(), key: key.to_owned() };
                let notes = json!({
                    revision::FAILURE: serde_json::to_string(&failure).ok(),
                    revision::CONCLUDED: name,
                    revision::NOT_BEFORE: AWAY,
                });
                (notes, State::Failed(message.clone()), Phase::Failed, Some(message))
            }
        }
        Outcome::Broken(ref message) | Outcome::Forgotten(ref message) => {
            let message = message.clone();
            let afresh = matches!(outcome, Outcome::Forgotten(_)).then_some("true");
            context.metrics.build("broken");
            let pause = jitter::back_off(revision.attempt, FIRST_PAUSE, LONGEST_PAUSE);
            let at = now.checked_add(pause).unwrap_or(now);
            span.in_scope(|| {
                tracing::warn!(
                    "build {name} of {}/{} is tried again: {message}",
                    wish.of.namespace,
                    wish.of.name
                );
            });
            let notes = json!({
                revision::ATTEMPT: (revision.attempt + 1).to_string(),
                revision::NOT_BEFORE: at.to_string(),
                revision::AFRESH: afresh,
                revision::CONCLUDED: name,
            });
            (notes, State::Retrying { message: message.clone(), at }, Phase::Building, Some(message))
        }
    };
    progress.revision = annotate(context, revision, notes).await?;
    progress.state = state;
    if let Some(build) = &mut progress.build {
        build.phase = phase;
        build.message = message;
    }
    progress.concluded.push(Arc::clone(job));
    Ok(())
}

async fn start(
    context: &Context,
    wish: &Wish<'_>,
    wanted: &mut Revision,
    all: &[Revision],
    attempt: u32,
) -> Result<BuildStatus, Error> {
    // The cache may be behind what this very controller has written: asked once more, so that nothing is built twice.
    let name = wanted.object.name_any();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), wish.of.namespace.as_str());
    let live = api.get(&name).await.map_err(acting("read the revision", &name))?;
    if live.resource_version() != wanted.object.resource_version() {
        return Err(Error::Stale { name });
    }
    if attempt != wanted.attempt || wanted.failure.is_some() || wanted.not_before.is_some() {
        let notes = json!({
            revision::ATTEMPT: attempt.to_string(),
            revision::FAILURE: AWAY,
            revision::NOT_BEFORE: AWAY,
        });
        *wanted = annotate(context, wanted, notes).await?;
    }
    let sha256: Digest = wanted.source.sha256.parse().map_err(|problem| Error::Away {
        action: format!("read the digest of {}", wanted.source.key),
        problem: String::from(problem),
    })?;
    let url = context.code.presign_get(wish.of, &sha256, job::url_lasts(wish.settings)).await;
    let code_url = url.map_err(|error| Error::Away {
        action: format!("sign an URL for {}", wanted.source.key),
        problem: crate::error::chain(&error),
    })?;
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), wish.of.namespace.as_str());
    let index = secrets.get_opt(PACKAGE_INDEX).await.map_err(acting("read the Secret", PACKAGE_INDEX))?;
    let known = if wanted.afresh { Vec::new() } else { known(context, wish, all) };
    let build = Build {
        config: &context.config,
        function: wish.of,
        revision: &wanted.name,
        source: &wanted.source,
        settings: wish.settings,
        runtime: &wanted.runtime,
        image: wish.image,
        attempt,
        rebase: wish.kind == Kind::Rebase,
        code_url: &code_url,
        known: &known,
        index: index.is_some(),
        registry_auth: context.registry_auth,
    };
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), names::BUILDS);
    let job = build.job();
    let name = job.name_any();
    let params = PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
    let job = match jobs.create(&params, &job).await {
        Ok(job) => job,
        // This one, before it was killed.
        Err(error) if is_conflict(&error) => jobs.get(&name).await.map_err(acting("read the Job", &name))?,
        Err(error) => return Err(acting("make the Job", &name)(error)),
    };
    if let Some(index) = index {
        copy_index(context, &job, &index).await?;
    }
    tracing::info!(namespace = %wish.of.namespace, function = %wish.of.name, "build {name} of {}/{} has begun", wish.of.namespace, wish.of.name);
    let started_at = job.metadata.creation_timestamp.unwrap_or(Time(Timestamp::now()));
    Ok(BuildStatus { name, phase: Phase::Building, started_at, finished_at: None, message: None })
}

/// For this Job alone; it goes with it.
async fn copy_index(context: &Context, job: &Job, index: &Secret) -> Result<(), Error> {
    let name = job::index_name(&job.name_any());
    let mut metadata = meta(&name, names::BUILDS);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    let copy = Secret { metadata, data: index.data.clone(), immutable: Some(true), ..Secret::default() };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), names::BUILDS);
    match api.create(&PostParams::default(), &copy).await {
        Err(error) if !is_conflict(&error) => Err(acting("copy the package index's Secret to", &name)(error)),
        _ => Ok(()),
    }
}

/// Layers of dependencies of the namespace for the same runtime, the function's own first.
fn known(context: &Context, wish: &Wish<'_>, all: &[Revision]) -> Vec<revision::Dependencies> {
    let runtime = wish.function.spec.runtime.as_str();
    let others = context
        .stores
        .revisions
        .state_filter(|object| object.metadata.namespace.as_deref() == Some(wish.of.namespace.as_str()));
    let others = others.iter().filter_map(Revision::read);
    let mut by_key = BTreeMap::new();
    let mut known = Vec::new();
    for revision in all.iter().rev().cloned().chain(others) {
        if let Some(dependencies) = revision.dependencies.filter(|_| revision.runtime == runtime)
            && by_key.insert(dependencies.key.clone(), ()).is_none()
        {
            known.push(dependencies);
        }
    }
    known.truncate(KNOWN_MAX);
    known
}

/// Ends builds that nobody waits for any more.
pub(crate) async fn cancel_others(
    context: &Context,
    of: &FunctionRef,
    wanted: &Revision,
) -> Result<(), Error> {
    let api: Api<Job> = Api::namespaced(context.client.clone(), names::BUILDS);
    for job in jobs_of(context, of) {
        let other = job.labels().get(names::LABEL_REVISION) != Some(&wanted.name);
        if other && !outcome::finished(&job) && !decide::is_of(&job, of, wanted) {
            let name = job.name_any();
            tracing::info!(namespace = %of.namespace, function = %of.name, "build {name} is ended: something newer is wanted");
            match api.delete(&name, &DeleteParams::background()).await {
                Err(error) if !crate::error::is_absent(&error) => {
                    return Err(acting("delete the Job", &name)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
