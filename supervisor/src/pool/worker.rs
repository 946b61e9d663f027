//! One handler process: started, fed with calls through its slots, and replaced when it dies.
//!
//! ```text
//! Starting ──READY──▶ Ready ──a call's limit, cancel, retire──▶ Condemned ──▶ Gone
//!     └──INIT_FAILED, exit, init's limit──────────────────────────┘            ▲
//!                  Ready ──exit, or killed from outside────────────────────────┘
//! ```

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use sless_protocol::frame::{Decoder, FromWorker, ToWorker};
use sless_protocol::handshake;
use sless_protocol::page;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Pool;
use super::outcome::Cost;
use super::outlet::{InitLog, SharedRecord};
use super::pairs::{Pairs, Stock};
use super::slot::Slot;
use crate::call::Call;
use crate::process::{self, Family, Launch, SharedPage};
use crate::report::InitOutput;

/// Calls may wait in the socket for so long; then they are taken back for whoever is free.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// An alarm that nobody waits for.
const FAR: Duration = Duration::from_secs(86_400);
/// Frame heads beside a body: headers, results' heads, tracebacks.
const HEAD_ROOM: u32 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Starting,
    Ready,
    /// Gets no new call; ends when its last one has.
    Condemned,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(super) pool: Weak<Pool>,
    pub(super) life: Cell<Life>,
    pub(super) family: Family,
    pub(super) slots: Vec<Slot>,
    page: SharedPage,
    pub(super) pairs: Pairs,
    init_log: InitLog,
    /// How long it took to become ready, until the first call's record has it.
    pub(super) init: Cell<Option<Duration>>,
    pub(super) started: Instant,
    pub(super) idle_since: Cell<Instant>,
    pub(super) served: Cell<u64>,
    /// CPU time that went into getting ready and into calls that have ended.
    pub(super) accounted: Cell<Duration>,
    pub(super) stack: super::stack::Stack,
    /// Open calls have become none: a condemned worker may be ended.
    pub(super) emptied: Notify,
    pub(super) doomed: RefCell<Vec<super::death::Doomed>>,
    /// How it ended, once it has.
    pub(super) exit: RefCell<Option<process::Exit>>,
    /// The supervisor itself has killed it, and why.
    pub(super) killed: Cell<Option<super::death::Kill>>,
}

impl Worker {
    /// Starts a worker and the tasks that look after it.
    pub(super) fn start(pool: &Rc<Pool>) -> io::Result<Rc<Self>> {
        let cfg = &pool.config;
        let slot_count = cfg.concurrency.get();
        let init_log: InitLog = Rc::new(RefCell::new(Some(pool.reporter.init_log())));
        let mut fds: Vec<OwnedFd> = Vec::new();
        let mut slots = Vec::with_capacity(slot_count);
        for _ in 0..slot_count {
            let (ours, theirs) = process::socket_pair()?;
            slots.push(Slot::new(UnixStream::from_std(ours.into())?));
            fds.push(theirs);
        }
        let page = SharedPage::new(page::SLOT_LEN * slot_count)?;
        fds.push(page.file().try_clone_to_owned()?);
        let (stack, stack_fds) = super::stack::Stack::new()?;
        fds.extend(stack_fds);
        let first_pair_fd = 3 + fds.len();
        let (pairs, pair_ends) = Pairs::new(slot_count, &init_log, pool.reporter.loose())?;
        let pair_count = pair_ends.len();
        let [stdout, stderr] = match pair_ends.first() {
            Some([out, err]) => [out.try_clone()?, err.try_clone()?],
            None => return Err(io::ErrorKind::InvalidInput.into()),
        };
        fds.extend(pair_ends.into_iter().flatten());
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let init_deadline = SystemTime::now() + cfg.init_timeout;
        let hello = handshake::Hello {
            protocol: handshake::PROTOCOL,
            entrypoint: cfg.entrypoint.clone(),
            function_dir: cfg.function_dir.to_string_lossy().into_owned(),
            namespace: cfg.namespace.clone(),
            function: cfg.function.clone(),
            revision: cfg.revision.clone(),
            slots: u32::try_from(slot_count).unwrap_or(u32::MAX),
            shared: number(3 + slot_count),
            stack: [number(4 + slot_count), number(5 + slot_count)],
            pairs: (0..pair_count)
                .map(|n| [number(first_pair_fd + 2 * n), number(first_pair_fd + 2 * n + 1)])
                .collect(),
            mark: pairs.mark().to_owned(),
            init_deadline_ms: crate::clock::unix_ms(init_deadline),
        };
        let head = serde_json::to_vec(&hello)?.into();
        let launch = Launch {
            program: cfg.runtime.command.clone(),
            dir: cfg.function_dir.clone(),
            env: cfg.worker_env(),
            stdout,
            stderr,
            fds,
        };
        let started = Instant::now();
        let family = pool.reaper.spawn(&pool.cage, launch)?;
        let worker = Rc::new(Self {
            pool: Rc::downgrade(pool),
            life: Cell::new(Life::Starting),
            family,
            slots,
            page,
            pairs,
            init_log,
            init: Cell::new(None),
            started,
            idle_since: Cell::new(started),
            served: Cell::new(0),
            accounted: Cell::default(),
            stack,
            emptied: Notify::new(),
            doomed: RefCell::default(),
            exit: RefCell::default(),
            killed: Cell::new(None),
        });
        if let Some(slot) = worker.slots.first() {
            slot.send(&ToWorker::Hello { head });
        }
        worker.spawn_tasks();
        Ok(worker)
    }

