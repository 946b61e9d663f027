//! One function: a task that owns what is wanted of it and what runs, and that alone acts on them.
//!
//! ```text
//!            build                start                 ready
//!  wanted ──────────▶ building ──────────▶ candidate ──────────▶ active ──▶ drained when another takes its place
//!                        │                    │ does not load                 or when the function is deleted
//!                        └───────▶ Failed ◀───┘
//! ```
//! The active revision answers until another one is ready; a failure never touches it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sless_backend::{Endpoint, FunctionRef, FunctionSpec, Generation, Revision, Secret};
use sless_core::{Digest, Phase};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::builds::{self, Record};
use crate::instance::End;
use crate::keeper::{Keeper, State};
use crate::{News, Shared};

/// Longest wait for the callers of a replaced supervisor, beyond their own limit.
const CALLERS_GRACE: Duration = Duration::from_secs(10);

/// What is wanted of a function.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    /// Counts lives: a function that was deleted and made again has nothing of the one before.
    pub(crate) life: u64,
    pub(crate) want: Want,
}

#[derive(Debug, Clone)]
pub(crate) enum Want {
    Run(Box<FunctionSpec>, Generation),
    Delete,
    /// The host ends; what is built and kept stays.
    Stop,
}

#[derive(Debug)]
struct Build {
    revision: Revision,
    role: Role,
    task: JoinHandle<io::Result<Record>>,
}

/// What a build is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Wanted,
    /// It answered before this host began, and its code is gone from the data folder.
    Fallback,
}

impl Drop for Build {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
pub(crate) struct Function {
    shared: Arc<Shared>,
    function: FunctionRef,
    life: u64,
    wanted: Option<(Revision, Generation)>,
    /// Contents whose built code stays, whatever their age.
    kept: Vec<Digest>,
    /// What installers are given to find packages.
    index: BTreeMap<String, Secret>,
    /// Why the wanted revision does not answer, once that is certain.
    failure: Option<String>,
    building: Option<Build>,
    /// What answered before this host began, if it has to be built anew: done only if the wanted one fails.
    fallback: Option<Revision>,
    candidate: Option<Keeper>,
    active: Option<Keeper>,
    /// Drains that run.
    leaving: JoinSet<()>,
}

enum Event {
    Wish,
    /// What was replaced is gone.
    Left,
    Built(io::Result<Record>),
    Candidate(State),
    Active(State),
}

impl Function {
    pub(crate) fn new(shared: Arc<Shared>, function: FunctionRef) -> Self {
        let (wanted, failure, building, fallback, candidate, active) = (None, None, None, None, None, None);
        Self {
            shared,
            function,
            life: 0,
            wanted,
            kept: Vec::new(),
            index: BTreeMap::new(),
            failure,
            building,
            fallback,
            candidate,
            active,
            leaving: JoinSet::new(),
        }
    }

    /// Runs until the function is deleted or the host ends.
    pub(crate) async fn run(mut self, mut wishes: watch::Receiver<Wish>) {
        loop {
            let wish = wishes.borrow_and_update().clone();
            if self.life != wish.life && self.life != 0 {
                self.remove().await;
            }
            self.life = wish.life;
            match wish.want {
                Want::Run(spec, generation) => self.want(*spec, generation),
                Want::Delete => {
                    self.remove().await;
                    if self.shared.forget(&self.function, wish.life) {
                        return;
                    }
                    continue;
                }
                Want::Stop => return self.stop().await,
            }
            loop {
                match self.next(&mut wishes).await {
                    Event::Wish => break,
                    event => self.handle(event),
                }
            }
        }
    }

    async fn next(&mut self, wishes: &mut watch::Receiver<Wish>) -> Event {
        tokio::select! {
            biased;
            changed = wishes.changed() => {
                // The sender lives as long as the entry that only this task removes.
                if changed.is_err() { std::future::pending::<()>().await; }
                Event::Wish
            }
            record = built(&mut self.building) => Event::Built(record),
            state = changed(&mut self.candidate) => Event::Candidate(state),
            state = changed(&mut self.active) => Event::Active(state),
            Some(_) = self.leaving.join_next() => Event::Left,
        }
    }

