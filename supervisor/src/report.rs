//! Records: what happened to each call, told to the API.
//!
//! ```text
//! open(started) ─▶ OpenRecord ── stdout/stderr ─▶ CallLog ─▶ `log` events, console
//!                      │ finish(finished)
//!                      ▼
//!        spool (file or memory) ─▶ one delivery task ─▶ POST, until it is stored
//! ```
//! An event is in the spool's file when the call that makes it returns. Nothing here fails or waits: what has no room is let
//! go in the order that the contract says, and counted.

mod adopt;
mod client;
mod deliver;
mod event;
pub(crate) mod json;
mod resolve;
mod segment;
mod spool;
pub(crate) mod time;
mod tls;

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub use client::{Endpoint, EndpointError};
pub use deliver::Delivered;
pub use event::{ErrorInfo, FinishedInfo, Kept, ResultInfo, StartedInfo, kept};

use crate::console::{Console, Origin};
use crate::logs::{CallLog, InitLog, Line, LogStream, Totals};
use crate::mask::Masks;
use deliver::{Delivery, Shared};
use event::Writer;
use spool::Spool;
use time::now_ms;

/// How long lines wait for others before they are sent and printed.
const BATCH_LINES: Duration = Duration::from_millis(80);
/// A `log` event holds about so much.
const MAX_LOG_EVENT: usize = 64 * 1024;
/// How often folders of other supervisors are looked at: one may still be draining.
const ADOPT_EVERY: Duration = Duration::from_secs(10);

/// What records of this function need.
#[derive(Debug, Clone)]
pub struct ReportConfig {
    pub namespace: String,
    pub function: String,
    pub revision: String,
    pub pod: String,
    /// Without it no records are made; lines are printed all the same.
    pub endpoint: Option<Endpoint>,
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates to trust, in place of the public ones.
    pub ca_file: Option<PathBuf>,
    pub spool_dir: Option<PathBuf>,
    pub spool_limit: u64,
    pub log_limit: usize,
    pub result_limit: usize,
    pub input_limit: usize,
    pub masks: Masks,
}

/// Sums over all calls, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub events: Delivered,
    pub spool_bytes: u64,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub log_dropped_bytes: u64,
}

/// Events that wait to be written together: what each means and how long it is, and all of them.
#[derive(Debug, Default)]
struct Held {
    lines: Vec<(spool::Line, usize)>,
    bytes: Vec<u8>,
}

/// Makes records and has them delivered. One per process; lives on one thread, inside a `LocalSet`.
#[derive(Debug)]
pub struct Reporter {
    shared: Rc<Shared>,
    reports: bool,
    base: Option<PathBuf>,
    writer: RefCell<Writer>,
    /// For the event at hand; used again.
    scratch: RefCell<Vec<u8>>,
    masks: Masks,
    log_limit: usize,
    console: Console,
    /// Lines on their way to the console.
    printed: RefCell<Vec<u8>>,
    names: (String, String),
    /// Calls with lines that wait.
    waiting: RefCell<Vec<Rc<RefCell<Call>>>>,
    lines: Rc<Notify>,
    logged: Cell<[u64; 2]>,
    dropped: Cell<u64>,
    next_call: Cell<u64>,
    /// Whether events wait in `held` for the end of [`Self::together`].
    holding: Cell<bool>,
    held: RefCell<Held>,
    tasks: RefCell<Vec<AbortHandle>>,
}

impl Reporter {
    /// Begins to deliver; also what earlier supervisors left in the folder. Must be called inside a `LocalSet`.
    #[must_use]
    pub fn start(config: ReportConfig, console: Console) -> Rc<Self> {
        let reports = config.endpoint.is_some();
        let base = config.spool_dir.clone().filter(|_| reports);
        let shared = Rc::new(Shared {
            spool: RefCell::new(Spool::new(base.clone(), config.spool_limit)),
            counts: RefCell::default(),
            news: Notify::new(),
            idle: Notify::new(),
        });
        let reporter = Rc::new(Self {
            shared: shared.clone(),
            reports,
            base,
            writer: RefCell::new(Writer::new(&config)),
            scratch: RefCell::default(),
            masks: config.masks,
            log_limit: config.log_limit,
            console,
            printed: RefCell::default(),
            names: (config.namespace, config.function),
            waiting: RefCell::default(),
            lines: Rc::new(Notify::new()),
            logged: Cell::default(),
            dropped: Cell::default(),
            next_call: Cell::new(0),
            holding: Cell::new(false),
            held: RefCell::default(),
            tasks: RefCell::default(),
        });
        let mut tasks = vec![
            tokio::task::spawn_local(flush_lines(Rc::downgrade(&reporter), reporter.lines.clone()))
                .abort_handle(),
        ];
        if let Some(endpoint) = config.endpoint {
            let near = endpoint.is_near();
            let client = client::Client::new(endpoint, config.ca_file);
            let delivery = Delivery { shared, client, near, token_file: config.token_file };
            tasks.push(tokio::task::spawn_local(delivery.run()).abort_handle());
        }
        if let Some(base) = reporter.base.clone() {
            tasks.push(tokio::task::spawn_local(adopt_others(base, reporter.shared.clone())).abort_handle());
        }
        reporter.tasks.replace(tasks);
        reporter
    }

