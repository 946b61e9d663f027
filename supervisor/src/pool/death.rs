//! How workers end: at a call's limit, by a cancel, by themselves, or when they are no longer wanted.
//!
//! A caller never waits for any of this. At a limit the order is: answer, provisional record, successor, stack,
//! SIGTERM, SIGKILL at limit + grace, record.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{Shutdown, shutdown};
use sless_protocol::event::Status;
use sless_protocol::handshake::Raised;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Pool;
use super::outcome::{self, Ending};
use super::outlet::SharedRecord;
use super::slot::OpenCall;
use super::worker::{Life, Worker};
use crate::call::Answer;
use crate::failure::Failure;
use crate::process::{Ending as Fate, Exit};

/// A family that has been sent SIGKILL is gone in a moment; longer means that the kernel holds it.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// What a handler prints on SIGTERM is in the record if it comes within this time.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Why a running call is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Timeout,
    Cancelled,
}

/// Why the supervisor has killed a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    /// It, or its code, did not become ready.
    InitFailed,
    /// It sent what no worker may send.
    Protocol,
    /// It was the largest when memory ran short.
    Memory,
    /// A call of its was ended.
    Doomed,
    /// It is not needed any more.
    Retired,
}

/// A call that is answered already, while its worker still has to die.
#[derive(Debug)]
pub(super) struct Doomed {
    index: usize,
    number: u32,
    pub(super) record: SharedRecord,
    status: Status,
    at: Instant,
    asked: bool,
    /// What its record still needs; `None` once that is written.
    parts: Option<Parts>,
}

type Parts = (OpenCall, Ending, Duration, Duration);

impl Doomed {
    fn take(&mut self) -> Option<Parts> {
        self.parts.take()
    }

    pub(super) fn is(&self, index: usize, number: u32) -> bool {
        self.index == index && self.number == number
    }
}

/// Ends the running call of a slot now, and its worker with it.
pub(super) fn condemn(pool: &Rc<Pool>, worker: &Rc<Worker>, index: usize, reason: Reason) {
    let Some(slot) = worker.slots.get(index) else { return };
    let Some(mut open) = slot.state.borrow_mut().open.pop_front() else { return };
    let now = Instant::now();
    let begun = open.begun.unwrap_or(now);
    let (duration, queue) = (now - begun, begun.saturating_duration_since(open.call.arrived));
    let failure = match reason {
        Reason::Timeout => Failure::Timeout { limit: open.call.request.limit },
        Reason::Cancelled => Failure::Cancelled,
    };
    let mut ending =
        Ending { cost: Some(worker.cost_of_the_rest()), ..Ending::failed(failure.clone(), None) };
    let cut = open.stream.take();
    if let Some(stream) = &cut {
        ending.http_status = stream.http_status;
    }
    *slot.stalled.borrow_mut() = None;
    let init = worker.init.get();
    if let Some(record) = open.record.borrow_mut().as_mut() {
        outcome::with_info(failure.status(), &ending, duration, queue, init, |info| record.provisional(info));
    }
    drop(cut);
    let ending_status = failure.status();
    open.call.answer(Answer::Failed(failure));
    worker.life.set(Life::Condemned);
    super::slot::begin_front(&mut slot.state.borrow_mut(), now);
    let first = worker.doomed.borrow().is_empty();
    let (number, record, status) = (open.number, open.record.clone(), ending_status);
    worker.doomed.borrow_mut().push(Doomed {
        index,
        number,
        record,
        status,
        at: now,
        asked: false,
        parts: Some((open, ending, duration, queue)),
    });
    worker.emptied.notify_waiters();
    pool.keep_up();
    if first {
        tokio::task::spawn_local(put_to_death(pool.clone(), worker.clone()));
    }
}

