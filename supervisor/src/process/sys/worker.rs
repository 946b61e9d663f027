//! What happens between fork and exec of a worker.
//!
//! The child shares the keeper's memory and the keeper stands still until the exec (as with vfork): nothing is copied, and
//! what went wrong is simply left in memory. It runs on a stack of its own and makes only system calls.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;

use super::{Plan, keeper};

const STACK_SIZE: usize = 32 * 1024;

/// A worker whose program runs.
pub(super) struct Born {
    pub(super) pid: i32,
    /// Whether the out-of-memory killer already knows that it may take this one first.
    pub(super) expendable: bool,
}

/// Which step failed, and its errno.
pub(super) type Failure = (i32, i32);

#[derive(Clone, Copy)]
#[repr(i32)]
enum Step {
    Fork = 1,
    Parent,
    Identity,
    Capabilities,
    Folder,
    Privileges,
    Landlock,
    Descriptors,
    Run,
}

/// What a failed step was to do, for people. `Run` has no name here: the program's is better.
pub(in crate::process) fn describe(step: i32) -> &'static str {
    const NAMES: [(Step, &str); 8] = [
        (Step::Fork, "fork"),
        (Step::Parent, "keep the keeper as parent"),
        (Step::Identity, "take another uid"),
        (Step::Capabilities, "drop capabilities"),
        (Step::Folder, "enter the function's folder"),
        (Step::Privileges, "give up new privileges"),
        (Step::Landlock, "enter the Landlock ruleset"),
        (Step::Descriptors, "arrange the descriptors"),
    ];
    NAMES.iter().find(|(known, _)| *known as i32 == step).map_or("run the program", |(_, name)| name)
}

/// The keeper could not do its part; the reason is in errno.
pub(super) fn no_fork() -> Failure {
    // SAFETY: only reads.
    (Step::Fork as i32, unsafe { errno() })
}

struct Birth<'a> {
    plan: &'a Plan,
    keeper: i32,
    failure: Option<Failure>,
    expendable: bool,
}

/// Starts the worker; when this returns, its program runs or has failed to.
///
/// # Safety
/// Only as a keeper, with all signals blocked.
pub(super) unsafe fn start(plan: &Plan) -> Result<Born, Failure> {
    let mut stack = MaybeUninit::<[u8; STACK_SIZE]>::uninit();
    // SAFETY: the child runs on its own stack, of which `top` is the aligned end, and only until its exec or exit, while this
    // function stands still: `birth` and `stack` outlive its use of them, and nobody else writes to this memory.
    unsafe {
        let mut birth = Birth { plan, keeper: libc::getpid(), failure: None, expendable: false };
        let end = stack.as_mut_ptr().cast::<u8>().add(STACK_SIZE);
        let top = end.sub(end.addr() % 16);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(run, top.cast(), flags, (&raw mut birth).cast());
        if pid < 0 {
            return Err(no_fork());
        }
        match birth.failure {
            None => Ok(Born { pid, expendable: birth.expendable }),
            Some(failure) => {
                libc::waitpid(pid, ptr::null_mut(), 0);
                Err(failure)
            }
        }
    }
}

extern "C" fn run(birth: *mut c_void) -> c_int {
    // SAFETY: `start` passes its `Birth` and does not touch it until we are gone.
    unsafe {
        let birth = &mut *birth.cast::<Birth>();
        birth.expendable = write_file(c"/proc/self/oom_score_adj".as_ptr(), b"1000");
        let Err(step) = become_worker(birth.plan, birth.keeper);
        birth.failure = Some((step as i32, errno()));
    }
    keeper::exit(127)
}

/// The order matters: a change of uid clears the death signal and needs capabilities, Landlock needs either a capability or
/// `no_new_privs`, and signals are let in only when no handler of the supervisor is left.
unsafe fn become_worker(plan: &Plan, keeper: i32) -> Result<std::convert::Infallible, Step> {
    // SAFETY: system calls with plain integers, C strings and arrays of `plan`, and plain data on this stack.
    unsafe {
        libc::setsid();
        drop_bounding_set();
        if let Some(identity) = plan.identity {
            let (uid, gid) = (c_long::from(identity.uid), c_long::from(identity.gid));
            // The raw calls: those of the C library would tell all threads that it believes to have.
            require(libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()), Step::Identity)?;
            require(libc::syscall(libc::SYS_setresgid, gid, gid, gid), Step::Identity)?;
            require(libc::syscall(libc::SYS_setresuid, uid, uid, uid), Step::Identity)?;
        }
        drop_capabilities()?;
        require(c_long::from(libc::chdir(plan.dir.as_ptr())), Step::Folder)?;
        require(c_long::from(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)), Step::Privileges)?;
        if let Some(ruleset) = plan.ruleset {
            require(
                libc::syscall(libc::SYS_landlock_restrict_self, c_long::from(ruleset), 0),
                Step::Landlock,
            )?;
        }
        let mut count = 0;
        for fd in &plan.fds {
            require(c_long::from(libc::dup2(*fd, count)), Step::Descriptors)?;
            count += 1;
        }
        keeper::close_from(count);
        // All of them, those too that the C library keeps for itself and would not let us change: `struct sigaction` of zeros.
        let default = [0_u64; 4];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), 8);
        }
        // Only the death of the keeper raises it, and it may have died before this line.
        require(c_long::from(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)), Step::Parent)?;
        if libc::getppid() != keeper {
            return Err(Step::Parent);
        }
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execve(plan.program.as_ptr(), plan.arguments.as_ptr(), plan.environment.as_ptr());
        Err(Step::Run)
    }
}

/// Takes away what a program run by root would get back at its exec. Not allowed without privileges, and not needed then.
unsafe fn drop_bounding_set() {
    for capability in 0..64 {
        // SAFETY: plain integers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            break;
        }
    }
}

unsafe fn drop_capabilities() -> Result<(), Step> {
    // `struct __user_cap_header_struct` and two `__user_cap_data_struct` of capset(2), version 3.
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: plain integers, and arrays of the kernel's layout.
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        require(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()), Step::Capabilities)
    }
}

fn require(result: c_long, step: Step) -> Result<(), Step> {
    if result < 0 { Err(step) } else { Ok(()) }
}

/// Writes a small file that is there; false if that cannot be done.
pub(super) unsafe fn write_file(path: *const c_char, text: &[u8]) -> bool {
    // SAFETY: the caller gives a C string; pointer and length are those of a slice.
    unsafe {
        let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return false;
        }
        let written = libc::write(fd, text.as_ptr().cast(), text.len());
        libc::close(fd);
        usize::try_from(written) == Ok(text.len())
    }
}

unsafe fn errno() -> i32 {
    // SAFETY: the C library's errno of this thread, which the child shares with the keeper.
    unsafe { *libc::__errno_location() }
}