    /// A worker has taken a call: its `started` is in the spool when this returns.
    pub fn open(self: &Rc<Self>, started: &StartedInfo<'_>) -> OpenRecord {
        let number = self.next_call.get();
        self.next_call.set(number + 1);
        if self.reports {
            let mut out = self.scratch.borrow_mut();
            out.clear();
            self.writer.borrow_mut().started(&mut out, started, now_ms());
            self.spool(spool::Line::Started(number), &out);
        }
        let call = Call {
            id: started.invocation_id.into(),
            attempt: started.attempt,
            number,
            next_seq: 1,
            event: Vec::new(),
            waits: false,
        };
        OpenRecord {
            reporter: self.clone(),
            call: Rc::new(RefCell::new(call)),
            log: None,
            provisional: false,
        }
    }

    /// For output that belongs to no call.
    #[must_use]
    pub fn loose(self: &Rc<Self>) -> LooseOutput {
        LooseOutput { reporter: self.clone(), log: CallLog::new(usize::MAX) }
    }

    /// For what a worker prints before it is ready.
    #[must_use]
    pub fn init_log(self: &Rc<Self>) -> InitOutput {
        InitOutput { masks: self.masks.clone(), log: InitLog::new(self.log_limit) }
    }

    /// Says whether memory is so short that the kernel may take the whole container: then calls that the next supervisor
    /// finds open ended for want of memory.
    pub fn memory_is_short(&self, short: bool) {
        let Some(dir) = self.shared.spool.borrow_mut().dir() else { return };
        let path = dir.path.join(adopt::OUT_OF_MEMORY);
        // Only a hint: without it the calls count as crashed.
        let _ = if short { std::fs::write(path, []) } else { std::fs::remove_file(path) };
    }

    /// Leaves a sign of life in the spool's folder; to be called every few seconds.
    pub fn touch(&self) {
        if let Some(dir) = self.shared.spool.borrow_mut().dir() {
            dir.touch();
        }
    }

    /// Prints what a worker said whose code does not load, and whom no call waits for.
    pub(crate) fn print_init(&self, init: InitOutput) {
        let origin = Origin { namespace: &self.names.0, function: &self.names.1, invocation_id: "" };
        let log = init.log.into_call(&mut |line| self.print(&origin, &line));
        log.finish(&mut |line| self.print(&origin, &line));
        self.lines.notify_one();
    }

    /// Waits until all is delivered or `limit` has passed; tells whether all is.
    pub async fn flush(&self, limit: Duration) -> bool {
        self.flush_waiting();
        if !self.reports {
            return true;
        }
        deliver::flush(&self.shared, limit).await
    }

    /// The last step: what is not delivered goes into files where that is possible, and nothing is delivered any more.
    pub fn close(&self) {
        self.flush_waiting();
        for task in self.tasks.borrow_mut().drain(..) {
            task.abort();
        }
        let mut spool = self.shared.spool.borrow_mut();
        if spool.pending() > 0 {
            spool.persist();
        }
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let [stdout_bytes, stderr_bytes] = self.logged.get();
        let spool = self.shared.spool.borrow();
        let events = Delivered { lost: spool.lost(), ..*self.shared.counts.borrow() };
        Counts {
            events,
            spool_bytes: spool.pending(),
            stdout_bytes,
            stderr_bytes,
            log_dropped_bytes: self.dropped.get(),
        }
    }