async fn put_to_death(pool: Rc<Pool>, worker: Rc<Worker>) {
    let grace = pool.config.kill_grace;
    let last = loop {
        let emptied = worker.emptied.notified();
        tokio::pin!(emptied);
        emptied.as_mut().enable();
        ask_stacks(&pool, &worker).await;
        let all_asked = worker.doomed.borrow().iter().all(|d| d.asked);
        let last = worker.doomed.borrow().iter().map(|d| d.at).max().unwrap_or_else(Instant::now);
        if worker.exit.borrow().is_some() || (all_asked && worker.open_calls() == 0) {
            // The grace begins at the limit; in a shared worker when its other calls are through.
            break if worker.slots.len() > 1 { Instant::now() } else { last };
        }
        if all_asked {
            tokio::select! {
                () = emptied => {}
                _ = worker.family.exited() => {}
            }
        }
    };
    worker.killed.set(worker.killed.get().or(Some(Kill::Doomed)));
    worker.family.terminate();
    // A handler that cleans up may say so in its log; the record does not wait longer for it.
    drop(timeout_at((Instant::now() + LAST_WORDS).min(last + grace), worker.family.exited()).await);
    worker.pairs.drain();
    // Emptied only at the end: until then it tells that these calls are over.
    let count = worker.doomed.borrow().len();
    for n in 0..count {
        let parts = worker.doomed.borrow_mut().get_mut(n).and_then(Doomed::take);
        if let Some((mut open, ending, duration, queue)) = parts {
            outcome::record(&pool, &worker, &mut open, ending, duration, queue);
        }
    }
    drop(timeout_at(last + grace, worker.family.gone()).await);
    worker.family.kill();
    if timeout(GONE_LIMIT, worker.family.exited()).await.is_err() {
        tracing::error!(worker.pid = worker.family.worker_pid(), "worker does not die of SIGKILL");
    }
}

/// Asks once for each ended call where its handler is. Part of the grace: at most half of it, and half a second.
async fn ask_stacks(pool: &Rc<Pool>, worker: &Rc<Worker>) {
    let share = (pool.config.kill_grace / 2).min(Duration::from_millis(500));
    let runtime_dir = pool.config.runtime.dir.to_string_lossy();
    loop {
        let next = worker.doomed.borrow().iter().position(|d| !d.asked);
        let Some(next) = next else { return };
        let exited = worker.exit.borrow().is_some();
        let stack = if exited { None } else { worker.stack.ask(Instant::now() + share, &runtime_dir).await };
        if let Some(call) = worker.doomed.borrow_mut().get_mut(next) {
            call.asked = true;
            if let Some((_, ending, ..)) = &mut call.parts {
                ending.traceback = stack;
            }
        }
    }
}

/// No new call; when the last one has ended, the sockets end, and the worker with them.
pub(super) fn retire(worker: &Rc<Worker>) {
    if !matches!(worker.life.get(), Life::Ready | Life::Starting) {
        return;
    }
    worker.life.set(Life::Condemned);
    let Some(pool) = worker.pool.upgrade() else { return };
    pool.put_back((0..worker.slots.len()).flat_map(|index| worker.revoke_waiting(index)).collect());
    pool.keep_up();
    let worker = worker.clone();
    tokio::task::spawn_local(async move {
        loop {
            let emptied = worker.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if worker.open_calls() == 0 || worker.exit.borrow().is_some() {
                break;
            }
            tokio::select! {
                () = emptied => {}
                _ = worker.family.exited() => {}
            }
        }
        if !worker.doomed.borrow().is_empty() {
            return;
        }
        worker.killed.set(worker.killed.get().or(Some(Kill::Retired)));
        for slot in &worker.slots {
            let socket: &tokio::net::UnixStream = slot.writer.as_ref();
            let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd()), Shutdown::Write);
        }
        let grace = pool.config.kill_grace;
        if timeout(grace, worker.family.exited()).await.is_err() {
            worker.family.terminate();
            drop(timeout(grace, worker.family.exited()).await);
        }
        worker.family.kill();
    });
}

/// SIGKILL to all of the worker's family, now.
pub(super) fn kill(worker: &Worker, why: Kill) {
    worker.killed.set(worker.killed.get().or(Some(why)));
    if matches!(worker.life.get(), Life::Ready | Life::Starting) {
        worker.life.set(Life::Condemned);
    }
    worker.family.kill();
}