    fn spawn_tasks(self: &Rc<Self>) {
        let drivers =
            (0..self.slots.len()).map(|index| tokio::task::spawn_local(self.clone().drive(index))).collect();
        for tap in self.pairs.taps() {
            let (tap, worker) = (tap.clone(), self.clone());
            tokio::task::spawn_local(async move {
                tokio::select! {
                    () = tap.run() => {}
                    () = worker.family.gone() => {}
                }
            });
        }
        tokio::task::spawn_local(super::death::watch_exit(self.clone(), drivers));
        tokio::task::spawn_local(super::death::watch_init(self.clone()));
    }

    /// Reads what the worker says on one slot, keeps its deadlines and writes what the socket did not take at once.
    async fn drive(self: Rc<Self>, index: usize) {
        let Some(slot) = self.slots.get(index) else { return };
        let Some(mut reader) = slot.reader.borrow_mut().take() else { return };
        let limit = self.pool.upgrade().map_or(0, |p| p.config.max_response_bytes);
        let mut decoder = Decoder::new(limit.saturating_add(HEAD_ROOM));
        let mut buffer = BytesMut::new();
        let mut open = true;
        let alarm = tokio::time::sleep_until(Instant::now() + FAR);
        tokio::pin!(alarm);
        loop {
            let stalled = slot.stalled.borrow().as_ref().map(|(pieces, _)| pieces.clone());
            let paused = stalled.is_some();
            if !paused && self.exit.borrow().is_some() {
                // What it wrote before it died still counts.
                while slot.stalled.borrow().is_none() && matches!(reader.try_read_buf(&mut buffer), Ok(1..)) {
                    self.decode_slot(index, &mut decoder, &mut buffer);
                }
                if slot.stalled.borrow().is_none() {
                    break;
                }
            }
            buffer.reserve(decoder.lacks(&buffer).max(CHUNK));
            tokio::select! {
                biased;
                read = reader.read_buf(&mut buffer), if open && !paused => {
                    open = matches!(read, Ok(1..));
                    self.decode_slot(index, &mut decoder, &mut buffer);
                }
                () = slot.unstall(stalled), if paused => self.decode_slot(index, &mut decoder, &mut buffer),
                _ = slot.writer.writable(), if slot.is_full.get() => slot.flush(),
                () = &mut alarm => self.on_alarm(index),
                () = slot.changed.notified() => {}
            }
            if slot.has_output() && !slot.is_full.get() {
                slot.flush();
            }
            if buffer.is_empty() && buffer.capacity() > 4 * CHUNK {
                buffer = BytesMut::new();
            }
            // The alarm is only moved forward when it must be: most calls end long before their limit.
            let next = slot.next_alarm(PATIENCE);
            if alarm.is_elapsed() || next.is_some_and(|next| next < alarm.deadline()) {
                alarm.as_mut().reset(next.unwrap_or_else(|| Instant::now() + FAR));
            }
        }
        super::death::slot_over(&self, index);
    }

    fn decode_slot(self: &Rc<Self>, index: usize, decoder: &mut Decoder, buffer: &mut BytesMut) {
        let Some(pool) = self.pool.upgrade() else { return };
        // Answers leave when their tasks run, and calls when the driver writes them: after this.
        pool.reporter.together(|| {
            self.decode_frames(index, decoder, buffer);
            pool.pump();
        });
    }

