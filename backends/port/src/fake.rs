//! A backend in memory, for tests of what stands above the port.
//!
//! A revision is ready as soon as it is applied, unless its entrypoint's function is named `broken`. Where a function's calls go is
//! set by [`FakeBackend::serve`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use sless_core::{Phase, Runtime};
use tokio::sync::broadcast;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

use crate::{
    Backend, BackendError, BoxStream, BuildStatus, Endpoint, FunctionRef, FunctionSpec, FunctionStatus,
    Generation, Identity, LogLine, Revision, Secret,
};

/// See the module.
#[derive(Debug)]
pub struct FakeBackend {
    state: Mutex<State>,
    changes: broadcast::Sender<FunctionStatus>,
    /// Told of each change of the endpoints.
    served: broadcast::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    functions: BTreeMap<FunctionRef, Function>,
    endpoints: HashMap<FunctionRef, Arc<[Endpoint]>>,
    /// Of revisions that do not answer by themselves.
    earlier: HashMap<(FunctionRef, String), Arc<[Endpoint]>>,
    /// Statuses wait here while they are held back.
    held: Option<Vec<FunctionStatus>>,
    /// Functions that are ready without having been applied.
    running: HashSet<FunctionRef>,
    /// Functions that have no endpoint because nobody calls them.
    asleep: HashSet<FunctionRef>,
    /// How often each was woken.
    woken: HashMap<FunctionRef, usize>,
    /// Of builds, by name.
    logs: HashMap<String, Vec<LogLine>>,
}

#[derive(Debug)]
struct Function {
    status: FunctionStatus,
    spec: FunctionSpec,
    build: BuildStatus,
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changes: broadcast::channel(1024).0,
            served: broadcast::channel(1024).0,
        }
    }
}

impl FakeBackend {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where calls of `function` go from now on, once it is ready.
    pub fn serve(&self, function: &FunctionRef, endpoints: Vec<Endpoint>) {
        self.state().endpoints.insert(function.clone(), endpoints.into());
        // Nobody waiting is no fault.
        let _ = self.served.send(());
    }

    /// Lets a function be ready that nobody has applied here, as where somebody else does what its definition says.
    pub fn run(&self, function: &FunctionRef, endpoints: Vec<Endpoint>) {
        self.state().running.insert(function.clone());
        self.serve(function, endpoints);
    }

    /// From now on whoever calls `function` while it has no endpoint is told to wait for one.
    pub fn sleep(&self, function: &FunctionRef) {
        self.state().asleep.insert(function.clone());
    }

    /// How often somebody has asked for `function` to be woken.
    #[must_use]
    pub fn woken(&self, function: &FunctionRef) -> usize {
        self.state().woken.get(function).copied().unwrap_or_default()
    }

    /// What `function`'s last build has written so far.
    pub fn write_log(&self, function: &FunctionRef, lines: Vec<LogLine>) {
        let mut state = self.state();
        if let Some(build) = state.functions.get(function).map(|f| f.build.name.clone()) {
            state.logs.insert(build, lines);
        }
    }

    /// Where calls of one revision go that is not the active one.
    pub fn serve_revision(&self, function: &FunctionRef, revision: &str, endpoints: Vec<Endpoint>) {
        self.state().earlier.insert((function.clone(), revision.to_owned()), endpoints.into());
    }

    /// What was asked for last.
    #[must_use]
    pub fn spec(&self, function: &FunctionRef) -> Option<FunctionSpec> {
        self.state().functions.get(function).map(|f| f.spec.clone())
    }

    /// From now on nothing that is asked for comes true, until [`FakeBackend::release`].
    pub fn hold(&self) {
        self.state().held.get_or_insert_default();
    }

    /// Lets what was held back come true.
    pub fn release(&self) {
        let held = self.state().held.take().unwrap_or_default();
        for status in held {
            self.publish(status);
        }
    }

    /// The token of the controller.
    pub const CONTROLLER_TOKEN: &str = "controller";

    /// The report token of a function.
    #[must_use]
    pub fn report_token(function: &FunctionRef) -> String {
        format!("report:{function}")
    }

