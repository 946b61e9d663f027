//! Calls that wait: for a supervisor of a function that slept, or for another one than those that have refused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sless_backend::{Backend, Endpoint, FunctionRef};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pool;
use crate::problem::Problem;

/// So long a call waits for its function to wake, and so many do at once: each holds a connection and what it has sent.
const WAKES_WITHIN: Duration = Duration::from_secs(60);
const HELD_MAX: usize = 1000;
/// Who waits says again that he does.
const WAKE_EVERY: Duration = Duration::from_secs(5);
/// How often all endpoints are asked in turn before the caller hears that nobody takes the call.
const ROUNDS: usize = 4;

pub(super) fn not_ready(function: &FunctionRef) -> Problem {
    Problem::not_ready(format!("function {:?} has no revision that can answer yet", function.name.as_str()))
}

/// The calls that wait for a supervisor to show up.
#[derive(Debug)]
pub(super) struct Held {
    count: AtomicUsize,
    draining: CancellationToken,
}

/// One of them, for as long as this lives.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Held {
    pub(super) fn new(draining: CancellationToken) -> Self {
        Self { count: AtomicUsize::new(0), draining }
    }

    fn enter(&self) -> Option<Place<'_>> {
        let place = Place(&self.count);
        (self.count.fetch_add(1, Ordering::Relaxed) < HELD_MAX).then_some(place)
    }

    /// Wakes the function and returns once it has an endpoint, within `patience` at most.
    ///
    /// # Errors
    /// `NotReady` if none is to be expected, not in time, or too many wait already.
    pub(super) async fn until_awake(
        &self,
        backend: &dyn Backend,
        function: &FunctionRef,
        began: Instant,
        patience: Option<Duration>,
    ) -> Result<(), Problem> {
        let within = patience.unwrap_or(WAKES_WITHIN).min(WAKES_WITHIN);
        let mut place = None;
        loop {
            match backend.wake(function).await {
                Ok(true) => {}
                Ok(false) => return Err(not_ready(function)),
                Err(error) => {
                    tracing::warn!(function = %function, error = %crate::problem::chain(&error), "failed to wake a function");
                    return Err(not_ready(function));
                }
            }
            if place.is_none() {
                place =
                    Some(self.enter().ok_or_else(|| {
                        Problem::not_ready("too many calls wait for their functions to start")
                    })?);
            }
            tokio::select! {
                () = backend.awake(function) => return Ok(()),
                () = self.draining.cancelled() => return Err(not_ready(function)),
                () = sleep_until(began + within) => {
                    return Err(Problem::not_ready(format!(
                        "function {:?} has not started within {} s",
                        function.name.as_str(),
                        within.as_secs()
                    )));
                }
                () = sleep(WAKE_EVERY) => {}
            }
        }
    }
}

/// How far a call has come that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Tries {
    pub(super) began: Instant,
    /// Those that have refused it in this round.
    pub(super) refused: Vec<Endpoint>,
    round: usize,
    /// Why the last one has.
    pub(super) last: Option<String>,
}

impl Default for Tries {
    fn default() -> Self {
        Self { began: Instant::now(), refused: Vec::new(), round: 0, last: None }
    }
}

impl Tries {
    pub(super) fn refused_by(&mut self, endpoint: &Endpoint, why: String) {
        self.refused.push(endpoint.clone());
        self.last = Some(why);
    }

    /// Whether the answer of who refuses it now is the caller's.
    pub(super) fn is_last(&self) -> bool {
        self.round + 1 >= ROUNDS
    }

    /// After a pause all may be asked once more; whether that is not too often.
    pub(super) async fn begin_anew(&mut self) -> bool {
        self.refused.clear();
        sleep(pool::pause(self.round)).await;
        self.round += 1;
        self.round < ROUNDS
    }
}