    fn want(&mut self, spec: FunctionSpec, generation: Generation) {
        self.kept.clone_from(&spec.kept);
        self.index.clone_from(&spec.index);
        if let Err(e) = self.prepare() {
            self.wanted = Some((spec.wanted, generation));
            return self.fail(format!("prepare the function's folders: {e}"));
        }
        if let Some(serving) = spec.serving.filter(|_| self.active.is_none() && self.candidate.is_none()) {
            self.resume(serving, &spec.wanted);
        }
        let revision = spec.wanted;
        let before = self.failure.take();
        self.wanted = Some((revision.clone(), generation));
        if self.active.as_ref().is_some_and(|active| active.revision.runs_as(&revision)) {
            self.building = None;
            self.dismiss_candidate();
            if let Some(State::Failing(why)) = self.active.as_ref().map(Keeper::state) {
                self.failure = Some(why);
            }
            return self.publish();
        }
        let same = |r: &Revision| r.runs_as(&revision);
        if before.is_none()
            && (self.candidate.as_ref().is_some_and(|c| same(&c.revision))
                || self.building.as_ref().is_some_and(|b| same(&b.revision)))
        {
            return self.publish();
        }
        self.dismiss_candidate();
        if let Some(build) = self.building.take().filter(|build| build.role == Role::Fallback) {
            self.fallback = Some(build.revision.clone());
        }
        match builds::of(&self.shared.layout, &self.function, &revision.code.content_sha256)
            .and_then(|record| record.code(&self.shared.layout, &self.function))
        {
            Some(code) => self.try_out(revision, code),
            None => self.build(revision, Role::Wanted),
        }
        self.publish();
    }

    fn prepare(&self) -> io::Result<()> {
        self.shared.layout.prepare_function(&self.function)?;
        self.shared.report_tokens.issue(&self.shared.layout, &self.function)?;
        let last = builds::all(&self.shared.layout, &self.function).into_iter().next();
        let status = last.map(|record| record.status());
        self.shared.tell_build(&self.function, status, crate::Told::IfNone);
        Ok(())
    }

    /// Starts what answered before this host began, without asking anything of it.
    fn resume(&mut self, serving: Revision, wanted: &Revision) {
        let record = builds::of(&self.shared.layout, &self.function, &serving.code.content_sha256);
        match record.and_then(|record| record.code(&self.shared.layout, &self.function)) {
            Some(code) => self.active = Some(self.keeper(serving, code)),
            None if serving.name != wanted.name => self.fallback = Some(serving),
            None => {}
        }
    }

    fn keeper(&self, revision: Revision, code: PathBuf) -> Keeper {
        Keeper::start(self.shared.clone(), self.function.clone(), revision, code)
    }

    fn build(&mut self, revision: Revision, role: Role) {
        let started = builds::started(revision.code.content_sha256);
        self.shared.tell_build(&self.function, Some(started.status.clone()), crate::Told::Always);
        let run = builds::run(
            self.shared.clone(),
            self.function.clone(),
            revision.clone(),
            started,
            self.index.clone(),
        );
        self.building = Some(Build { revision, role, task: tokio::spawn(run) });
    }

    fn try_out(&mut self, revision: Revision, code: PathBuf) {
        self.candidate = Some(self.keeper(revision, code));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wish => {}
            // Its code was in use until now.
            Event::Left => self.prune(),
            Event::Built(result) => self.built(result),
            Event::Candidate(State::Ready(_)) => self.replace(),
            Event::Candidate(State::Failing(why)) => {
                // With nothing else to answer it goes on trying: what `init` needs may come up later.
                if self.active.is_some() {
                    self.dismiss_candidate();
                }
                self.fail(why);
            }
            Event::Active(State::Failing(why)) if self.active_is_wanted() => self.fail(why),
            Event::Active(State::Ready(_)) if self.active_is_wanted() => {
                self.failure = None;
                self.publish();
            }
            Event::Candidate(State::Starting) | Event::Active(_) => self.publish(),
        }
    }

    fn built(&mut self, result: io::Result<Record>) {
        let Some(build) = self.building.take() else { return };
        let layout = &self.shared.layout;
        match result {
            Ok(record) => {
                let status = record.status();
                let (code, message) = (record.code(layout, &self.function), status.message.clone());
                self.shared.tell_build(&self.function, Some(status), crate::Told::Always);
                match code {
                    Some(code) if build.role == Role::Fallback => {
                        // The wanted one has failed; it is tried again when it is wished for again.
                        self.dismiss_candidate();
                        self.active = Some(self.keeper(build.revision.clone(), code));
                        self.publish();
                    }
                    Some(code) => {
                        self.try_out(build.revision.clone(), code);
                        self.publish();
                    }
                    None if build.role == Role::Fallback => self.publish(),
                    None => self.fail(message.unwrap_or_else(|| "the built code is gone".to_owned())),
                }
            }
            Err(error) => {
                tracing::error!(function = %self.function, %error, "build {}", self.function);
                let last = self.shared.build(&self.function).map(|mut status| {
                    status.phase = Phase::Failed;
                    status.finished_at = Some(std::time::SystemTime::now());
                    status.message = Some(error.to_string());
                    status
                });
                self.shared.tell_build(&self.function, last, crate::Told::Always);
                if build.role == Role::Fallback {
                    return self.publish();
                }
                self.fail(format!("the host could not build it: {error}"));
            }
        }
    }

