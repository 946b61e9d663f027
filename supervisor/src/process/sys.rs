//! System calls that no safe wrapper gives us. All unsafe code of the supervisor is in here and below.
#![expect(unsafe_code, reason = "system calls, and code that runs between fork and exec")]

mod keeper;
mod memory;
mod raw;
mod worker;

use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::io::unix::AsyncFd;

pub(super) use keeper::{KILL, Report};
pub(super) use memory::{Counter, Mapping};
pub(super) use worker::describe;

/// All that keeper and worker need, laid out before the fork: after it nothing may be allocated.
pub(super) struct Plan {
    pub(super) program: CString,
    pub(super) arguments: Strings,
    pub(super) environment: Strings,
    pub(super) dir: CString,
    /// What becomes 0, 1, 2, … in the worker. Each is at least `fds.len()`, so that no `dup2` overwrites one that is still needed.
    pub(super) fds: Vec<RawFd>,
    /// The keeper's end of the control socket.
    pub(super) control: RawFd,
    pub(super) ruleset: Option<RawFd>,
    pub(super) identity: Option<Identity>,
    pub(super) orphans: *const AtomicU64,
}

/// Who a worker is where Landlock cannot keep it from the supervisor's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A null-terminated array of C strings, as `execve` takes it.
pub(super) struct Strings {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Strings {
    pub(super) fn new(owned: Vec<CString>) -> Strings {
        let pointers = owned.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        Strings { pointers, _owned: owned }
    }

    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Forks a keeper, which starts the worker of `plan` and reports on its control socket.
pub(super) fn fork_keeper(plan: &Plan) -> io::Result<i32> {
    // SAFETY: the sets are plain data, filled before use. All signals are blocked across the fork, so that no handler of
    // the supervisor ever runs in the child. The raw call runs no atfork handlers and takes no locks; the child is
    // single-threaded, never returns from `run` and makes only system calls there.
    unsafe {
        let mut all = mem::zeroed();
        let mut before: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let pid = libc::syscall(libc::SYS_clone, c_long::from(libc::SIGCHLD), 0, 0, 0, 0);
        if pid == 0 {
            keeper::run(plan)
        }
        let result = checked_long(pid);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result.and_then(|pid| i32::try_from(pid).map_err(io::Error::other))
    }
}

/// Makes this process the new parent of orphaned descendants, and its memory and `/proc` entries nobody else's to read.
pub(super) fn become_supervisor() -> io::Result<()> {
    // SAFETY: prctl with plain integers.
    unsafe {
        checked(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
    }
    Ok(())
}

/// Blocks `signals` in this thread (and those it starts from now on) and gives a descriptor to read them from.
pub(super) fn signal_fd(signals: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: the set is plain data that lives through the calls; the descriptor is new and ours.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        let fd = checked(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// A signal and who sent it (0: the kernel, or someone outside this pid namespace).
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) signal: i32,
    pub(super) sender: i32,
}

/// The next signal that waits on `fd`.
pub(super) fn read_signal(fd: BorrowedFd<'_>) -> io::Result<Arrived> {
    // SAFETY: the buffer is plain data of exactly the size that is asked for.
    unsafe {
        let mut info: libc::signalfd_siginfo = mem::zeroed();
        let size = mem::size_of::<libc::signalfd_siginfo>();
        if checked_size(libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size))? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let signal = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
        // A pid is never larger than i32::MAX; what is not one is nobody's.
        Ok(Arrived { signal, sender: i32::try_from(info.ssi_pid).unwrap_or(0) })
    }
}

/// A child that has been waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dead {
    pub(super) pid: i32,
    pub(super) status: c_int,
    pub(super) max_rss_kib: u64,
    pub(super) cpu: Duration,
}

/// Buries one dead child, whichever; `None` when no child is dead, or none is left.
pub(super) fn wait_any() -> Option<Dead> {
    let mut status = 0;
    // SAFETY: both pointers are to plain data that lives through the call.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    (pid > 0).then(|| Dead {
        pid,
        status,
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        cpu: Duration::from_micros(u64::try_from(cpu_micros(&usage)).unwrap_or(0)),
    })
}