    fn publish(&self, status: FunctionStatus) {
        let mut state = self.state();
        if let Some(held) = &mut state.held {
            held.push(status);
            return;
        }
        if status.gone {
            state.functions.remove(&status.function);
        } else if let Some(function) = state.functions.get_mut(&status.function) {
            function.status = status.clone();
        }
        // Nobody watching is no fault.
        let _ = self.changes.send(status);
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn runtimes(&self) -> Vec<Runtime> {
        ["python3.11", "nodejs20"].iter().filter_map(|name| name.parse().ok()).collect()
    }

    async fn apply_function(&self, spec: FunctionSpec, generation: Generation) -> Result<(), BackendError> {
        let status = {
            let mut state = self.state();
            let function = spec.function.clone();
            let before = state.functions.get(&function);
            if before.is_some_and(|f| f.status.generation >= generation) {
                return Ok(());
            }
            let serving = before
                .map_or(spec.serving.as_ref().map(|r| r.name.clone()), |f| f.status.active_revision.clone());
            let broken = spec.wanted.settings.entrypoint.function() == "broken";
            let now = SystemTime::now();
            let same =
                before.filter(|f| f.spec.wanted.code.content_sha256 == spec.wanted.code.content_sha256);
            let build = same.map(|f| f.build.clone()).unwrap_or(BuildStatus {
                phase: Phase::Ready,
                started_at: now,
                finished_at: Some(now),
                message: None,
                name: format!("build-{}", generation.0),
            });
            let status = FunctionStatus {
                function: function.clone(),
                generation,
                phase: if broken { Phase::Failed } else { Phase::Ready },
                message: broken.then(|| "the handler does not load".to_owned()),
                active_revision: if broken { serving.clone() } else { Some(spec.wanted.name.clone()) },
                gone: false,
            };
            let first = FunctionStatus {
                generation: Generation(0),
                phase: Phase::Pending,
                message: None,
                active_revision: serving,
                ..status.clone()
            };
            let told = before.map_or(first, |f| f.status.clone());
            state.functions.insert(function, Function { status: told, spec, build });
            status
        };
        self.publish(status);
        Ok(())
    }

    async fn delete_function(&self, function: &FunctionRef) -> Result<(), BackendError> {
        self.publish(FunctionStatus {
            function: function.clone(),
            generation: Generation(u64::MAX),
            phase: Phase::Terminating,
            message: None,
            active_revision: None,
            gone: true,
        });
        Ok(())
    }

    fn status(&self, function: &FunctionRef) -> Option<FunctionStatus> {
        let state = self.state();
        let running = state.running.contains(function).then(|| FunctionStatus {
            function: function.clone(),
            generation: Generation(u64::MAX),
            phase: Phase::Ready,
            message: None,
            active_revision: None,
            gone: false,
        });
        state.functions.get(function).map(|f| f.status.clone()).or(running)
    }

    fn watch_functions(&self) -> BoxStream<FunctionStatus> {
        // Subscribed under the lock: a change is either in the present state or comes after it.
        let state = self.state();
        let changes = BroadcastStream::new(self.changes.subscribe());
        let present: Vec<_> = state.functions.values().map(|f| f.status.clone()).collect();
        Box::pin(tokio_stream::iter(present).chain(changes.filter_map(Result::ok)))
    }

    fn endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        let state = self.state();
        let active = state.functions.get(function).is_some_and(|f| f.status.active_revision.is_some())
            || state.running.contains(function);
        let served = if active { state.endpoints.get(function).cloned() } else { None };
        served.unwrap_or_default()
    }

    async fn revision_endpoints(
        &self,
        function: &FunctionRef,
        revision: Revision,
    ) -> Result<Arc<[Endpoint]>, BackendError> {
        let active = self.status(function).and_then(|status| status.active_revision);
        if active.as_deref() == Some(&revision.name) {
            return Ok(self.endpoints(function));
        }
        let earlier = self.state().earlier.get(&(function.clone(), revision.name)).cloned();
        earlier.ok_or_else(|| BackendError::Conflict("the handler of that revision does not load".to_owned()))
    }

    fn supervisors(&self, function: &FunctionRef) -> Vec<Endpoint> {
        let state = self.state();
        let earlier = state.earlier.iter().filter(|((f, _), _)| f == function).map(|(_, list)| list);
        earlier.chain(state.endpoints.get(function)).flat_map(|list| list.iter().cloned()).collect()
    }

    async fn wake(&self, function: &FunctionRef) -> Result<bool, BackendError> {
        let mut state = self.state();
        *state.woken.entry(function.clone()).or_default() += 1;
        Ok(state.asleep.contains(function))
    }

    async fn awake(&self, function: &FunctionRef) {
        let mut changes = self.served.subscribe();
        while self.endpoints(function).is_empty() && changes.recv().await.is_ok() {}
    }

    fn proxy_token(&self, _: &FunctionRef) -> Secret {
        Secret::new("proxy-token")
    }

    async fn platform_identity(&self, token: &str) -> Result<Option<Identity>, BackendError> {
        if token == Self::CONTROLLER_TOKEN {
            return Ok(Some(Identity::Controller));
        }
        let known = self.state().functions.keys().find(|f| Self::report_token(f) == token).cloned();
        Ok(known.map(Identity::Function))
    }

    fn build(&self, function: &FunctionRef) -> Option<BuildStatus> {
        self.state().functions.get(function).map(|f| f.build.clone())
    }

    async fn build_log(
        &self,
        _: &FunctionRef,
        build: &str,
        from: usize,
    ) -> Result<Option<Vec<LogLine>>, BackendError> {
        let lines = self.state().logs.get(build).cloned();
        Ok(lines.map(|lines| lines.into_iter().skip(from).collect()))
    }

    async fn shutdown(&self) {}
}