/// Waits for the end of the worker process, whatever brings it about.
pub(super) async fn watch_exit(worker: Rc<Worker>, drivers: Vec<JoinHandle<()>>) {
    let exit = worker.family.exited().await;
    let before = worker.life.replace(Life::Condemned);
    *worker.exit.borrow_mut() = Some(exit.clone());
    if let Some(pool) = worker.pool.upgrade() {
        pool.worker_died(&worker, before, &exit);
    }
    for slot in &worker.slots {
        slot.changed.notify_one();
    }
    for driver in drivers {
        drop(driver.await);
    }
    // Leftovers die with their worker; those of an ended call have the rest of the grace.
    if worker.doomed.borrow().is_empty() {
        worker.family.kill();
    }
    let limit = GONE_LIMIT + worker.pool.upgrade().map_or(Duration::ZERO, |p| p.config.kill_grace);
    while timeout(limit, worker.family.gone()).await.is_err() {
        tracing::error!(
            worker.pid = worker.family.worker_pid(),
            "descendants of a worker do not die of SIGKILL"
        );
    }
    worker.life.set(Life::Gone);
    if let Some(pool) = worker.pool.upgrade() {
        pool.remove(&worker);
    }
}

/// The end of init's time.
pub(super) async fn watch_init(worker: Rc<Worker>) {
    let Some(pool) = worker.pool.upgrade() else { return };
    let limit = pool.config.init_timeout;
    tokio::select! {
        () = sleep(limit) => {}
        _ = worker.family.exited() => return,
    }
    if worker.life.get() != Life::Starting {
        return;
    }
    let share = (pool.config.kill_grace / 2).min(Duration::from_millis(500));
    let runtime_dir = pool.config.runtime.dir.to_string_lossy().into_owned();
    let traceback = worker.stack.ask(Instant::now() + share, &runtime_dir).await;
    if worker.life.get() != Life::Starting {
        return;
    }
    let message = format!("the code did not load within {} s", limit.as_secs_f64());
    pool.init_failed(&worker, Raised { kind: "InitTimeout".to_owned(), message, traceback });
    worker.killed.set(Some(Kill::InitFailed));
    worker.life.set(Life::Condemned);
    worker.family.terminate();
    drop(timeout(pool.config.kill_grace.saturating_sub(share), worker.family.gone()).await);
    worker.family.kill();
}

/// A slot of a dead worker: calls that it had not begun go to another, the others have ended with it.
pub(super) fn slot_over(worker: &Rc<Worker>, index: usize) {
    let Some(pool) = worker.pool.upgrade() else { return };
    let (begun, fresh) = worker.take_open(index);
    pool.put_back(fresh);
    for open in begun {
        let failure = {
            let exit = worker.exit.borrow();
            exit.as_ref().map(|exit| pool.how_it_died(worker, exit))
        };
        let failure = failure.unwrap_or(Failure::WorkerExited { how: "the worker ended".to_owned() });
        outcome::lost_worker(&pool, worker, index, open, failure);
    }
    worker.emptied.notify_waiters();
    pool.pump();
}

/// What the exit of a worker means for the calls that it had.
pub(super) fn describe(exit: &Exit, killed: Option<Kill>, memory: Option<String>) -> Failure {
    if let Some(how) = memory {
        return Failure::OutOfMemory { how };
    }
    let how = match (&exit.ending, killed) {
        (_, Some(Kill::Protocol)) => "the worker broke the worker protocol and was killed".to_owned(),
        (Fate::Exited { code }, _) => format!("the worker exited with code {code} during the invocation"),
        (Fate::Signaled { signal }, _) => {
            let name =
                Signal::try_from(*signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string());
            format!("the worker was killed by {name} during the invocation")
        }
        (Fate::NotStarted(why), _) => format!("the worker could not be started: {why}"),
    };
    Failure::WorkerExited { how }
}

/// The word for a worker's end in metrics.
pub(super) fn exit_reason(
    exit: &Exit,
    killed: Option<Kill>,
    failure: &Failure,
    doomed: Option<Status>,
) -> &'static str {
    match (killed, failure, doomed) {
        (_, Failure::OutOfMemory { .. }, _) => "out_of_memory",
        (_, _, Some(status)) => status.as_str(),
        (Some(Kill::InitFailed), ..) => "init_failed",
        (Some(Kill::Retired), ..) => "retired",
        (Some(Kill::Protocol), ..) => "protocol",
        _ if matches!(exit.ending, Fate::Exited { code: 0 }) => "exited",
        _ => "crashed",
    }
}

impl Worker {
    /// Status of the calls that were ended in this worker.
    pub(super) fn doomed_status(&self) -> Option<Status> {
        self.doomed.borrow().first().map(|d| d.status)
    }
}
