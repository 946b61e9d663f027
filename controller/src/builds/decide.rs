//! Which step comes next towards an image. Pure.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use sless_backend::FunctionRef;
use sless_crds::{BuildStatus, Phase, names};

use super::job;
use super::outcome::{self, Outcome};
use crate::revision::{ATTEMPT, Revision, Stage};

/// What the decision rests on.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) function: &'a FunctionRef,
    pub(super) wanted: &'a Revision,
    pub(super) all: &'a [Revision],
    /// The runtime image that there is now.
    pub(super) image: &'a str,
    /// The function's builds.
    pub(super) jobs: &'a [Arc<Job>],
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) key: &'a str,
    pub(super) timeout_sec: f64,
    pub(super) now: Timestamp,
}

/// See the module.
#[derive(Debug)]
pub(super) enum Step {
    Done,
    /// The same code has an image under another revision's name.
    Take(Box<Revision>),
    /// A Job has ended, and nothing tells of it yet.
    Conclude {
        job: Arc<Job>,
        outcome: Outcome,
    },
    Running(Option<String>),
    Failed(String),
    Later {
        message: String,
        at: Timestamp,
    },
    Start {
        attempt: u32,
        job: String,
    },
}

impl Facts<'_> {
    pub(super) fn decide(&self) -> Step {
        let wanted = self.wanted;
        if wanted.runtime_image.as_deref() == Some(self.image) && wanted.image.is_some() {
            return Step::Done;
        }
        let same = |other: &&Revision| {
            other.runtime_image.as_deref() == Some(self.image)
                && other.image.is_some()
                && other.runtime == wanted.runtime
                && other.source.identity() == wanted.source.identity()
        };
        if let Some(other) = self.all.iter().find(same) {
            return Step::Take(Box::new(other.clone()));
        }
        if let Some(failure) = wanted.failed(Stage::Build) {
            if failure.key == self.key {
                return Step::Failed(failure.message.clone());
            }
            return self.start(wanted.attempt + 1);
        }
        if let Some(job) = self.job() {
            let name = job.name_any();
            let outcome = self.outcome(job);
            return match outcome {
                Outcome::Running(note) => Step::Running(note),
                // Its end is known, and something was asked for since.
                _ if wanted.concluded.as_ref() == Some(&name) => self.start(wanted.attempt + 1),
                outcome => Step::Conclude { job: Arc::clone(job), outcome },
            };
        }
        match wanted.not_before.filter(|at| *at > self.now) {
            Some(at) => Step::Later { message: "the last attempt was cut short".into(), at },
            None => self.start(wanted.attempt),
        }
    }

    fn start(&self, attempt: u32) -> Step {
        Step::Start {
            attempt,
            job: job::name(self.function, self.wanted.source.identity(), self.image, attempt),
        }
    }

    /// The Job that builds this code on this runtime image, whichever revision it was begun for.
    fn job(&self) -> Option<&Arc<Job>> {
        let name = job::name(self.function, self.wanted.source.identity(), self.image, self.wanted.attempt);
        self.jobs
            .iter()
            .find(|job| job.name_any() == name && job.metadata.deletion_timestamp.is_none())
            .or_else(|| {
                let running = |job: &&Arc<Job>| {
                    !outcome::finished(job)
                        && job.metadata.deletion_timestamp.is_none()
                        // Its pod may have ended before Kubernetes says so of the Job.
                        && self.wanted.concluded.as_ref() != Some(&job.name_any())
                        && names_it(job, self.function, self.wanted, self.image)
                };
                self.jobs.iter().find(running)
            })
    }

    fn outcome(&self, job: &Job) -> Outcome {
        outcome::outcome(job, &outcome::pods_of(job, self.pods), self.timeout_sec)
    }

    /// What the status is to say of the Job that is there.
    pub(super) fn status(&self) -> Option<BuildStatus> {
        let job = self.job()?;
        let outcome = self.outcome(job);
        let ended =
            || outcome::ended_at(&outcome::pods_of(job, self.pods)).or_else(|| outcome::finished_at(job));
        let (phase, message, finished_at) = match outcome {
            Outcome::Running(note) => (Phase::Building, note, None),
            Outcome::Built(_) => (Phase::Ready, None, ended()),
            Outcome::Refused { message, .. } => {
                let kept = self.wanted.failed(Stage::Build).map(|failure| failure.message.clone());
                (Phase::Failed, Some(kept.unwrap_or(message)), ended())
            }
            Outcome::Broken(message) | Outcome::Forgotten(message) => (Phase::Building, Some(message), None),
        };
        let started_at = job.metadata.creation_timestamp.clone().unwrap_or(Time(self.now));
        Some(BuildStatus { name: job.name_any(), phase, started_at, finished_at, message })
    }

    /// Jobs whose outcome some revision tells of: all that is left to do is their logs.
    pub(super) fn concluded(&self, all: &[Revision]) -> Vec<Arc<Job>> {
        let known = |job: &&Arc<Job>| {
            let name = job.name_any();
            outcome::finished(job) && all.iter().any(|revision| revision.concluded.as_ref() == Some(&name))
        };
        let wanted = self.job().map(|job| job.name_any());
        // One that ended and belongs to nothing that is wanted has nobody to tell its outcome.
        let stray = |job: &&Arc<Job>| outcome::finished(job) && Some(job.name_any()) != wanted;
        self.jobs.iter().filter(|job| known(job) || stray(job)).cloned().collect()
    }
}

/// Whether the Job was begun for this code, on this image.
fn names_it(job: &Job, function: &FunctionRef, wanted: &Revision, image: &str) -> bool {
    let attempt = job.annotations().get(ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(0);
    job.name_any() == job::name(function, wanted.source.identity(), image, attempt)
}

/// Whether the Job was begun for this code, on the image that its own container has.
pub(super) fn is_of(job: &Job, function: &FunctionRef, wanted: &Revision) -> bool {
    let pod = job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let image = pod.and_then(|pod| pod.init_containers.as_ref()?.first()?.image.clone());
    job.labels().get(names::LABEL_REVISION) == Some(&wanted.name)
        || image.is_some_and(|image| names_it(job, function, wanted, &image))
}
