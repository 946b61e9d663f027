//! The workers of one function, and the calls that wait for one.
//!
//! All of it runs on one thread: state lives in `RefCell`s that are never held across an `await`.

mod backoff;
mod death;
mod outcome;
mod outlet;
mod pairs;
mod slot;
mod stack;
mod trouble;
mod worker;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use sless_protocol::handshake::Raised;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::call::{Answer, Call, Request};
use crate::config::Config;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::process::{self, Cage, Reaper, memory::Cgroup};
use crate::report::{OpenRecord, Reporter, StartedInfo};
use death::{Kill, Reason};
use trouble::{Broken, init_failure};
use worker::{Life, PATIENCE, Worker};

/// Workers beyond the least number end when they have been idle for so long.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// After large bodies their memory goes back within this time; without them every [`HOUSEKEEPING`] such times.
const TRIM: Duration = Duration::from_millis(500);
const HOUSEKEEPING: u32 = 4;
/// A body of so many bytes is a large one.
const LARGE: usize = 256 << 10;

/// What a pool needs from around it.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Rc<Config>,
    pub(crate) reporter: Rc<Reporter>,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) reaper: Rc<Reaper>,
    pub(crate) cage: Cage,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) longest_secret: usize,
}

#[derive(Debug)]
pub(crate) struct Pool {
    config: Rc<Config>,
    reporter: Rc<Reporter>,
    pub(crate) metrics: Rc<Metrics>,
    reaper: Rc<Reaper>,
    cage: Cage,
    cgroup: Option<Cgroup>,
    longest_secret: usize,
    oom_kills_seen: Cell<u64>,
    queue: RefCell<VecDeque<Box<Call>>>,
    workers: RefCell<Vec<Rc<Worker>>>,
    broken: RefCell<Option<Broken>>,
    ever_ready: Cell<bool>,
    draining: Cell<bool>,
    stopped: Cell<bool>,
    /// Calls that are accepted and whose record is not finished.
    calls: Cell<usize>,
    young_deaths: Cell<u32>,
    /// Large bodies have been here since memory was given back.
    had_large: Cell<bool>,
    quiet: Notify,
}

/// What `/ready` says.
#[derive(Debug, Clone)]
pub(crate) enum Readiness {
    Ready,
    Starting,
    InitFailed(Raised),
    Draining,
}

