//! Calls that the API sends by itself: from the moment at which they are noted until a supervisor has them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use sless_backend::{BackendError, FunctionRef, Revision};
use sless_protocol::event::Status;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::app::App;
use crate::problem::{Problem, chain};
use crate::proxy::{Detached, Sent};
use crate::store::{Attempt, Batch, Finished, Queued};
use sless_backend::Moment;

/// So long somebody is looked for who takes the call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Those that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    tasks: TaskTracker,
    /// Those that nobody has taken yet.
    waiting: Mutex<HashMap<Uuid, CancellationToken>>,
}

impl Runs {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Uuid, CancellationToken>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels one that nobody has taken yet; whether there was one.
    pub(crate) fn cancel(&self, id: Uuid) -> bool {
        let waiting = self.waiting().remove(&id);
        if let Some(token) = &waiting {
            token.cancel();
        }
        waiting.is_some()
    }

    /// Returns once none is left; those that wait give up when the host stops.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Notes the call and sends it; returns as soon as it is noted. `revision`: not to the one that answers, but to this one.
pub(crate) async fn start(
    app: &Arc<App>,
    function: FunctionRef,
    what: Detached,
    queued: Queued,
    revision: Option<Revision>,
) -> Result<(), Problem> {
    app.records.queue(&function, &queued).await?;
    let cancelled = CancellationToken::new();
    app.runs.waiting().insert(what.id, cancelled.clone());
    let task = run(app.clone(), function, what, revision, cancelled);
    app.runs.tasks.spawn(task);
    Ok(())
}

async fn run(
    app: Arc<App>,
    function: FunctionRef,
    what: Detached,
    revision: Option<Revision>,
    cancelled: CancellationToken,
) {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let (status, kind, why) = loop {
        let endpoints = match &revision {
            // Here and not on its way to a supervisor, so that it can be cancelled while it waits for one.
            None => tokio::select! {
                () = cancelled.cancelled() => break cancelled_one(),
                awake = app.proxy.until_awake(&function) => awake.map(|()| None),
            },
            Some(revision) => tokio::select! {
                () = cancelled.cancelled() => break cancelled_one(),
                found = app.backend.revision_endpoints(&function, revision.clone()) => match found {
                    Ok(found) => Ok(Some(found)),
                    Err(BackendError::Conflict(why)) => break (Status::Lost, "NotTaken", why),
                    Err(error) => Err(error.into()),
                },
            },
        };
        let sent = match endpoints {
            Err(problem) => Sent::Busy(problem.detail),
            Ok(endpoints) => {
                // From here on it is the supervisor's to cancel.
                if app.runs.waiting().remove(&what.id).is_none() {
                    break cancelled_one();
                }
                app.proxy.send(&function, &what, endpoints.as_ref()).await
            }
        };
        let why = match sent {
            Sent::Taken => return,
            Sent::Refused(why) => break (Status::Lost, "NotTaken", why),
            Sent::Busy(why) => why,
        };
        if began.elapsed() > PATIENCE || app.is_draining() {
            break (Status::Lost, "NotTaken", why);
        }
        app.runs.waiting().insert(what.id, cancelled.clone());
        tokio::select! {
            () = cancelled.cancelled() => break cancelled_one(),
            () = app.draining.cancelled() => {}
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    app.runs.waiting().remove(&what.id);
    end(&app, function, what.id, status, kind, &why).await;
}

fn cancelled_one() -> (Status, &'static str, String) {
    (Status::Cancelled, "Cancelled", "cancelled before a supervisor had taken it".to_owned())
}

/// Notes how a call ended that no supervisor has seen. The record of one that has goes before it where it is `lost`.
async fn end(app: &App, function: FunctionRef, id: Uuid, status: Status, kind: &str, why: &str) {
    let at = Moment::now();
    let finished = Finished {
        at,
        status: status.as_str(),
        http_status: None,
        duration_ms: 0.0,
        queue_ms: None,
        init_ms: None,
        cpu_ms: None,
        max_rss_bytes: None,
        log_bytes: 0,
        log_dropped_bytes: 0,
        result: None,
        error: Some(json!({"type": kind, "message": why, "traceback": null}).to_string()),
    };
    let attempt = Attempt { id, attempt: 1, started: None, finished: Some(finished), seen_at: at };
    let batch = Batch { attempts: vec![attempt], logs: Vec::new() };
    if let Err(error) = app.records.store_events(HashMap::from([(function, batch)])).await {
        // Left as it is, it is found among those that never end.
        tracing::warn!(invocation = %id, error = %chain(&error), "failed to note the end of a call");
    }
}
