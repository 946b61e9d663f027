//! One slot of a worker: its socket, the calls that are open on it, and what is to be written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sless_protocol::frame::{self, ToWorker};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::outlet::SharedRecord;
use crate::call::{Call, Piece};
use crate::failure::Failure;

/// Calls that may be in a worker's socket at once, the running one among them. Four hide the sleep between two
/// calls; more gain nothing and are only taken back the more often (docs/performance.md).
pub(super) const DEPTH: usize = 4;
/// Bodies up to this size are copied behind their frame's head: one write instead of two.
const COPY_LIMIT: usize = 16 << 10;

/// A call that has been sent to a worker.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) number: u32,
    pub(super) call: Box<Call>,
    /// Shared with the pipes that its output comes from.
    pub(super) record: SharedRecord,
    pub(super) pair: u16,
    /// When the worker took it, as far as can be known; `None` while it waits behind another.
    pub(super) begun: Option<Instant>,
    pub(super) stream: Option<Streaming>,
    /// Decided already (too large): what else comes of it is thrown away.
    pub(super) failed: Option<Failure>,
}

/// A streamed answer on its way.
#[derive(Debug)]
pub(super) struct Streaming {
    pub(super) pieces: mpsc::Sender<Piece>,
    pub(super) http_status: u16,
    pub(super) content_type: String,
    /// What the record keeps of it.
    pub(super) kept: Vec<u8>,
    pub(super) size: u64,
}

impl OpenCall {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.begun.map(|begun| begun + self.call.request.limit)
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    /// Taken by the driver.
    pub(super) reader: RefCell<Option<OwnedReadHalf>>,
    pub(super) writer: OwnedWriteHalf,
    /// Something to write or another deadline: the driver must look.
    pub(super) changed: Notify,
    pub(super) state: RefCell<State>,
    /// The socket has no room for what is to be written.
    pub(super) is_full: Cell<bool>,
    /// The caller of a streamed answer is slow: nothing is read until it has taken this.
    pub(super) stalled: RefCell<Option<(mpsc::Sender<Piece>, Bytes)>>,
    /// How long a call took, lately.
    typical: Cell<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    next: u32,
    /// The first one runs, the others wait in the socket.
    pub(super) open: VecDeque<OpenCall>,
    /// Taken back before they began; each will be answered with `SKIPPED`.
    pub(super) revoked: Vec<(u32, u16)>,
    outbox: VecDeque<Bytes>,
    head: Vec<u8>,
}

impl Slot {
    pub(super) fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            reader: RefCell::new(Some(reader)),
            writer,
            changed: Notify::new(),
            is_full: Cell::new(false),
            state: RefCell::new(State { next: 1, ..State::default() }),
            stalled: RefCell::new(None),
            typical: Cell::new(Duration::MAX),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.open.is_empty() && state.revoked.is_empty()
    }

    /// Whether another call may wait in the socket: only behind quick ones, since a call that waits here
    /// cannot go to a worker that becomes free until it has been taken back.
    pub(super) fn may_wait(&self, now: Instant, patience: Duration) -> bool {
        let state = self.state.borrow();
        let running = state.open.front().and_then(|o| o.begun);
        !state.open.is_empty()
            && state.open.len() + state.revoked.len() < DEPTH
            && self.typical.get() < patience / 2
            && running.is_some_and(|begun| now.duration_since(begun) < patience)
            && state.open.iter().all(|o| o.stream.is_none())
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.borrow().open.len().saturating_sub(1)
    }

    /// Learns from a call that has ended.
    pub(super) fn took(&self, duration: Duration) {
        let typical = self.typical.get();
        self.typical.set(if typical == Duration::MAX { duration } else { (typical * 7 + duration) / 8 });
    }

    /// The number of the call that is sent next.
    pub(super) fn next_number(&self) -> u32 {
        self.state.borrow().next
    }

    /// Puts the call's frame into the outbox and the call behind the open ones.
    pub(super) fn push(&self, call: Box<Call>, record: SharedRecord, pair: u16, begun: Option<Instant>) {
        let mut state = self.state.borrow_mut();
        let number = state.next;
        // Number 0 belongs to no call.
        state.next = number.checked_add(1).unwrap_or(1);
        let mut head = std::mem::take(&mut state.head);
        head.clear();
        call.request.write_head(&mut head);
        let body = call.request.body.clone();
        let copied = if body.len() <= COPY_LIMIT { body.len() } else { 0 };
        let mut frame = BytesMut::with_capacity(frame::HEADER_LEN + 8 + head.len() + copied);
        let waiting = begun.is_none();
        frame::put_invoke(&mut frame, number, call.request.event, waiting, pair, &head, body.len());
        state.head = head;
        frame.extend_from_slice(&body[..copied]);
        state.outbox.push_back(frame.freeze());
        if copied < body.len() {
            state.outbox.push_back(body);
        }
        state.open.push_back(OpenCall { number, call, record, pair, begun, stream: None, failed: None });
    }

    /// Puts a frame into the outbox; the driver writes it.
    pub(super) fn send(&self, frame: &ToWorker) {
        let mut bytes = BytesMut::new();
        frame.encode(&mut bytes);
        self.state.borrow_mut().outbox.push_back(bytes.freeze());
        self.changed.notify_one();
    }

    pub(super) fn has_output(&self) -> bool {
        !self.state.borrow().outbox.is_empty()
    }

    /// Writes as much as the socket takes. A worker that is gone is noticed elsewhere.
    pub(super) fn flush(&self) {
        let mut state = self.state.borrow_mut();
        self.is_full.set(false);
        while !state.outbox.is_empty() {
            let parts: Vec<IoSlice<'_>> = state.outbox.iter().take(16).map(|b| IoSlice::new(b)).collect();
            let written = match parts.as_slice() {
                [one] => self.writer.try_write(one),
                many => self.writer.try_write_vectored(many),
            };
            match written {
                Ok(mut n) => {
                    while let Some(first) = state.outbox.front_mut() {
                        if n < first.len() {
                            drop(first.split_to(n));
                            break;
                        }
                        n -= first.len();
                        state.outbox.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.is_full.set(true);
                    self.changed.notify_one();
                    return;
                }
                Err(_) => {
                    state.outbox.clear();
                    return;
                }
            }
        }
    }

    /// When the driver must look at this slot next: the running call's limit, or the end of the patience of those behind it.
    pub(super) fn next_alarm(&self, patience: Duration) -> Option<Instant> {
        let state = self.state.borrow();
        let front = state.open.front()?;
        let deadline = front.deadline()?;
        if state.open.len() > 1 {
            return front.begun.map(|begun| deadline.min(begun + patience));
        }
        Some(deadline)
    }
}

impl State {
    /// The output pair of a call that has been taken back.
    pub(super) fn take_revoked(&mut self, call: u32) -> Option<u16> {
        let at = self.revoked.iter().position(|(number, _)| *number == call)?;
        Some(self.revoked.swap_remove(at).1)
    }

    pub(super) fn take_open(&mut self, call: u32) -> Option<OpenCall> {
        let at = self.open.iter().position(|o| o.number == call)?;
        self.open.remove(at)
    }
}

/// The call at the front is the running one.
pub(super) fn begin_front(state: &mut State, now: Instant) {
    if let Some(front) = state.open.front_mut()
        && front.begun.is_none()
    {
        front.begun = Some(now);
    }
}
