//! Trouble: code that does not load, workers that die, and what the calls that this concerns are told.

use std::rc::Rc;
use std::time::Duration;

use sless_protocol::handshake::Raised;
use tokio::time::Instant;

use super::death::{self, Kill};
use super::outcome::{self, Ending};
use super::worker::{Life, Worker};
use super::{Pool, backoff};
use crate::call::{Answer, Call};
use crate::failure::Failure;
use crate::process::memory::Cgroup;
use crate::process::{Ending as Fate, Exit};
use crate::report::FinishedInfo;

/// So many workers may die young, without a call, before the next one waits.
const YOUNG_DEATHS: u32 = 3;

/// The code does not load.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    pub(super) raised: Raised,
    failures: u32,
    pub(super) until: Instant,
}

impl Pool {
    /// A worker's code did not load: callers that wait are told, and it is tried again after a while.
    pub(super) fn init_failed(self: &Rc<Self>, worker: &Rc<Worker>, raised: Raised) {
        let traceback = raised.traceback.as_deref().unwrap_or_default();
        tracing::warn!(error.kind = %raised.kind, error.message = %raised.message, error.traceback = traceback, "the code does not load");
        worker.life.set(Life::Condemned);
        worker.pairs.drain();
        self.broke(raised, Some(worker));
    }

    pub(super) fn broke(self: &Rc<Self>, raised: Raised, worker: Option<&Rc<Worker>>) {
        let failures = self.broken.borrow().as_ref().map_or(0, |b| b.failures).saturating_add(1);
        let until = Instant::now() + backoff::after(failures);
        *self.broken.borrow_mut() = Some(Broken { raised: raised.clone(), failures, until });
        if !self.has_ready() && !self.is_starting() {
            let waiting = std::mem::take(&mut *self.queue.borrow_mut());
            for (n, call) in waiting.into_iter().enumerate() {
                let worker = worker.filter(|_| n == 0);
                self.fail_unstarted(call, init_failure(&raised), raised.traceback.clone(), worker);
            }
        }
        if let Some(init) = worker.and_then(|w| w.take_init_log()) {
            self.reporter.print_init(init);
        }
        let pool = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(until).await;
            if let Some(pool) = pool.upgrade() {
                pool.keep_up();
            }
        });
    }

    /// Records and answers a call that no worker has seen.
    pub(super) fn fail_unstarted(
        &self,
        mut call: Box<Call>,
        failure: Failure,
        traceback: Option<String>,
        worker: Option<&Rc<Worker>>,
    ) {
        let mut record = call.record.take().unwrap_or_else(|| self.open_record(&call.request));
        if let Some(init) = worker.and_then(|w| w.take_init_log()) {
            record.init_output(init);
        }
        let queue = call.arrived.elapsed();
        self.metrics.ended(failure.status(), &call.request.trigger, Duration::ZERO, queue);
        let ending = Ending::failed(failure.clone(), traceback);
        outcome::with_info(
            failure.status(),
            &ending,
            Duration::ZERO,
            queue,
            None,
            |info: &FinishedInfo<'_>| record.finish(info),
        );
        call.answer(Answer::Failed(failure));
        self.call_over();
    }

    /// News of a worker's end: its successor starts at once.
    pub(super) fn worker_died(self: &Rc<Self>, worker: &Rc<Worker>, before: Life, exit: &Exit) {
        let failure = self.how_it_died(worker, exit);
        let killed = worker.killed.get();
        self.metrics.worker_exited(death::exit_reason(exit, killed, &failure, worker.doomed_status()), exit);
        // Somebody else's SIGKILL says nothing of the code.
        let murdered = killed.is_none() && exit.ending == Fate::Signaled { signal: libc::SIGKILL };
        let young = before == Life::Starting && murdered
            || before == Life::Ready
                && worker.served.get() == 0
                && worker.started.elapsed() < Duration::from_secs(2);
        if young {
            self.young_deaths.set(self.young_deaths.get() + 1);
            if self.young_deaths.get() > YOUNG_DEATHS {
                let message = format!("{failure}, and so did the ones before it, without a call");
                self.broke(Raised { kind: "WorkerExited".to_owned(), message, traceback: None }, None);
            }
        } else if before == Life::Starting && killed.is_none_or(|k| k == Kill::Memory || k == Kill::Protocol)
        {
            let kind = match exit.ending {
                Fate::NotStarted(_) => "NotStarted",
                _ => failure.kind(),
            };
            let message = failure.to_string().replace("during the invocation", "before it was ready");
            self.init_failed(worker, Raised { kind: kind.to_owned(), message, traceback: None });
        } else {
            self.young_deaths.set(0);
        }
        if !self.draining.get() || self.calls.get() > 0 {
            self.keep_up();
        }
    }

    pub(super) fn how_it_died(&self, worker: &Worker, exit: &Exit) -> Failure {
        let by_kernel = match (&exit.ending, &self.cgroup) {
            (Fate::Signaled { signal }, Some(cgroup)) if *signal == libc::SIGKILL => {
                let kills = cgroup.oom_kills();
                worker.killed.get().is_none() && kills > self.oom_kills_seen.replace(kills)
            }
            _ => false,
        };
        let by_us = worker.killed.get() == Some(Kill::Memory);
        if by_kernel {
            // A second look at the same death must say the same.
            worker.killed.set(Some(Kill::Memory));
        }
        let memory = (by_kernel || by_us).then(|| {
            let limit = self
                .cgroup
                .as_ref()
                .and_then(Cgroup::limit)
                .map_or_else(String::new, |l| format!(" of {} MiB", l >> 20));
            format!(
                "the worker was killed when the memory limit{limit} was reached; its peak was {} MiB",
                exit.max_rss_kib >> 10
            )
        });
        death::describe(exit, worker.killed.get(), memory)
    }
}

pub(super) fn init_failure(raised: &Raised) -> Failure {
    Failure::InitFailed { kind: raised.kind.clone(), message: raised.message.clone() }
}
