//! Output pairs: the pipes behind a worker's stdout and stderr, and whose output comes out of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use memchr::memmem;
use sless_protocol::frame::LogStream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::process;
use crate::report::{InitOutput, LooseOutput, OpenRecord};

/// A record that output and outcome meet in; `None` once the invocation is over.
pub(crate) type SharedRecord = Rc<RefCell<Option<OpenRecord>>>;

/// Output of a worker before it is ready; `None` once it has gone into the log of the worker's first call.
pub(crate) type InitLog = Rc<RefCell<Option<InitOutput>>>;

/// Whose the bytes are that come next.
#[derive(Debug, Clone)]
pub(crate) enum Owner {
    Init(InitLog),
    /// A call that is over, or none: in no record, but on the supervisor's own stdout.
    Nobody(Rc<RefCell<LooseOutput>>),
    Call(SharedRecord),
    #[cfg(test)]
    Text(Rc<RefCell<Vec<u8>>>),
}

impl Owner {
    fn take(&self, stream: LogStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Init(log) => {
                if let Some(log) = log.borrow_mut().as_mut() {
                    log.output(stream, bytes);
                }
            }
            Self::Nobody(loose) => loose.borrow_mut().output(stream, bytes),
            Self::Call(record) => {
                if let Some(record) = record.borrow_mut().as_mut() {
                    record.output(stream, bytes);
                }
            }
            #[cfg(test)]
            Self::Text(text) => text.borrow_mut().extend_from_slice(bytes),
        }
    }
}

/// The reading end of one pipe.
#[derive(Debug)]
pub(crate) struct Tap {
    fd: AsyncFd<OwnedFd>,
    stream: LogStream,
    /// Where output goes that belongs to no call.
    loose: Rc<RefCell<LooseOutput>>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    owner: Owner,
    /// Calls that wait in the worker's socket, with the mark that their output begins with.
    upcoming: VecDeque<(Vec<u8>, Owner)>,
    /// Bytes that may be the beginning of a mark.
    carry: Vec<u8>,
}

/// A pipe's usual capacity, pipe(7).
const SCRATCH_LEN: usize = 64 << 10;
/// The most that a pipe can be given, `/proc/sys/fs/pipe-max-size`.
const PIPE_LIMIT: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_LEN]);
}

impl Tap {
    pub(crate) fn new(
        fd: OwnedFd,
        stream: LogStream,
        owner: Owner,
        loose: Rc<RefCell<LooseOutput>>,
    ) -> io::Result<Self> {
        let state = State { owner, upcoming: VecDeque::new(), carry: Vec::new() };
        Ok(Self { fd: process::readiness(fd)?, stream, loose, state: RefCell::new(state) })
    }

    pub(crate) fn set_owner(&self, owner: Owner) {
        self.state.borrow_mut().owner = owner;
    }

    /// `mark` in the stream is where the output of `owner` begins.
    pub(crate) fn expect(&self, mark: Vec<u8>, owner: Owner) {
        self.state.borrow_mut().upcoming.push_back((mark, owner));
    }

    /// The call that was announced with this mark will not write it.
    pub(crate) fn forget(&self, mark: &[u8]) {
        self.state.borrow_mut().upcoming.retain(|(m, _)| m != mark);
    }

    /// No mark is to come of those that were announced.
    pub(crate) fn forget_all(&self) {
        self.state.borrow_mut().upcoming.clear();
    }

    /// Ends the ownership of `record`, if the next call's mark has not ended it already.
    pub(crate) fn release(&self, record: &SharedRecord) {
        let mut state = self.state.borrow_mut();
        if matches!(&state.owner, Owner::Call(owner) if Rc::ptr_eq(owner, record)) {
            // What may be the beginning of a mark is none if no mark is awaited any more.
            if state.upcoming.is_empty() && !state.carry.is_empty() {
                let carry = std::mem::take(&mut state.carry);
                state.owner.take(self.stream, &carry);
            }
            state.owner = Owner::Nobody(self.loose.clone());
        }
    }

    /// Reads what lies in the pipe now, and no more than a pipe can hold: a leftover may keep on writing for ever.
    pub(crate) fn drain(&self) {
        for _ in 0..PIPE_LIMIT / SCRATCH_LEN {
            match self.read_once() {
                Ok(SCRATCH_LEN) => {}
                // A short read has emptied the pipe. The event that told of these bytes may still be on its way to
                // `run`; without it there is no second read that finds nothing. Later bytes make an event of their own.
                Ok(1..) => {
                    let nothing: io::Result<()> =
                        self.fd.try_io(Interest::READABLE, |_| Err(io::ErrorKind::WouldBlock.into()));
                    drop(nothing);
                    return;
                }
                _ => return,
            }
        }
    }

    /// The same where an event has told of bytes; costs nothing otherwise.
    pub(crate) fn drain_if_told(&self) {
        if self.fd.try_io(Interest::READABLE, |_| Ok(())).is_ok() {
            self.drain();
        }
    }