fn cpu_micros(usage: &libc::rusage) -> i64 {
    (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1_000_000
        + usage.ru_utime.tv_usec
        + usage.ru_stime.tv_usec
}

/// Sends `signal` to a child that only we can bury; its pid cannot be somebody else's.
pub(super) fn kill_child(pid: i32, signal: c_int) {
    if pid > 1 {
        // SAFETY: plain integers; a pid above 1 names one process.
        unsafe { libc::kill(pid, signal) };
    }
}

/// A handle on whatever process has this pid now.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; the descriptor is new, ours and close-on-exec.
    unsafe {
        let fd = checked_long(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(RawFd::try_from(fd).map_err(io::Error::other)?))
    }
}

pub(super) fn pidfd_send(pidfd: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    // SAFETY: a null siginfo asks the kernel to fill it as for kill(2).
    unsafe {
        let none = ptr::null::<libc::siginfo_t>();
        checked_long(libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0))?;
    }
    Ok(())
}

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: the array has room for two; both descriptors are new and ours.
    unsafe {
        checked(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

pub(super) fn socket_pair(kind: c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: the array has room for two; both descriptors are new and ours.
    unsafe {
        checked(libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// malloc_trim(3). Other C libraries give memory back by themselves.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers on a descriptor that is open.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK))?;
    }
    Ok(())
}

/// A close-on-exec copy of `fd` with a number of at least `least`.
pub(super) fn duplicate_above(fd: BorrowedFd<'_>, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; the descriptor is new and ours.
    unsafe {
        let fd = checked(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Lets the runtime watch a descriptor. Must run inside it.
pub(super) fn readiness(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor as long as it lives.
    unsafe { Ok(AsyncFd::register(fd)?) }
}

/// Sends without ever waiting or raising SIGPIPE.
pub(super) fn send_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pointer and length are those of a slice.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    checked_size(sent).map(drop)
}

/// Receives one packet without waiting; 0 is the end.
pub(super) fn receive_now(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a slice.
    let got =
        unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    checked_size(got)
}

pub(super) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn system_value(name: c_int, otherwise: u64) -> u64 {
    // SAFETY: a plain integer in and out.
    u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(otherwise)
}

pub(super) fn page_size() -> u64 {
    system_value(libc::_SC_PAGESIZE, 4096)
}

/// Clock ticks a second, the unit of times in `/proc/PID/stat`.
pub(super) fn clock_ticks() -> u64 {
    system_value(libc::_SC_CLK_TCK, 100).max(1)
}

/// The version of Landlock that this kernel has switched on, or why there is none.
pub(super) fn landlock_version() -> io::Result<u32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no attributes (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<RulesetAttributes>(), 0_usize, VERSION)
    };
    u32::try_from(checked_long(version)?).map_err(io::Error::other)
}

/// `struct landlock_ruleset_attr`. A kernel that is older takes it as long as what it does not know is zero.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RulesetAttributes {
    pub(super) handled_access_fs: u64,
    pub(super) handled_access_net: u64,
    pub(super) scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

pub(super) fn landlock_ruleset(attributes: RulesetAttributes) -> io::Result<OwnedFd> {
    let size = mem::size_of::<RulesetAttributes>();
    // SAFETY: the structure has the kernel's layout and the size that is given; the descriptor is new and ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0);
        Ok(OwnedFd::from_raw_fd(RawFd::try_from(checked_long(fd)?).map_err(io::Error::other)?))
    }
}

/// Allows `access` on what `path` names, and on all beneath it.
pub(super) fn landlock_allow(ruleset: BorrowedFd<'_>, path: BorrowedFd<'_>, access: u64) -> io::Result<()> {
    const PATH_BENEATH: c_int = 1;
    let rule = PathBeneath { allowed_access: access, parent_fd: path.as_raw_fd() };
    // SAFETY: the structure has the kernel's layout and lives through the call.
    let done = unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    };
    checked_long(done).map(drop)
}

/// Opens `path` only to name it; a symbolic link is named itself.
pub(super) fn open_path(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a C string; the descriptor is new and ours.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(checked(fd)?))
    }
}

fn checked(value: c_int) -> io::Result<c_int> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn checked_long(value: c_long) -> io::Result<c_long> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn checked_size(value: isize) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::Error::last_os_error())
}