    fn active_is_wanted(&self) -> bool {
        let wanted = self.wanted.as_ref().map(|(revision, _)| revision);
        self.active.as_ref().is_some_and(|active| wanted.is_some_and(|r| r.runs_as(&active.revision)))
    }

    /// The candidate takes over; what it replaces is drained.
    fn replace(&mut self) {
        let Some(candidate) = self.candidate.take() else { return };
        let old = self.active.replace(candidate);
        (self.failure, self.fallback) = (None, None);
        let before = self.shared.endpoints_of(&self.function);
        self.publish();
        if let Some(old) = old {
            self.leaving.spawn(drain(old, before));
        }
        self.prune();
    }

    /// Removes built code that is not kept.
    fn prune(&self) {
        let (Some(active), Some((wanted, _))) = (&self.active, &self.wanted) else { return };
        let mut used = self.kept.clone();
        used.extend([active.revision.code.content_sha256, wanted.code.content_sha256]);
        let keep = usize::try_from(wanted.settings.revision_history).unwrap_or(usize::MAX);
        if self.building.is_some() {
            // What is being built has no record yet, and would be taken for what a killed host has left.
            return;
        }
        if let Err(error) = builds::prune(&self.shared, &self.function, &used, keep) {
            tracing::warn!(function = %self.function, %error, "remove old code of {}", self.function);
        }
    }

    fn dismiss_candidate(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            self.leaving.spawn(candidate.end(End::Now));
        }
    }

    fn fail(&mut self, why: String) {
        self.failure = Some(why);
        if self.active.is_none()
            && let Some(fallback) = self.fallback.take()
        {
            self.build(fallback, Role::Fallback);
        }
        self.publish();
    }

    /// Tells the outside what is true now.
    fn publish(&self) {
        let Some((_, generation)) = &self.wanted else { return };
        let endpoint = self.active.as_ref().and_then(|active| match active.state() {
            State::Ready(endpoint) => Some(endpoint),
            State::Starting | State::Failing(_) => None,
        });
        let phase = match (&self.failure, &self.building) {
            (Some(_), _) => Phase::Failed,
            (None, Some(_)) => Phase::Building,
            (None, None) if self.active_is_wanted() && endpoint.is_some() => Phase::Ready,
            (None, None) => Phase::Pending,
        };
        let news = News {
            generation: *generation,
            phase,
            message: self.failure.clone(),
            active_revision: self.active.as_ref().map(|active| active.revision.name.clone()),
        };
        self.shared.tell(&self.function, news, endpoint);
    }

    async fn end_all(&mut self) {
        self.building = None;
        self.shared.asides.end(&self.function).await;
        self.dismiss_candidate();
        if let Some(active) = self.active.take() {
            let before = self.shared.take_endpoints(&self.function);
            self.leaving.spawn(drain(active, before));
        }
        while self.leaving.join_next().await.is_some() {}
    }

    async fn stop(mut self) {
        self.end_all().await;
    }

    /// Ends and removes all of it, so that the next life begins with nothing.
    async fn remove(&mut self) {
        self.shared.tell_terminating(&self.function);
        self.end_all().await;
        self.wanted = None;
        (self.failure, self.fallback) = (None, None);
        self.shared.report_tokens.revoke(&self.function);
        if let Err(error) = self.shared.layout.remove_function(&self.function) {
            tracing::error!(function = %self.function, %error, "remove the files of {}", self.function);
        }
        self.shared.tell_gone(&self.function);
    }
}

/// Waits until nobody calls through `endpoints` any more, which are no longer given out, then drains.
async fn drain(old: Keeper, endpoints: Arc<[Endpoint]>) {
    let limit = old.revision.settings.timeout_sec.duration().saturating_add(CALLERS_GRACE);
    let began = Instant::now();
    // An empty list may be shared with anybody.
    while !endpoints.is_empty() && Arc::strong_count(&endpoints) > 1 && began.elapsed() < limit {
        sleep(Duration::from_millis(10)).await;
    }
    old.end(End::Drain).await;
}

async fn built(build: &mut Option<Build>) -> io::Result<Record> {
    match build {
        Some(build) => (&mut build.task).await.map_err(io::Error::other)?,
        None => std::future::pending().await,
    }
}

async fn changed(keeper: &mut Option<Keeper>) -> State {
    match keeper {
        Some(keeper) => keeper.changed().await,
        None => std::future::pending().await,
    }
}