    fn spool(&self, kind: spool::Line, bytes: &[u8]) {
        if self.holding.get() {
            let mut held = self.held.borrow_mut();
            held.lines.push((kind, bytes.len()));
            held.bytes.extend_from_slice(bytes);
        } else {
            self.shared.spool.borrow_mut().append(kind, bytes);
            self.shared.news.notify_one();
        }
    }

    /// Does `work`, and writes the events that it makes all at once when it is done: a system call for several calls.
    ///
    /// Nothing that depends on their being written may leave the process in `work` itself; what it wakes runs later.
    pub(crate) fn together<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = self.holding.replace(true);
        let done = work();
        if !outer {
            self.holding.set(false);
            let mut held = self.held.borrow_mut();
            let Held { lines, bytes } = &mut *held;
            if !lines.is_empty() {
                self.shared.spool.borrow_mut().append_all(lines, bytes);
                self.shared.news.notify_one();
                lines.clear();
                bytes.clear();
                bytes.shrink_to(MAX_LOG_EVENT);
            }
        }
        done
    }

    /// One line of a call: into its `log` event and to the console.
    fn line(&self, call: &Rc<RefCell<Call>>, line: &Line<'_>) {
        let mut state = call.borrow_mut();
        let call_state = &mut *state;
        let origin =
            Origin { namespace: &self.names.0, function: &self.names.1, invocation_id: &call_state.id };
        self.print(&origin, line);
        if self.reports {
            if call_state.event.is_empty() {
                let (id, seq) = (&call_state.id, call_state.next_seq);
                event::begin_log(&mut call_state.event, id, call_state.attempt, seq);
                call_state.next_seq += 1;
            }
            event::log_line(&mut call_state.event, &mut self.writer.borrow_mut().stamp, line);
            if call_state.event.len() >= MAX_LOG_EVENT {
                self.end_event(call_state);
                return;
            }
        }
        if !call_state.waits {
            call_state.waits = true;
            drop(state);
            self.waiting.borrow_mut().push(call.clone());
            self.lines.notify_one();
        }
    }

    fn print(&self, origin: &Origin<'_>, line: &Line<'_>) {
        let mut printed = self.printed.borrow_mut();
        self.console.format_line(&mut printed, &mut self.writer.borrow_mut().stamp, origin, line);
        if printed.len() >= MAX_LOG_EVENT {
            self.console.print(&printed);
            printed.clear();
        }
    }

    fn end_event(&self, call: &mut Call) {
        if !call.event.is_empty() {
            event::end_log(&mut call.event);
            self.spool(spool::Line::Log, &call.event);
            call.event.clear();
        }
    }

    /// Sends and prints all lines that wait.
    fn flush_waiting(&self) {
        for call in self.waiting.take() {
            let mut call = call.borrow_mut();
            call.waits = false;
            self.end_event(&mut call);
        }
        let mut printed = self.printed.borrow_mut();
        self.console.print(&printed);
        // A burst's buffer is not kept.
        if printed.capacity() > MAX_LOG_EVENT / 4 {
            *printed = Vec::new();
        } else {
            printed.clear();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().drain(..) {
            task.abort();
        }
    }
}

async fn flush_lines(reporter: std::rc::Weak<Reporter>, lines: Rc<Notify>) {
    loop {
        lines.notified().await;
        tokio::time::sleep(BATCH_LINES).await;
        let Some(strong) = reporter.upgrade() else { return };
        strong.flush_waiting();
    }
}

