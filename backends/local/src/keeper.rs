//! Keeps a supervisor of one revision running: starts it, watches it, starts it again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sless_backend::{Endpoint, FunctionRef, Revision};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::Shared;
use crate::admin::{self, Readiness};
use crate::builds::InUse;
use crate::instance::{End, Instance};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A supervisor that has run so long begins its pauses anew.
const STEADY: Duration = Duration::from_secs(60);
/// How often the size of its output is looked at.
const ROTATION: Duration = Duration::from_secs(1);

/// How the revision fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    /// Takes calls.
    Ready(Endpoint),
    /// Takes none, and why; it is tried again all the same.
    Failing(String),
}

#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) revision: Revision,
    state: watch::Receiver<State>,
    end: oneshot::Sender<End>,
    task: JoinHandle<()>,
}

impl Keeper {
    pub(crate) fn start(
        shared: Arc<Shared>,
        function: FunctionRef,
        revision: Revision,
        code: PathBuf,
    ) -> Self {
        let (states, state) = watch::channel(State::Starting);
        let (end, ended) = oneshot::channel();
        let held = InUse::hold(&shared, &code);
        let keep = keep(shared, function, revision.clone(), code, states, ended);
        let task = tokio::spawn(async move {
            keep.await;
            drop(held);
        });
        Self { revision, state, end, task }
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits for the next state.
    ///
    /// # Cancel safety
    /// Loses none but those that a later one has replaced.
    pub(crate) async fn changed(&mut self) -> State {
        // The task ends only when it is told to, and then nobody asks any more.
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.state.borrow_and_update().clone()
    }

    /// Ends the supervisor; returns when it is gone.
    pub(crate) async fn end(self, how: End) {
        // An error here means that the task is over, which is what is wanted.
        let _ = self.end.send(how);
        let _ = self.task.await;
    }
}

async fn keep(
    shared: Arc<Shared>,
    function: FunctionRef,
    revision: Revision,
    code: PathBuf,
    states: watch::Sender<State>,
    mut ended: oneshot::Receiver<End>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let why = match Instance::start(&shared, &function, &revision, &code) {
            Err(e) => format!("start {}: {e}", shared.config.supervisor.display()),
            Ok(mut instance) => {
                let _listed = shared.running.list(&function, instance.endpoint());
                tokio::select! {
                    why = run(&shared, &mut instance, &states) => {
                        // A refusal to remove a socket leaves a file behind, and nothing else.
                        let _ = instance.remove_sockets();
                        why
                    }
                    how = &mut ended => {
                        if let Err(error) = instance.end(how.unwrap_or(End::Now)).await {
                            tracing::error!(%function, %error, "end a supervisor of {function}");
                        }
                        return;
                    }
                }
            }
        };
        tracing::warn!(%function, revision = revision.name, "supervisor of {function} is down: {why}");
        states.send_replace(State::Failing(why));
        pause = if began.elapsed() > STEADY { FIRST_PAUSE } else { pause };
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut ended => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Watches a supervisor until it exits, and says why it did.
async fn run(shared: &Shared, instance: &mut Instance, states: &watch::Sender<State>) -> String {
    let endpoint = instance.endpoint();
    let admin = instance.admin().to_owned();
    let mut ready = false;
    let mut polls = 0u32;
    loop {
        let pause = match (ready, polls) {
            (true, _) => ROTATION,
            (false, 0..50) => Duration::from_millis(3),
            (false, 50..200) => Duration::from_millis(20),
            (false, _) => Duration::from_millis(250),
        };
        tokio::select! {
            exit = instance.exited() => {
                let how = exit.map_or_else(|e| e.to_string(), |status| status.to_string());
                let words = instance.last_words();
                return if words.is_empty() { how } else { format!("{how}: {words}") };
            }
            () = sleep(pause) => {}
        }
        if ready {
            if let Err(error) = instance.rotate() {
                tracing::warn!(%error, "shorten a supervisor's output");
            }
            continue;
        }
        polls = polls.saturating_add(1);
        // Refused: it does not listen yet.
        let state = match admin::readiness(&admin, &shared.proxy_token).await {
            Ok(Readiness::Ready) => State::Ready(endpoint.clone()),
            Ok(Readiness::InitFailed(why)) => State::Failing(why),
            Ok(Readiness::NotReady) | Err(_) => continue,
        };
        ready = matches!(state, State::Ready(_));
        states.send_if_modified(|now| {
            let new = *now != state;
            *now = state;
            new
        });
    }
}