impl Pool {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        let Parts { config, reporter, metrics, reaper, cage, cgroup, longest_secret } = parts;
        Rc::new(Self {
            oom_kills_seen: Cell::new(cgroup.as_ref().map_or(0, Cgroup::oom_kills)),
            config,
            reporter,
            metrics,
            reaper,
            cage,
            cgroup,
            longest_secret,
            queue: RefCell::default(),
            workers: RefCell::default(),
            broken: RefCell::default(),
            ever_ready: Cell::new(false),
            draining: Cell::new(false),
            stopped: Cell::new(false),
            calls: Cell::new(0),
            young_deaths: Cell::new(0),
            had_large: Cell::new(false),
            quiet: Notify::new(),
        })
    }

    /// Starts the first workers. One is started even if none is to be kept, to see whether the code loads.
    pub(crate) fn start(self: &Rc<Self>) {
        for _ in 0..self.config.min_workers.max(1) {
            self.start_worker();
        }
        let pool = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let mut lost_keepers = 0;
            for round in 0_u32.. {
                tokio::time::sleep(TRIM).await;
                let Some(pool) = pool.upgrade() else { return };
                let housekeeping = round % HOUSEKEEPING == 0;
                if housekeeping || pool.had_large.take() {
                    process::give_back_memory();
                }
                if !housekeeping {
                    continue;
                }
                pool.shrink();
                if pool.calls.get() > 0 {
                    pool.reporter.touch();
                }
                let lost = pool.reaper.lost_keepers();
                if lost > lost_keepers {
                    tracing::warn!(lost_keepers = lost, "keepers did not end by themselves");
                    lost_keepers = lost;
                }
            }
        });
    }

    pub(crate) fn readiness(&self) -> Readiness {
        if self.draining.get() {
            return Readiness::Draining;
        }
        if let Some(broken) = &*self.broken.borrow()
            && !self.has_ready()
        {
            return Readiness::InitFailed(broken.raised.clone());
        }
        if self.ever_ready.get() { Readiness::Ready } else { Readiness::Starting }
    }

    /// Takes a call in: runs it, lets it wait, or answers it at once.
    pub(crate) fn submit(self: &Rc<Self>, request: Request) -> oneshot::Receiver<Answer> {
        let now = Instant::now();
        self.note_size(request.body.len());
        let (mut call, receiver) = Call::new(request, now);
        if self.draining.get() {
            self.reject(call, Failure::Draining);
            return receiver;
        }
        let known_broken = match &*self.broken.borrow() {
            Some(broken) if !self.has_ready() && !self.is_starting() && now < broken.until => {
                Some(broken.raised.clone())
            }
            _ => None,
        };
        if let Some(raised) = known_broken {
            self.calls.set(self.calls.get() + 1);
            self.fail_unstarted(call, init_failure(&raised), raised.traceback, None);
            return receiver;
        }
        if self.queue.borrow().is_empty() {
            match self.try_dispatch(call, now) {
                Ok(()) => {
                    self.calls.set(self.calls.get() + 1);
                    self.grow();
                    return receiver;
                }
                Err(back) => call = back,
            }
        }
        let waiting = self.queue.borrow().len()
            + self.workers.borrow().iter().map(|w| w.waiting_calls()).sum::<usize>();
        if waiting >= self.config.queue + self.slots_to_come() {
            self.reject(call, Failure::Overloaded { waiting });
            return receiver;
        }
        self.calls.set(self.calls.get() + 1);
        self.queue.borrow_mut().push_back(call);
        self.grow();
        receiver
    }

    fn note_size(&self, bytes: usize) {
        if bytes >= LARGE {
            self.had_large.set(true);
        }
    }

    fn reject(&self, mut call: Box<Call>, failure: Failure) {
        self.metrics.rejected(&call.request.trigger);
        call.answer(Answer::Failed(failure));
    }

    /// Slots of workers that are starting or may still be started: calls that wait for those do not fill the queue.
    fn slots_to_come(&self) -> usize {
        let workers = self.workers.borrow();
        let ready = workers.iter().filter(|w| w.life.get() == Life::Ready).count();
        self.config.workers.get().saturating_sub(ready) * self.config.concurrency.get()
    }

    fn has_ready(&self) -> bool {
        self.workers.borrow().iter().any(|w| w.life.get() == Life::Ready)
    }

    fn is_starting(&self) -> bool {
        self.workers.borrow().iter().any(|w| w.life.get() == Life::Starting)
    }

    /// Sends a call to the worker that was idle last (its caches are warm), else behind a quick call.
    fn try_dispatch(&self, mut call: Box<Call>, now: Instant) -> Result<(), Box<Call>> {
        let workers = self.workers.borrow();
        let ready = || workers.iter().filter(|w| w.life.get() == Life::Ready);
        let idle = ready()
            .filter_map(|w| w.slots.iter().position(super::pool::slot::Slot::is_idle).map(|index| (w, index)))
            .max_by_key(|(w, _)| w.idle_since.get());
        if let Some((worker, index)) = idle {
            match worker.dispatch(index, call, now) {
                Ok(()) => return Ok(()),
                Err(back) => call = back,
            }
        }
        if self.config.concurrency.get() > 1 || self.config.queue == 0 {
            return Err(call);
        }
        let behind = ready()
            .filter(|w| w.slots.first().is_some_and(|s| s.may_wait(now, PATIENCE)))
            .min_by_key(|w| w.open_calls());
        match behind {
            Some(worker) => worker.dispatch(0, call, now),
            None => Err(call),
        }
    }

    /// Gives waiting calls to whoever can take them, and starts workers for the rest.
    pub(crate) fn pump(self: &Rc<Self>) {
        let now = Instant::now();
        loop {
            let Some(call) = self.queue.borrow_mut().pop_front() else { break };
            if let Err(call) = self.try_dispatch(call, now) {
                self.queue.borrow_mut().push_front(call);
                break;
            }
        }
        self.grow();
    }

    /// Puts calls that no worker has begun back to the head of the queue, in their order.
    fn put_back(&self, calls: Vec<Box<Call>>) {
        let mut queue = self.queue.borrow_mut();
        calls.into_iter().rev().for_each(|call| queue.push_front(call));
    }

    /// Starts workers for what waits, up to the limit.
    fn grow(self: &Rc<Self>) {
        loop {
            let waiting = self.queue.borrow().len()
                + self.workers.borrow().iter().map(|w| w.waiting_calls()).sum::<usize>();
            let (live, starting) = self.count();
            if waiting <= starting * self.config.concurrency.get()
                || live >= self.config.workers.get()
                || !self.start_worker()
            {
                return;
            }
        }
    }

    /// Workers that count, and those of them that start.
    fn count(&self) -> (usize, usize) {
        let workers = self.workers.borrow();
        let starting = workers.iter().filter(|w| w.life.get() == Life::Starting).count();
        let ready = workers.iter().filter(|w| w.life.get() == Life::Ready).count();
        (starting + ready, starting)
    }

    /// Replaces at once what is missing to the least number of workers; then serves what waits.
    fn keep_up(self: &Rc<Self>) {
        while !self.stopped.get() && self.count().0 < self.config.min_workers {
            if !self.start_worker() {
                break;
            }
        }
        self.pump();
    }

    /// `false` if none may be started now.
    fn start_worker(self: &Rc<Self>) -> bool {
        let held = self.broken.borrow().as_ref().is_some_and(|b| Instant::now() < b.until);
        if self.stopped.get() || held {
            return false;
        }
        match Worker::start(self) {
            Ok(worker) => {
                self.workers.borrow_mut().push(worker);
                true
            }
            Err(error) => {
                tracing::error!(%error, "a worker cannot be started");
                let message = format!("a worker cannot be started: {error}");
                self.broke(Raised { kind: "NotStarted".to_owned(), message, traceback: None }, None);
                false
            }
        }
    }

    fn worker_ready(self: &Rc<Self>, worker: &Rc<Worker>, took: Duration) {
        tracing::debug!(
            worker.pid = worker.family.worker_pid(),
            init_ms = took.as_secs_f64() * 1000.0,
            "worker is ready"
        );
        self.metrics.worker_ready(took);
        self.broken.take();
        self.ever_ready.set(true);
        self.pump();
    }

    fn open_record(&self, request: &Request) -> OpenRecord {
        self.reporter.open(&StartedInfo {
            invocation_id: &request.id,
            attempt: request.attempt,
            trigger: &request.trigger,
            method: &request.method,
            path: &request.path,
            raw_query: &request.raw_query,
            headers: &request.headers,
            body: &request.body,
        })
    }

    fn call_over(&self) {
        self.calls.set(self.calls.get().saturating_sub(1));
        if self.calls.get() == 0 {
            self.quiet.notify_waiters();
        }
    }

    fn remove(self: &Rc<Self>, worker: &Rc<Worker>) {
        self.workers.borrow_mut().retain(|w| !Rc::ptr_eq(w, worker));
        self.quiet.notify_waiters();
    }

    /// Memory is nearly used up: the largest worker goes, before the kernel takes somebody.
    pub(crate) fn kill_largest(&self) {
        let workers = self.workers.borrow();
        let alive =
            workers.iter().filter(|w| w.exit.borrow().is_none() && w.killed.get() != Some(Kill::Memory));
        if let Some(worker) = alive.max_by_key(|w| w.family.memory_bytes()) {
            tracing::warn!(
                worker.pid = worker.family.worker_pid(),
                "memory is nearly used up: the largest worker is killed"
            );
            worker.kill(Kill::Memory);
        }
    }

    /// Ends a call by its id, running or waiting; `false` if there is none.
    pub(crate) fn cancel(self: &Rc<Self>, id: &str) -> bool {
        for worker in self.workers.borrow().iter() {
            for (index, slot) in worker.slots.iter().enumerate() {
                let position = slot.state.borrow().open.iter().position(|o| &*o.call.request.id == id);
                if position.is_some_and(|p| p > 0) {
                    self.put_back(worker.revoke_waiting(index));
                }
            }
        }
        let at = self.queue.borrow().iter().position(|c| &*c.request.id == id);
        if let Some(call) = at.and_then(|at| self.queue.borrow_mut().remove(at)) {
            self.fail_unstarted(call, Failure::Cancelled, None, None);
            self.pump();
            return true;
        }
        let workers: Vec<_> = self.workers.borrow().clone();
        for worker in workers {
            for index in 0..worker.slots.len() {
                let front = worker
                    .slots
                    .get(index)
                    .and_then(|s| s.state.borrow().open.front().map(|o| o.call.request.id.clone()));
                if front.is_some_and(|front| &*front == id) {
                    self.put_back(worker.revoke_waiting(index));
                    death::condemn(self, &worker, index, Reason::Cancelled);
                    return true;
                }
            }
        }
        false
    }

    fn shrink(self: &Rc<Self>) {
        let idle: Vec<_> = {
            let workers = self.workers.borrow();
            let idle = |w: &&Rc<Worker>| {
                w.life.get() == Life::Ready
                    && w.open_calls() == 0
                    && w.idle_since.get().elapsed() > IDLE_LIMIT
            };
            workers.iter().filter(idle).cloned().collect()
        };
        let spare = self.count().0.saturating_sub(self.config.min_workers);
        idle.into_iter().take(spare).for_each(|w| w.retire());
    }

    /// No new calls from now on.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
    }

    /// Waits until every accepted call has its finished record.
    pub(crate) async fn calls_done(&self) {
        self.wait_until(|| self.calls.get() == 0).await;
    }

    /// Ends all workers and waits until nothing of them is left.
    pub(crate) async fn stop(self: &Rc<Self>) {
        self.stopped.set(true);
        let workers: Vec<_> = self.workers.borrow().clone();
        workers.iter().for_each(Worker::retire);
        self.wait_until(|| self.workers.borrow().is_empty()).await;
    }

    /// SIGKILL to everything, for a supervisor that is told to go at once.
    pub(crate) fn kill_all(&self) {
        self.stopped.set(true);
        self.workers.borrow().iter().for_each(|w| w.kill(Kill::Retired));
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        loop {
            let quiet = self.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            if condition() {
                return;
            }
            quiet.await;
        }
    }

    /// Figures that are looked up when somebody asks for the metrics.
    pub(crate) fn observe(&self) {
        let workers = self.workers.borrow();
        let running = workers.iter().map(|w| w.open_calls() - w.waiting_calls()).sum();
        let waiting = self.queue.borrow().len() + workers.iter().map(|w| w.waiting_calls()).sum::<usize>();
        let states = |life| workers.iter().filter(|w| w.life.get() == life).count();
        self.metrics.observe_calls(running, waiting);
        self.metrics.observe_workers(states(Life::Starting), states(Life::Ready), states(Life::Condemned));
        let alive = || workers.iter().filter(|w| w.exit.borrow().is_none());
        self.metrics.observe_usage(
            alive().map(|w| w.family.memory_bytes()).sum(),
            alive().map(|w| w.family.cpu_time()).sum(),
        );
        self.metrics.observe_orphans(self.reaper.orphans_reaped());
        self.metrics.observe_reports(&self.reporter);
    }
}
