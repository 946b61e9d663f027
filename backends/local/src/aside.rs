//! Supervisors beside the one that answers: of earlier revisions, for single calls; and the list of all that run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sless_backend::{BackendError, Endpoint, FunctionRef, Revision};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::builds;
use crate::instance::End;
use crate::keeper::{Keeper, State};
use crate::state::Shared;

/// A supervisor of an earlier revision ends when nobody has called it for so long.
const IDLE: Duration = Duration::from_secs(10);
/// Between looks whether somebody does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// All supervisors that run, by function.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<HashMap<FunctionRef, Vec<Endpoint>>>);

/// A supervisor is in the list for as long as this lives.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    running: &'a Running,
    function: &'a FunctionRef,
    endpoint: Endpoint,
}

impl Running {
    fn all(&self) -> MutexGuard<'_, HashMap<FunctionRef, Vec<Endpoint>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list<'a>(&'a self, function: &'a FunctionRef, endpoint: Endpoint) -> Listed<'a> {
        self.all().entry(function.clone()).or_default().push(endpoint.clone());
        Listed { running: self, function, endpoint }
    }

    pub(crate) fn of(&self, function: &FunctionRef) -> Vec<Endpoint> {
        self.all().get(function).cloned().unwrap_or_default()
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut all = self.running.all();
        if let Some(list) = all.get_mut(self.function) {
            list.retain(|endpoint| *endpoint != self.endpoint);
            if list.is_empty() {
                all.remove(self.function);
            }
        }
    }
}

/// What has come of a start; `None` until that is known.
type Start = Option<Result<Arc<[Endpoint]>, String>>;

#[derive(Debug)]
struct Aside {
    start: watch::Receiver<Start>,
    end: watch::Sender<bool>,
    task: JoinHandle<()>,
}

type ByRevision = HashMap<(FunctionRef, String), Aside>;

/// The supervisors of earlier revisions.
#[derive(Debug, Default)]
pub(crate) struct Asides(Mutex<ByRevision>);

impl Asides {
    fn all(&self) -> MutexGuard<'_, ByRevision> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends those of a function; returns when they are gone.
    pub(crate) async fn end(&self, function: &FunctionRef) {
        let ended: Vec<Aside> = {
            let mut all = self.all();
            let keys: Vec<_> = all.keys().filter(|(f, _)| f == function).cloned().collect();
            keys.iter().filter_map(|key| all.remove(key)).collect()
        };
        for aside in &ended {
            aside.end.send_replace(true);
        }
        for aside in ended {
            // A task that panicked has ended too.
            let _ = aside.task.await;
        }
    }
}

/// See [`sless_backend::Backend::revision_endpoints`].
pub(crate) async fn endpoints(
    shared: &Arc<Shared>,
    function: &FunctionRef,
    revision: Revision,
) -> Result<Arc<[Endpoint]>, BackendError> {
    let active = shared.status(function).and_then(|status| status.active_revision);
    if active.as_deref() == Some(&revision.name) {
        let answering = shared.endpoints_of(function);
        if !answering.is_empty() {
            return Ok(answering);
        }
    }
    let mut start = {
        let mut all = shared.asides.all();
        if shared.is_stopped() {
            let action = format!("start an earlier revision of {function} while the host ends");
            return Err(BackendError::Unavailable { action, source: "the host is shutting down".into() });
        }
        let key = (function.clone(), revision.name.clone());
        let aside = match all.get(&key) {
            Some(aside) => aside,
            None => {
                let started = start_one(shared, function, revision)?;
                all.entry(key).or_insert(started)
            }
        };
        // Under the lock, so that one whose time is up is not given out.
        if let Some(Ok(list)) = &*aside.start.borrow() {
            return Ok(list.clone());
        }
        aside.start.clone()
    };
    let gone = || BackendError::Unavailable {
        action: format!("start an earlier revision of {function}"),
        source: "it was ended meanwhile".into(),
    };
    let known = start.wait_for(Option::is_some).await.map_err(|_| gone())?;
    match &*known {
        Some(Ok(list)) => Ok(list.clone()),
        Some(Err(why)) => Err(BackendError::Conflict(why.clone())),
        None => Err(gone()),
    }
}

fn start_one(
    shared: &Arc<Shared>,
    function: &FunctionRef,
    revision: Revision,
) -> Result<Aside, BackendError> {
    let built = builds::of(&shared.layout, function, &revision.code.content_sha256);
    let code = built.and_then(|record| record.code(&shared.layout, function)).ok_or_else(|| {
        let name = &revision.name;
        BackendError::Conflict(format!(
            "revision {name} has no built code here; roll back to it to have it built"
        ))
    })?;
    let (told, start) = watch::channel(None);
    let (end, ended) = watch::channel(false);
    let key = (function.clone(), revision.name.clone());
    let keeper = Keeper::start(shared.clone(), function.clone(), revision, code);
    let task = tokio::spawn(run(shared.clone(), key, keeper, told, ended));
    Ok(Aside { start, end, task })
}

async fn run(
    shared: Arc<Shared>,
    key: (FunctionRef, String),
    mut keeper: Keeper,
    told: watch::Sender<Start>,
    mut ended: watch::Receiver<bool>,
) {
    let mut used = Instant::now();
    loop {
        tokio::select! {
            // An error means that the list of them is gone, and so is the host.
            _ = ended.wait_for(|end| *end) => break,
            state = keeper.changed() => match state {
                State::Starting => {}
                State::Ready(endpoint) => {
                    used = Instant::now();
                    told.send_replace(Some(Ok(Arc::new([endpoint]))));
                }
                State::Failing(why) => {
                    shared.asides.all().remove(&key);
                    told.send_replace(Some(Err(why)));
                    break;
                }
            },
            () = sleep(LOOK_EVERY) => {
                let mut all = shared.asides.all();
                // One count is that of the list itself.
                let free = matches!(&*told.borrow(), Some(Ok(list)) if Arc::strong_count(list) == 1);
                if !free {
                    used = Instant::now();
                } else if used.elapsed() > IDLE {
                    all.remove(&key);
                    break;
                }
            }
        }
    }
    keeper.end(End::Drain).await;
}