async fn adopt_others(base: PathBuf, shared: Rc<Shared>) {
    loop {
        let folder = base.clone();
        match tokio::task::spawn_blocking(move || adopt::scan(&folder)).await {
            Ok(Ok(found)) => {
                for left in found {
                    let (calls, files, ends) = (left.open_calls, left.files.clone(), left.ends.clone());
                    if !files.is_empty() {
                        tracing::info!(open_calls = calls, "records of an earlier supervisor are delivered");
                    }
                    shared.spool.borrow_mut().adopt(&Rc::new(left.into_dir()), &files, &ends);
                    shared.news.notify_one();
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "spool folder cannot be looked at"),
            Err(error) => tracing::error!(%error, "spool folder was not looked at"),
        }
        tokio::time::sleep(ADOPT_EVERY).await;
    }
}

/// Between 0 and 1, evenly.
fn jitter() -> f64 {
    let random = std::hash::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[derive(Debug)]
struct Call {
    id: Box<str>,
    attempt: u32,
    number: u64,
    next_seq: u32,
    /// A `log` event that is being written; empty between events.
    event: Vec<u8>,
    /// It is among those that [`Reporter::flush_waiting`] looks at.
    waits: bool,
}

/// The record of a call that runs. Without output it holds no log.
#[derive(Debug)]
pub struct OpenRecord {
    reporter: Rc<Reporter>,
    call: Rc<RefCell<Call>>,
    log: Option<Box<CallLog>>,
    provisional: bool,
}

impl OpenRecord {
    /// What the worker printed before it was ready; once, before any other output.
    pub fn init_output(&mut self, init: InitOutput) {
        let (reporter, call) = (&self.reporter, &self.call);
        self.log = Some(Box::new(init.log.into_call(&mut |line| reporter.line(call, &line))));
    }

    pub fn stdout(&mut self, bytes: &[u8]) {
        self.output(LogStream::Stdout, bytes);
    }

    pub fn stderr(&mut self, bytes: &[u8]) {
        self.output(LogStream::Stderr, bytes);
    }

    pub fn output(&mut self, stream: LogStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (reporter, call) = (&self.reporter, &self.call);
        let log = self.log.get_or_insert_with(|| Box::new(CallLog::new(reporter.log_limit)));
        log.feed(&reporter.masks, stream, bytes, now_ms(), &mut |line| reporter.line(call, &line));
    }

    /// The outcome is known but not complete: it counts only if the supervisor dies before [`Self::finish`].
    pub fn provisional(&mut self, info: &FinishedInfo<'_>) {
        if !self.reporter.reports || self.provisional {
            return;
        }
        let mut call = self.call.borrow_mut();
        self.reporter.end_event(&mut call);
        let mut out = self.reporter.scratch.borrow_mut();
        out.clear();
        out.push(spool::PROVISIONAL);
        let counts = self.log.as_ref().map_or((0, 0), |log| log.so_far());
        let key = (&*call.id, call.attempt, call.next_seq);
        self.reporter.writer.borrow_mut().finished(&mut out, key, info, counts, now_ms());
        self.reporter.spool(spool::Line::Provisional(call.number), &out);
        self.provisional = true;
    }

    /// The call is over: its last lines and its `finished` are in the spool when this returns.
    pub fn finish(self, info: &FinishedInfo<'_>) {
        let reporter = &self.reporter;
        let totals = self.log.map_or_else(Totals::default, |log| {
            let totals = log.finish(&mut |line| reporter.line(&self.call, &line));
            let [stdout, stderr] = reporter.logged.get();
            reporter.logged.set([stdout + totals.stdout, stderr + totals.stderr]);
            reporter.dropped.set(reporter.dropped.get() + totals.dropped);
            totals
        });
        if !reporter.reports {
            return;
        }
        let mut call = self.call.borrow_mut();
        reporter.end_event(&mut call);
        let mut out = reporter.scratch.borrow_mut();
        out.clear();
        let key = (&*call.id, call.attempt, call.next_seq);
        reporter.writer.borrow_mut().finished(&mut out, key, info, (totals.kept, totals.dropped), now_ms());
        reporter.spool(spool::Line::Finished { call: call.number, provisional: self.provisional }, &out);
        if out.capacity() > MAX_LOG_EVENT * 2 {
            *out = Vec::new();
        }
    }
}

/// Output that belongs to no call: it goes to the console alone.
#[derive(Debug)]
pub struct LooseOutput {
    reporter: Rc<Reporter>,
    log: CallLog,
}

impl LooseOutput {
    pub fn output(&mut self, stream: LogStream, bytes: &[u8]) {
        let reporter = &self.reporter;
        let origin = Origin { namespace: &reporter.names.0, function: &reporter.names.1, invocation_id: "" };
        self.log.feed(&reporter.masks, stream, bytes, now_ms(), &mut |line| reporter.print(&origin, &line));
        reporter.lines.notify_one();
    }
}

/// What a worker prints before it is ready.
#[derive(Debug)]
pub struct InitOutput {
    masks: Masks,
    log: InitLog,
}

impl InitOutput {
    pub fn output(&mut self, stream: LogStream, bytes: &[u8]) {
        self.log.feed(&self.masks, stream, bytes, now_ms());
    }
}

#[cfg(test)]
mod tests;