    fn read_once(&self) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|buffer| {
            let n = nix::unistd::read(self.fd.get_ref(), buffer)?;
            self.state.borrow_mut().feed(self.stream, buffer.get(..n).unwrap_or_default());
            Ok(n)
        })
    }

    /// Reads for as long as the pipe is open, so that a handler never blocks on a full one.
    pub(crate) async fn run(&self) {
        /// After so much the other tasks have their turn.
        const TURN: usize = 256 << 10;
        loop {
            let Ok(mut guard) = self.fd.readable().await else { return };
            let mut got = 0;
            loop {
                match self.read_once() {
                    Ok(0) => return,
                    Ok(n) => got += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        guard.clear_ready();
                        break;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
                if got >= TURN {
                    drop(guard);
                    tokio::task::yield_now().await;
                    break;
                }
            }
        }
    }
}

impl State {
    fn feed(&mut self, stream: LogStream, bytes: &[u8]) {
        if self.upcoming.is_empty() && self.carry.is_empty() {
            return self.owner.take(stream, bytes);
        }
        let mut whole = std::mem::take(&mut self.carry);
        whole.extend_from_slice(bytes);
        let mut rest = &whole[..];
        while let Some((mark, _)) = self.upcoming.front() {
            let Some(at) = memmem::find(rest, mark) else {
                let held = partial_mark(rest, mark);
                let (now, later) = rest.split_at(rest.len() - held);
                self.owner.take(stream, now);
                self.carry = later.to_vec();
                return;
            };
            self.owner.take(stream, &rest[..at]);
            rest = &rest[at + mark.len()..];
            if let Some((_, owner)) = self.upcoming.pop_front() {
                self.owner = owner;
            }
        }
        self.owner.take(stream, rest);
    }
}

/// Length of the longest end of `bytes` that `mark` begins with.
fn partial_mark(bytes: &[u8], mark: &[u8]) -> usize {
    (1..mark.len().min(bytes.len() + 1)).rev().find(|&n| bytes.ends_with(&mark[..n])).unwrap_or(0)
}

/// stdout and stderr of a worker.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) taps: [Rc<Tap>; 2],
}

impl Pair {
    /// Makes two pipes; gives their write ends too.
    pub(crate) fn new(owner: &Owner, loose: &Rc<RefCell<LooseOutput>>) -> io::Result<(Self, [OwnedFd; 2])> {
        let tap = |stream| -> io::Result<(Rc<Tap>, OwnedFd)> {
            let (read, write) = process::pipe_pair()?;
            Ok((Rc::new(Tap::new(read, stream, owner.clone(), loose.clone())?), write))
        };
        let (out, out_write) = tap(LogStream::Stdout)?;
        let (err, err_write) = tap(LogStream::Stderr)?;
        Ok((Self { taps: [out, err] }, [out_write, err_write]))
    }

    pub(crate) fn set_owner(&self, owner: &Owner) {
        self.taps.iter().for_each(|t| t.set_owner(owner.clone()));
    }

    pub(crate) fn drain(&self) {
        self.taps.iter().for_each(|t| t.drain());
    }

    pub(crate) fn drain_if_told(&self) {
        self.taps.iter().for_each(|t| t.drain_if_told());
    }

    pub(crate) fn release(&self, record: &SharedRecord) {
        self.taps.iter().for_each(|t| t.release(record));
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An owner whose output can be read back.
    fn owner() -> (Owner, Rc<RefCell<Vec<u8>>>) {
        let text = Rc::new(RefCell::new(Vec::new()));
        (Owner::Text(text.clone()), text)
    }

    fn text(log: &Rc<RefCell<Vec<u8>>>) -> String {
        String::from_utf8(log.borrow().clone()).unwrap()
    }

    proptest! {
        /// Whatever the cuts between two reads, each side of a mark goes to its call, and the mark to nobody.
        #[test]
        fn a_mark_divides_the_output(before in "[sx\0:]{0,12}", after in "[sx\0:]{0,12}", step in 1usize..9) {
            let mark = b"\0sless:x:2\0".to_vec();
            let ((first, a), (second, b)) = (owner(), owner());
            let mut state = State { owner: first, upcoming: VecDeque::from([(mark.clone(), second)]), carry: Vec::new() };
            let wire = [before.as_bytes(), &mark, after.as_bytes()].concat();
            for piece in wire.chunks(step) {
                state.feed(LogStream::Stdout, piece);
            }
            prop_assert_eq!(text(&a), before);
            prop_assert_eq!(text(&b), after);
        }
    }

    #[test]
    fn the_beginning_of_a_mark_is_held_back() {
        assert_eq!(partial_mark(b"abc\0sl", b"\0sless:x:2\0"), 3);
        assert_eq!(partial_mark(b"abc", b"\0sless:x:2\0"), 0);
        assert_eq!(partial_mark(b"", b"\0s"), 0);
    }
}