    fn decode_frames(self: &Rc<Self>, index: usize, decoder: &mut Decoder, buffer: &mut BytesMut) {
        let Some(slot) = self.slots.get(index) else { return };
        while slot.stalled.borrow().is_none() {
            match decoder.decode(buffer) {
                Ok(Some(frame)) => self.on_frame(index, frame),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(worker.pid = self.family.worker_pid(), %error, "worker broke the protocol");
                    self.kill(super::death::Kill::Protocol);
                    break;
                }
            }
        }
    }

    fn on_frame(self: &Rc<Self>, index: usize, frame: FromWorker) {
        let Some(pool) = self.pool.upgrade() else { return };
        match frame {
            FromWorker::Ready { head } => self.on_ready(&pool, &head),
            FromWorker::InitFailed { head } => {
                let raised = serde_json::from_slice(&head).unwrap_or_default();
                pool.init_failed(self, raised);
                self.kill(super::death::Kill::InitFailed);
            }
            FromWorker::Skipped { call, .. } => self.on_skipped(index, call),
            FromWorker::Wait { call } => self.on_wait(index, call),
            frame => super::outcome::on_frame(&pool, self, index, frame),
        }
    }

    fn on_ready(self: &Rc<Self>, pool: &Rc<Pool>, head: &[u8]) {
        if self.life.get() != Life::Starting {
            return;
        }
        let ready: handshake::Ready = match serde_json::from_slice(head) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!(%error, "worker said READY in a form that is not understood");
                return self.kill(super::death::Kill::Protocol);
            }
        };
        if ready.protocol != handshake::PROTOCOL {
            tracing::error!(protocol = ready.protocol, "worker speaks another version of the protocol");
            return self.kill(super::death::Kill::Protocol);
        }
        self.pairs.ready(ready.boundary);
        let took = self.started.elapsed();
        self.init.set(Some(took));
        self.accounted.set(self.family.cpu_time());
        self.idle_since.set(Instant::now());
        self.life.set(Life::Ready);
        pool.worker_ready(self, took);
    }

    /// What a call has cost that the worker does not tell of: all that is not accounted for.
    pub(super) fn cost_of_the_rest(&self) -> Cost {
        let (cpu, max_rss_bytes) = match &*self.exit.borrow() {
            Some(exit) => (exit.cpu, exit.max_rss_kib * 1024),
            None => (self.family.cpu_time(), self.family.memory_bytes()),
        };
        Cost { cpu: cpu.saturating_sub(self.accounted.get()), max_rss_bytes }
    }

    /// What the worker printed before it was ready, for the first call that has to do with it.
    pub(super) fn take_init_log(&self) -> Option<InitOutput> {
        self.init_log.borrow_mut().take()
    }

    /// Calls in its sockets, the running ones among them.
    pub(super) fn open_calls(&self) -> usize {
        self.slots.iter().map(|s| s.state.borrow().open.len()).sum()
    }

    pub(super) fn waiting_calls(&self) -> usize {
        self.slots.iter().map(Slot::waiting).sum()
    }

    /// Sends a call to a slot that has none open, or to wait behind another. Gives it back if there is no output pair for it.
    pub(super) fn dispatch(&self, index: usize, mut call: Box<Call>, now: Instant) -> Result<(), Box<Call>> {
        let (Some(slot), Some(pool)) = (self.slots.get(index), self.pool.upgrade()) else { return Err(call) };
        let waiting = !slot.is_idle();
        let Some(pair) = self.pairs.choose(waiting) else { return Err(call) };
        let record = call.record.take().unwrap_or_else(|| pool.open_record(&call.request));
        let record: SharedRecord = Rc::new(RefCell::new(Some(record)));
        let number = slot.next_number();
        self.page.write_u8(page::revoked_offset(index, number), 0);
        self.pairs.give(pair, number, &record, waiting);
        self.give_init_log(&record);
        self.served.set(self.served.get() + 1);
        slot.push(call, record, pair, (!waiting).then_some(now));
        // The driver writes it, with what others put beside it until then.
        slot.changed.notify_one();
        Ok(())
    }

    fn give_init_log(&self, record: &SharedRecord) {
        if let Some(init) = self.take_init_log()
            && let Some(record) = record.borrow_mut().as_mut()
        {
            record.init_output(init);
        }
    }

    /// Takes a call's output up to now into its record.
    pub(super) fn end_output(self: &Rc<Self>, pair: u16, record: &SharedRecord, spawned: bool) {
        if self.pairs.end(pair, record, spawned, || self.family.leftovers()) == Stock::UsedUp {
            self.retire();
        }
    }

    /// The worker waits before a call, since the one before it has started a process: the pair may be a leftover's now.
    fn on_wait(&self, index: usize, call: u32) {
        let Some(slot) = self.slots.get(index) else { return };
        let pair = self.pairs.change();
        // Calls that wait go on where this one is: a waiting call's frame does not change the pair.
        let open: Vec<(u32, SharedRecord)> = {
            let mut state = slot.state.borrow_mut();
            state.open.iter_mut().for_each(|o| o.pair = pair);
            state.open.iter().map(|o| (o.number, o.record.clone())).collect()
        };
        // A call that has been revoked meanwhile is not here: the worker looks at that again after GO.
        for (number, record) in &open {
            self.pairs.give(pair, *number, record, *number != call);
        }
        slot.send(&ToWorker::Go { call, pair });
    }

    /// A call was not run, since it had been revoked in time.
    fn on_skipped(self: &Rc<Self>, index: usize, call: u32) {
        let (Some(slot), Some(pool)) = (self.slots.get(index), self.pool.upgrade()) else { return };
        let skipped = slot.state.borrow_mut().take_revoked(call);
        let contested = self.page.read_u8(page::revoked_offset(index, call)) == 1;
        // Revoked at the moment at which the worker took it: its word decides.
        let open = if contested { slot.state.borrow_mut().take_open(call) } else { None };
        if let Some(pair) = skipped {
            self.pairs.skipped(pair);
        } else if let Some(open) = open {
            self.pairs.skipped(open.pair);
            super::slot::begin_front(&mut slot.state.borrow_mut(), Instant::now());
            pool.put_back(vec![open.into_call()]);
        } else {
            tracing::warn!(call, "worker skipped a call that was not revoked");
            self.kill(super::death::Kill::Protocol);
        }
        self.check_emptied();
    }

    /// Takes back the calls that wait in a slot's socket and have not begun.
    pub(super) fn revoke_waiting(&self, index: usize) -> Vec<Box<Call>> {
        let Some(slot) = self.slots.get(index) else { return Vec::new() };
        let mut back = Vec::new();
        let mut state = slot.state.borrow_mut();
        while state.open.len() > 1 {
            let Some(last) = state.open.back() else { break };
            self.page.write_u8(page::revoked_offset(index, last.number), 1);
            // If it has begun by now, or is about to, the worker's answer says which it was.
            if page::has_begun(self.page.read_u32(page::taken_offset(index)), last.number) {
                break;
            }
            let Some(open) = state.open.pop_back() else { break };
            state.revoked.push((open.number, open.pair));
            self.pairs.forget(open.pair, open.number);
            back.push(open.into_call());
        }
        back.reverse();
        back
    }

    /// Of a worker that is dead: the calls that it has not begun, and those that it has.
    pub(super) fn take_open(&self, index: usize) -> (Vec<super::slot::OpenCall>, Vec<Box<Call>>) {
        let Some(slot) = self.slots.get(index) else { return Default::default() };
        let taken = self.page.read_u32(page::taken_offset(index));
        let open = std::mem::take(&mut slot.state.borrow_mut().open);
        let (begun, fresh): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|o| page::has_begun(taken, o.number));
        (begun, fresh.into_iter().map(super::slot::OpenCall::into_call).collect())
    }

    fn on_alarm(self: &Rc<Self>, index: usize) {
        let (Some(slot), Some(pool)) = (self.slots.get(index), self.pool.upgrade()) else { return };
        let now = Instant::now();
        let (late, waiting) = {
            let state = slot.state.borrow();
            let front = state.open.front();
            let late = front.and_then(super::slot::OpenCall::deadline).is_some_and(|d| d <= now);
            let impatient = front.and_then(|o| o.begun).is_some_and(|b| b + PATIENCE <= now);
            (late, impatient && state.open.len() > 1)
        };
        if waiting || late {
            pool.put_back(self.revoke_waiting(index));
        }
        if late {
            super::death::condemn(&pool, self, index, super::death::Reason::Timeout);
        } else if waiting {
            pool.pump();
        }
    }

    pub(super) fn check_emptied(&self) {
        if self.open_calls() == 0 {
            self.emptied.notify_waiters();
        }
    }

    /// Ends a worker that is idle or will be: no new call, then the end of its sockets.
    pub(super) fn retire(self: &Rc<Self>) {
        super::death::retire(self);
    }

    pub(super) fn kill(&self, why: super::death::Kill) {
        super::death::kill(self, why);
    }
}

impl super::slot::OpenCall {
    /// The call as it was before it was sent, with the record that is open for it.
    fn into_call(self) -> Box<Call> {
        let mut call = self.call;
        call.record = self.record.borrow_mut().take();
        call
    }
}

impl Slot {
    /// Waits until the slow caller of a streamed answer takes the piece that is held.
    async fn unstall(&self, pieces: Option<tokio::sync::mpsc::Sender<crate::call::Piece>>) {
        if let Some(pieces) = pieces {
            let permit = pieces.reserve().await;
            if let Some((_, chunk)) = self.stalled.borrow_mut().take()
                && let Ok(permit) = permit
            {
                permit.send(crate::call::Piece::Chunk(chunk));
            }
        }
    }
}
