//! The one place that waits for children.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::cage::Cage;
use super::family::{Exit, Family, Kin, ending_of};
use super::signals::{Caught, Queue, Signals};
use super::{sys, tree};

/// A keeper that was told to kill its family and has not done so within this time is killed itself: it may have been stopped.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look again at what is being killed and gives no sign.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a worker is started with.
#[derive(Debug)]
pub struct Launch {
    /// The program and its arguments. A name without a slash is looked up in the `PATH` of `env`.
    pub program: Vec<OsString>,
    /// Where it starts.
    pub dir: PathBuf,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// These become descriptors 3, 4, …
    pub fds: Vec<OwnedFd>,
}

/// Starts workers, hears the signals, and buries the dead: keepers and what their deaths leave.
#[derive(Debug)]
pub struct Reaper {
    null: File,
    keepers: RefCell<BTreeMap<i32, Rc<Kin>>>,
    /// Families whose keeper was killed: what is left of them are our children now.
    bereft: RefCell<Vec<Rc<Kin>>>,
    orphans: sys::Counter,
    lost_keepers: Cell<u64>,
    signals: Rc<Queue>,
    attention: Notify,
}

impl Reaper {
    /// Makes this process a subreaper whose memory is nobody else's to read, and takes over SIGCHLD, SIGTERM and SIGINT.
    /// Must run inside a `LocalSet`, before other threads are started, and once in a process: nothing else may wait for
    /// children.
    pub fn start() -> io::Result<Rc<Reaper>> {
        sys::become_supervisor()?;
        let signals = sys::readiness(sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT])?)?;
        let reaper = Rc::new(Reaper {
            null: File::open("/dev/null")?,
            keepers: RefCell::default(),
            bereft: RefCell::default(),
            orphans: sys::Counter::new()?,
            lost_keepers: Cell::default(),
            signals: Rc::default(),
            attention: Notify::new(),
        });
        tokio::task::spawn_local(Rc::clone(&reaper).hear(signals));
        tokio::task::spawn_local(Rc::clone(&reaper).look_after());
        Ok(reaper)
    }

    /// Starts a worker. What goes wrong after the fork shows as [`Ending::NotStarted`](super::Ending::NotStarted).
    ///
    /// # Errors
    /// The program cannot be found, or there are no descriptors or processes left; trying again later can help with the latter.
    pub fn spawn(self: &Rc<Self>, cage: &Cage, launch: Launch) -> io::Result<Family> {
        let name = launch.program.first().ok_or_else(|| invalid("the command of the worker is empty"))?;
        let path = find_program(name, &launch.env)?;
        let mut fds = vec![self.null.try_clone()?.into(), launch.stdout, launch.stderr];
        fds.extend(launch.fds);
        let fds = out_of_the_way(fds)?;
        let environment = launch.env.into_iter().map(|(name, value)| {
            c_string([name, value].join(OsStr::new("=")).into_vec(), "a variable of the worker's environment")
        });
        let arguments =
            launch.program.iter().map(|a| c_string(a.as_bytes().to_vec(), "the worker's command"));
        let (ours, theirs) = sys::socket_pair(libc::SOCK_SEQPACKET)?;
        let plan = sys::Plan {
            program: c_string(path.as_os_str().as_bytes().to_vec(), "the worker's program")?,
            arguments: sys::Strings::new(arguments.collect::<io::Result<_>>()?),
            environment: sys::Strings::new(environment.collect::<io::Result<_>>()?),
            dir: c_string(launch.dir.into_os_string().into_vec(), "the function's folder")?,
            fds: fds.iter().map(AsRawFd::as_raw_fd).collect(),
            control: theirs.as_raw_fd(),
            ruleset: cage.ruleset().map(|fd| fd.as_raw_fd()),
            identity: cage.identity(),
            orphans: self.orphans.as_ptr(),
        };
        // What can fail must fail before there is a keeper.
        let ours = sys::readiness(ours)?;
        let keeper = sys::fork_keeper(&plan)?;
        let kin = Rc::new(Kin::new(keeper, path.display().to_string(), ours));
        self.keepers.borrow_mut().insert(keeper, Rc::clone(&kin));
        let listener = Rc::clone(&kin);
        tokio::task::spawn_local(async move { listener.listen().await });
        Ok(Family { kin, reaper: Rc::clone(self) })
    }

    /// SIGTERM and SIGINT to this process.
    pub fn signals(&self) -> Signals {
        Signals::new(Rc::clone(&self.signals))
    }

    /// Whether `pid` is a worker of ours or descends from one.
    pub fn is_descendant(&self, pid: i32) -> bool {
        i32::try_from(std::process::id()).is_ok_and(|me| pid > 0 && tree::descends_from(pid, me))
    }

    /// How many processes, workers aside, had lost their parent and were buried by a keeper or by us.
    pub fn orphans_reaped(&self) -> u64 {
        self.orphans.get()
    }

    /// How many keepers were killed, by someone else or because they stood still. Worth a warning: it should not happen.
    pub fn lost_keepers(&self) -> u64 {
        self.lost_keepers.get()
    }

    /// Wakes the task that sees to it that what is to be killed dies.
    pub(super) fn attend(&self) {
        self.attention.notify_one();
    }

    async fn hear(self: Rc<Self>, signals: AsyncFd<OwnedFd>) {
        while let Ok(mut ready) = signals.readable().await {
            match sys::read_signal(signals.get_ref().as_fd()) {
                Ok(arrived) if arrived.signal == libc::SIGCHLD => self.bury(),
                // A sender that is gone already cannot be judged; where the kernel scopes signals none gets here from a cage.
                Ok(sys::Arrived { signal, sender }) if !self.is_descendant(sender) => {
                    self.signals.push(Caught { signal, sender });
                }
                Ok(_) => {}
                Err(_) => ready.clear_ready(),
            }
        }
    }

    /// Buries all dead children. SIGCHLDs coalesce, so there may be more than one, or none.
    fn bury(&self) {
        while let Some(dead) = sys::wait_any() {
            let keeper = self.keepers.borrow_mut().remove(&dead.pid);
            if let Some(kin) = keeper {
                kin.take_last_reports();
                // A keeper exits with 0 when it has no child left, and in no other way by itself.
                if dead.status == 0 {
                    kin.set_gone();
                } else {
                    self.lost_keepers.set(self.lost_keepers.get() + 1);
                    self.bereft.borrow_mut().push(kin);
                }
            } else {
                self.settle_orphan(dead);
            }
        }
        self.kill_bereft();
    }

    fn settle_orphan(&self, dead: sys::Dead) {
        let bereft = self.bereft.borrow();
        let keepers = self.keepers.borrow();
        match bereft.iter().chain(keepers.values()).find(|kin| kin.is_worker(dead.pid)) {
            Some(kin) => kin.set_exit(Exit {
                ending: ending_of(dead.status),
                max_rss_kib: dead.max_rss_kib,
                cpu: dead.cpu,
            }),
            None => self.orphans.add_one(),
        }
    }

    /// Kills what killed keepers have left us: all children that are no keepers. Only we can bury them, so their pids are theirs.
    fn kill_bereft(&self) {
        if self.bereft.borrow().is_empty() {
            return;
        }
        let Ok(me) = i32::try_from(std::process::id()) else { return };
        let mut orphans = tree::children(me);
        orphans.retain(|pid| !self.keepers.borrow().contains_key(pid));
        if orphans.is_empty() {
            self.bereft.take().iter().for_each(|kin| kin.set_gone());
        }
        for pid in orphans {
            sys::kill_child(pid, libc::SIGKILL);
        }
        self.attend();
    }

    /// No signal tells of a live orphan, nor of a keeper that stands still: look again as long as something should be dying.
    async fn look_after(self: Rc<Self>) {
        loop {
            self.attention.notified().await;
            while self.is_killing() {
                self.bury();
                self.kill_idle_keepers();
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    fn is_killing(&self) -> bool {
        !self.bereft.borrow().is_empty()
            || self.keepers.borrow().values().any(|kin| kin.killed_at().is_some())
    }

    fn kill_idle_keepers(&self) {
        for (pid, kin) in self.keepers.borrow().iter() {
            if kin.killed_at().is_some_and(|since| since.elapsed() > KEEPER_PATIENCE) {
                sys::kill_child(*pid, libc::SIGKILL);
            }
        }
    }
}

/// Copies those descriptors that would be in the way of the worker's numbers to higher ones.
fn out_of_the_way(fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let least = i32::try_from(fds.len()).map_err(io::Error::other)?;
    let moved = fds
        .into_iter()
        .map(|fd| if fd.as_raw_fd() < least { sys::duplicate_above(fd.as_fd(), least) } else { Ok(fd) });
    moved.collect()
}

/// As execvp(3) does it, but before the fork, so that the error can say where was looked.
fn find_program(name: &OsStr, env: &[(OsString, OsString)]) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let own = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let path = own.unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| {
        let (name, path) = (name.display(), path.display());
        io::Error::new(io::ErrorKind::NotFound, format!("{name}: no such program in PATH ({path})"))
    })
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn c_string(bytes: Vec<u8>, what: &str) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| invalid(&format!("{what} holds a null byte")))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_in_the_workers_path() {
        let env = [("PATH".into(), "/nowhere:/bin".into())];
        assert_eq!(find_program(OsStr::new("sh"), &env).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find_program(OsStr::new("./x"), &env).unwrap(), Path::new("./x"));
        let error = find_program(OsStr::new("no-such-thing"), &env).unwrap_err().to_string();
        assert!(error.contains("no-such-thing") && error.contains("/nowhere:/bin"), "{error}");
    }

    #[test]
    fn descriptors_end_up_above_the_workers_numbers() {
        let fds: Vec<OwnedFd> = (0..20).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let moved = out_of_the_way(fds).unwrap();
        assert_eq!(moved.len(), 20);
        assert!(moved.iter().all(|fd| fd.as_raw_fd() >= 20));
    }
}
