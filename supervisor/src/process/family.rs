//! One worker with all that descends from it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::reaper::Reaper;
use super::sys::{self, Report};
use super::tree;

/// How the worker itself ended; its descendants may live on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    pub ending: Ending,
    /// The most memory that the worker, or a child that it waited for, had in use.
    pub max_rss_kib: u64,
    /// CPU time of the worker and of the children that it waited for.
    pub cpu: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    /// Its program never ran; the text says what failed, for people.
    NotStarted(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited { code } => write!(f, "exited with code {code}"),
            Ending::Signaled { signal } => write!(f, "killed by signal {signal}"),
            Ending::NotStarted(why) => write!(f, "not started: {why}"),
        }
    }
}

/// A worker and all that it has started, in whatever session or group, with its parents dead or alive.
///
/// Dropping it kills them.
#[derive(Debug)]
pub struct Family {
    pub(super) kin: Rc<Kin>,
    pub(super) reaper: Rc<Reaper>,
}

/// What [`Family`] and the reaper both know.
#[derive(Debug)]
pub(super) struct Kin {
    pub(super) keeper: i32,
    /// For messages.
    pub(super) program: String,
    control: AsyncFd<OwnedFd>,
    worker: Cell<Option<i32>>,
    exit: RefCell<Option<Exit>>,
    gone: Cell<bool>,
    killed_at: Cell<Option<Instant>>,
    changed: Notify,
}

impl Family {
    /// The worker's pid; not yet known for the millisecond in which the keeper starts it, nor if it could not be started.
    pub fn worker_pid(&self) -> Option<i32> {
        self.kin.worker.get()
    }

    /// Sends SIGTERM to all that can be found of the family.
    pub fn terminate(&self) {
        if !self.kin.gone.get() {
            tree::signal_descendants(self.kin.keeper, libc::SIGTERM);
        }
    }

    /// Has all of the family killed, for certain: also what is born while it dies. Returns at once; [`Family::gone`] tells when it is done.
    pub fn kill(&self) {
        self.kin.kill();
        self.reaper.attend();
    }

    /// How the worker itself ended. May be asked by several, and again.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn exited(&self) -> Exit {
        loop {
            let changed = self.kin.changed.notified();
            if let Some(exit) = self.exit() {
                return exit;
            }
            changed.await;
        }
    }

    /// How the worker ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        self.kin.exit.borrow().clone()
    }

    /// Returns when nothing is left of the family, not even zombies.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn gone(&self) {
        loop {
            let changed = self.kin.changed.notified();
            if self.kin.gone.get() {
                return;
            }
            changed.await;
        }
    }

    /// Descendants that live, without the worker itself.
    pub fn leftovers(&self) -> Vec<i32> {
        let mut found = self.members();
        found.retain(|pid| Some(*pid) != self.kin.worker.get());
        found.retain(|pid| tree::stat(*pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X')));
        found
    }

    /// Bytes of memory that the family has in use; what they share among each other counts for each.
    pub fn memory_bytes(&self) -> u64 {
        self.members().into_iter().map(tree::resident_bytes).sum()
    }

    /// CPU time that the family has used, that of dead members included once they are buried.
    pub fn cpu_time(&self) -> Duration {
        if self.kin.gone.get() {
            return Duration::ZERO;
        }
        self.members().into_iter().chain([self.kin.keeper]).map(tree::cpu_time).sum()
    }

    fn members(&self) -> Vec<i32> {
        // A keeper that is buried has no pid any more that we could ask about.
        if self.kin.gone.get() { Vec::new() } else { tree::descendants(self.kin.keeper) }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Kin {
    pub(super) fn new(keeper: i32, program: String, control: AsyncFd<OwnedFd>) -> Kin {
        Kin {
            keeper,
            program,
            control,
            worker: Cell::new(None),
            exit: RefCell::new(None),
            gone: Cell::new(false),
            killed_at: Cell::new(None),
            changed: Notify::new(),
        }
    }

    /// Reads the keeper's reports until it closes the socket.
    pub(super) async fn listen(&self) {
        while let Ok(mut ready) = self.control.readable().await {
            match self.take_report() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(_) => return,
            }
        }
    }

    /// Takes what the keeper had said before it ended.
    pub(super) fn take_last_reports(&self) {
        while let Ok(true) = self.take_report() {}
    }

    /// False at the end.
    fn take_report(&self) -> io::Result<bool> {
        let mut bytes = [0; Report::SIZE];
        let size = sys::receive_now(self.control.get_ref().as_fd(), &mut bytes)?;
        match bytes.get(..size).and_then(Report::decode) {
            Some(Report::Started { pid }) => self.worker.set(Some(pid)),
            Some(Report::NotStarted { step, errno }) => {
                let error = io::Error::from_raw_os_error(errno);
                let what = format!("{}: cannot {}: {error}", self.program, sys::describe(step));
                self.set_exit(Exit { ending: Ending::NotStarted(what), max_rss_kib: 0, cpu: Duration::ZERO });
            }
            Some(Report::Ended { status, max_rss_kib, cpu_us, .. }) => self.set_exit(Exit {
                ending: ending_of(status),
                max_rss_kib: u64::try_from(max_rss_kib).unwrap_or(0),
                cpu: Duration::from_micros(u64::try_from(cpu_us).unwrap_or(0)),
            }),
            None => return Ok(false),
        }
        self.changed.notify_waiters();
        Ok(true)
    }

    pub(super) fn is_worker(&self, pid: i32) -> bool {
        self.worker.get() == Some(pid) && self.exit.borrow().is_none()
    }

    /// The first exit that is heard of is the worker's.
    pub(super) fn set_exit(&self, exit: Exit) {
        self.exit.borrow_mut().get_or_insert(exit);
        self.changed.notify_waiters();
    }

    pub(super) fn set_gone(&self) {
        // Only a keeper that was killed can have left us without news of its worker, which the kernel then killed with it.
        let killed = Ending::Signaled { signal: libc::SIGKILL };
        self.set_exit(Exit { ending: killed, max_rss_kib: 0, cpu: Duration::ZERO });
        self.gone.set(true);
        self.changed.notify_waiters();
    }

    pub(super) fn kill(&self) {
        if !self.gone.get() && self.killed_at.get().is_none() {
            self.killed_at.set(Some(Instant::now()));
            // If the keeper is dead the reaper kills what it left; if it does not act, the reaper kills the keeper.
            let _dead = sys::send_now(self.control.get_ref().as_fd(), &[sys::KILL]);
        }
    }

    pub(super) fn killed_at(&self) -> Option<Instant> {
        self.killed_at.get()
    }
}

pub(super) fn ending_of(status: i32) -> Ending {
    if libc::WIFSIGNALED(status) {
        Ending::Signaled { signal: libc::WTERMSIG(status) }
    } else {
        Ending::Exited { code: libc::WEXITSTATUS(status) }
    }
}
