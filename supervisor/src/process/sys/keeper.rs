//! The keeper: a small process between the supervisor and one worker.
//!
//! It is a fork of the supervisor that never runs `exec`, so after the fork it may only make system calls: no allocation, no
//! lock, no panic. All that it needs is on its stack; the memory that it got from the supervisor it gives back at once.
//!
//! It buries whatever loses its parent below it, tells the supervisor how the worker ended, and kills all of them when
//! it is told to or when the supervisor is gone. Its direct children are the only processes that it signals: nobody
//! else can bury them, so their pids cannot have become somebody else's.

use std::ffi::{CStr, c_int, c_long};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Plan, raw, worker};

/// The one command that a keeper knows.
pub(in crate::process) const KILL: u8 = b'K';

/// Where the control socket and the signals are in a keeper; nothing else is open.
const CONTROL: c_int = 0;
const SIGNALS: c_int = 1;

/// How often to look for what has newly become a child, while killing.
const LOOK_AGAIN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// What a keeper tells the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) enum Report {
    Started {
        pid: i32,
    },
    /// `step` numbers what went wrong on the way to the worker's program (`worker::describe`).
    NotStarted {
        step: i32,
        errno: i32,
    },
    /// The worker itself has ended; `status` is that of wait(2).
    Ended {
        pid: i32,
        status: i32,
        max_rss_kib: i64,
        cpu_us: i64,
    },
}

impl Report {
    pub(in crate::process) const SIZE: usize = 40;

    fn encode(self) -> [i64; Self::SIZE / 8] {
        match self {
            Report::Started { pid } => [0, pid.into(), 0, 0, 0],
            Report::NotStarted { step, errno } => [1, step.into(), errno.into(), 0, 0],
            Report::Ended { pid, status, max_rss_kib, cpu_us } => {
                [2, pid.into(), status.into(), max_rss_kib, cpu_us]
            }
        }
    }

    /// `None` if these are not the bytes of a report.
    pub(in crate::process) fn decode(bytes: &[u8]) -> Option<Report> {
        let mut fields = [0; Self::SIZE / 8];
        let (words, rest) = bytes.as_chunks();
        if words.len() != fields.len() || !rest.is_empty() {
            return None;
        }
        for (field, word) in fields.iter_mut().zip(words) {
            *field = i64::from_ne_bytes(*word);
        }
        let [kind, first, second, max_rss_kib, cpu_us] = fields;
        let (first, second) = (i32::try_from(first).ok()?, i32::try_from(second).ok()?);
        match kind {
            0 => Some(Report::Started { pid: first }),
            1 => Some(Report::NotStarted { step: first, errno: second }),
            2 => Some(Report::Ended { pid: first, status: second, max_rss_kib, cpu_us }),
            _ => None,
        }
    }
}

/// Runs as the child of a fork, with all signals blocked, and never returns.
pub(super) fn run(plan: &Plan) -> ! {
    // SAFETY: system calls with plain integers, C strings and pointers to what lives on this stack or in `plan`, which
    // is this process's own copy.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"sless-keeper".as_ptr());
        libc::setsid();
        let signals = child_signals();
        let born = if signals < 0 { Err(worker::no_fork()) } else { worker::start(plan) };
        // The worker borrowed this memory until its exec, and a change of its uid makes that memory dumpable.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        match born {
            Ok(born) => {
                if !born.expendable {
                    make_expendable(born.pid);
                }
                report(plan.control, Report::Started { pid: born.pid });
                let orphans = plan.orphans;
                tidy(plan.control, signals);
                // The one who is to end the others must get a turn among many (fails without privileges, which is fine).
                libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, -5);
                forget_memory();
                Keeper { worker: born.pid, worker_buried: false, orphans }.live()
            }
            Err((step, errno)) => {
                report(plan.control, Report::NotStarted { step, errno });
                exit(0)
            }
        }
    }
}

struct Keeper {
    worker: i32,
    worker_buried: bool,
    orphans: *const AtomicU64,
}

impl Keeper {
    /// # Safety
    /// Only as a keeper: [`CONTROL`] and [`SIGNALS`] are open, and `orphans` points into a shared mapping.
    unsafe fn live(mut self) -> ! {
        let mut killing = false;
        loop {
            // SAFETY: as for this function; the sets are plain data on this stack.
            unsafe {
                if self.bury_the_dead() {
                    exit(0)
                }
                if killing {
                    self.kill_children();
                }
                let mut wait = [
                    libc::pollfd { fd: SIGNALS, events: libc::POLLIN, revents: 0 },
                    libc::pollfd { fd: if killing { -1 } else { CONTROL }, events: libc::POLLIN, revents: 0 },
                ];
                // No signal tells of a live process that has just become our child: look again soon.
                raw::poll(&mut wait, killing.then_some(LOOK_AGAIN));
                if wait[0].revents != 0 {
                    raw::read(SIGNALS, &mut [0; size_of::<libc::signalfd_siginfo>()]);
                }
                // A command or the end of the supervisor: there is only one thing to do.
                if wait[1].revents != 0 {
                    killing = true;
                }
            }
        }
    }

    /// Buries all dead children; true when there are no others either.
    unsafe fn bury_the_dead(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: both pointers are to plain data on this stack; the counter is in a shared mapping (see `live`).
            unsafe {
                let mut usage: libc::rusage = mem::zeroed();
                match raw::bury(&mut status, &mut usage) {
                    0 => return false,
                    pid if pid == self.worker && !self.worker_buried => {
                        self.worker_buried = true;
                        let (max_rss_kib, cpu_us) = (usage.ru_maxrss, super::cpu_micros(&usage));
                        report(CONTROL, Report::Ended { pid, status, max_rss_kib, cpu_us });
                    }
                    pid if pid > 0 => {
                        (*self.orphans).fetch_add(1, Relaxed);
                    }
                    _ => return true,
                }
            }
        }
    }

    unsafe fn kill_children(&self) {
        // SAFETY: plain integers. As long as the worker is not buried, its pid names its process group and nothing else. All of a
        // group are killed in one step, which no fork escapes.
        unsafe {
            if !self.worker_buried {
                libc::kill(-self.worker, libc::SIGKILL);
            }
            if !kill_listed_children() {
                kill_scanned_children();
            }
        }
    }
}

/// Kills the children that the kernel lists; false if it lists none (`CONFIG_PROC_CHILDREN` is off).
fn kill_listed_children() -> bool {
    let fd = raw::open_at(libc::AT_FDCWD, c"/proc/thread-self/children", libc::O_RDONLY);
    if fd < 0 {
        return false;
    }
    let (mut buffer, mut pid) = ([0_u8; 4096], 0_i32);
    loop {
        let got = raw::read(fd, &mut buffer);
        if got == 0 {
            break;
        }
        for byte in buffer.iter().take(got) {
            if byte.is_ascii_digit() {
                pid = pid.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'));
            } else {
                super::kill_child(pid, libc::SIGKILL);
                pid = 0;
            }
        }
    }
    super::kill_child(pid, libc::SIGKILL);
    raw::close(fd);
    true
}

/// Kills the children that a walk through `/proc` finds.
fn kill_scanned_children() {
    const LENGTH: usize = mem::offset_of!(libc::dirent64, d_reclen);
    const NAME: usize = mem::offset_of!(libc::dirent64, d_name);
    // SAFETY: takes nothing and cannot fail.
    let me = unsafe { libc::getpid() };
    let proc = raw::open_at(libc::AT_FDCWD, c"/proc", libc::O_RDONLY | libc::O_DIRECTORY);
    let mut buffer = [0_u8; 4096];
    loop {
        let got = raw::read_folder(proc, &mut buffer);
        if got == 0 {
            break;
        }
        let mut records = buffer.get(..got).unwrap_or_default();
        while let Some(&[low, high]) = records.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let name = records.get(NAME..length).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            if let Some(pid) = name.and_then(number)
                && parent_of(proc, pid) == Some(me)
            {
                super::kill_child(pid, libc::SIGKILL);
            }
            records = records.get(length.max(1)..).unwrap_or_default();
        }
    }
    raw::close(proc);
}

fn number(name: &CStr) -> Option<i32> {
    name.to_bytes().iter().try_fold(0_i32, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i32::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn parent_of(proc: c_int, pid: i32) -> Option<i32> {
    let mut path = [0_u8; 32];
    write_path(&mut path, b"", pid, b"/stat");
    let mut stat = [0_u8; 512];
    let fd = raw::open_at(proc, CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY);
    let got = raw::read(fd, &mut stat);
    raw::close(fd);
    let stat = stat.get(..got)?;
    // The name may hold anything but is the only thing in brackets: `12 (name) S 1 …`.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = stat.get(end + 4..)?;
    let digits = rest.split(|byte| *byte == b' ').next()?;
    digits.iter().try_fold(0_i32, |value, byte| value.checked_mul(10)?.checked_add(i32::from(*byte) - 48))
}

/// Writes `before`, `pid` and `after` to `path`, which is zero and has room for them.
fn write_path(path: &mut [u8], before: &[u8], pid: i32, after: &[u8]) {
    let (mut digits, mut count, mut rest) = ([0_u8; 10], 0, pid.unsigned_abs());
    for place in &mut digits {
        *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let text = before.iter().chain(digits.iter().take(count).rev()).chain(after);
    for (to, from) in path.iter_mut().zip(text) {
        *to = *from;
    }
}

/// Lets the kernel's out-of-memory killer take the worker first. The worker could not do it by itself: until its exec its
/// memory is the keeper's, cannot be dumped, and so its files in `/proc` are root's.
unsafe fn make_expendable(pid: i32) {
    let mut path = [0_u8; 40];
    write_path(&mut path, b"/proc/", pid, b"/oom_score_adj");
    // SAFETY: the path ends with a null byte.
    unsafe { worker::write_file(path.as_ptr().cast(), b"1000") };
}

unsafe fn child_signals() -> c_int {
    // SAFETY: the set is plain data on this stack. All signals are blocked already.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    }
}

/// Closes all but the two descriptors that a keeper needs, and puts those in their places.
unsafe fn tidy(control: c_int, signals: c_int) {
    // SAFETY: plain integers; nothing else in this process uses a descriptor.
    unsafe {
        let control = libc::fcntl(control, libc::F_DUPFD, 3);
        let signals = libc::fcntl(signals, libc::F_DUPFD, 3);
        libc::dup2(control, CONTROL);
        libc::dup2(signals, SIGNALS);
        close_from(2);
    }
}

/// Closes all descriptors from `first` on.
pub(super) unsafe fn close_from(first: c_int) {
    // SAFETY: plain integers, and a structure on this stack.
    unsafe {
        if libc::syscall(libc::SYS_close_range, c_long::from(first), c_long::from(u32::MAX), 0) == 0 {
            return;
        }
        // Linux before 5.9.
        let mut limit: libc::rlimit = mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let end = c_int::try_from(limit.rlim_max).unwrap_or(65_536).min(1 << 20);
        for fd in first..end {
            libc::close(fd);
        }
    }
}

/// Gives back the private memory that came from the supervisor: its pages, which would be copied when the supervisor
/// writes to its own, and its secrets. Kept are what belongs to the program's file and the stack.
unsafe fn forget_memory() {
    let here = 0_u8;
    let here = (&raw const here).addr();
    // The C library looks at its thread's descriptor in many a call (cancellation, errno, stack protector): in glibc and musl
    // `pthread_self` is its address, with the thread's variables just below it. In a static program it is on the heap.
    let thread = own_thread() & !0xfff;
    let kept = thread.saturating_sub(0x4000)..thread + 0x4000;
    // SAFETY: a C string and buffers with their own lengths. Of what is dropped nothing is used again: a keeper allocates nothing and
    // keeps its state on its stack, and of the C library uses what needs no variables (`raw`).
    unsafe {
        let fd = raw::open_at(libc::AT_FDCWD, c"/proc/self/maps", libc::O_RDONLY);
        let (mut buffer, mut filled, mut after) = ([0_u8; 4096], 0, 0);
        loop {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            let got = raw::read(fd, room);
            if got == 0 {
                break;
            }
            filled += got;
            let lines = buffer.get(..filled).unwrap_or_default();
            let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            for line in lines.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
                let Some((start, end, forgettable)) = mapping(line, after) else { continue };
                after = end;
                if forgettable && !(start..end).contains(&here) {
                    // Around what is kept; either part may be empty.
                    for (from, to) in [(start, end.min(kept.start)), (start.max(kept.end), end)] {
                        if from < to {
                            libc::madvise(ptr::without_provenance_mut(from), to - from, libc::MADV_DONTNEED);
                        }
                    }
                }
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
        raw::close(fd);
    }
}

/// Address of this thread's descriptor.
fn own_thread() -> usize {
    // SAFETY: no arguments, no failure.
    usize::try_from(unsafe { libc::pthread_self() }).unwrap_or(0)
}

/// A line of `/proc/self/maps` (proc_pid_maps(5)): where the mapping begins and ends, and whether it can be given back.
///
/// That are the heap and large writable private mappings of no file. One that begins where the mapping before it, of a file,
/// has ended (`after`) is the rest of a program's or library's variables: `memset` itself looks into those.
fn mapping(line: &[u8], after: usize) -> Option<(usize, usize, bool)> {
    const LARGE: usize = 128 * 1024;
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let (range, modes, _offset, _device, inode) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let mut bounds = range.split(|byte| *byte == b'-').map(hexadecimal);
    let (start, end) = (bounds.next()??, bounds.next()??);
    let private = inode == b"0" && modes.starts_with(b"rw") && modes.ends_with(b"p");
    let forgettable = match fields.next() {
        Some(name) => name == b"[heap]",
        None => end.checked_sub(start)? >= LARGE && start != after,
    };
    Some((start, end, private && forgettable))
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    digits.iter().try_fold(0_usize, |value, byte| {
        let digit = char::from(*byte).to_digit(16)?;
        value.checked_mul(16)?.checked_add(usize::try_from(digit).ok()?)
    })
}

fn report(control: c_int, report: Report) {
    let mut bytes = [0; Report::SIZE];
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(report.encode()) {
        *to = from.to_ne_bytes();
    }
    raw::send(control, &bytes);
}

/// Ends this process without running anything of the supervisor's.
pub(super) fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, c_long::from(code)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in [
            Report::Started { pid: 7 },
            Report::NotStarted { step: 3, errno: 2 },
            Report::Ended { pid: 7, status: 0x100, max_rss_kib: 5000, cpu_us: 12 },
        ] {
            let bytes: Vec<u8> = report.encode().iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(Report::decode(&bytes), Some(report));
            assert_eq!(Report::decode(&bytes[1..]), None);
        }
    }

    #[test]
    fn only_heap_and_large_private_memory_of_no_file_is_given_back() {
        let forgettable =
            |line: &str, after| mapping(line.as_bytes(), after).map(|(_, _, forgettable)| forgettable);
        assert_eq!(
            mapping(b"1000-2000 rw-p 00000000 00:00 0    [heap]", 0x1000),
            Some((0x1000, 0x2000, true))
        );
        assert_eq!(forgettable("100000-200000 rw-p 00000000 00:00 0 ", 0x1000), Some(true));
        assert_eq!(forgettable("100000-200000 rw-p 00000000 00:00 0 ", 0x100000), Some(false));
        for kept in [
            "100000-200000 rw-p 00000000 00:00 0        [stack]",
            "100000-200000 rw-p 00000000 fe:01 77       /bin/x",
            "100000-200000 r--p 00000000 00:00 0 ",
            "100000-200000 rw-s 00000000 00:01 77       /dev/zero (deleted)",
            "100000-101000 rw-p 00000000 00:00 0 ",
        ] {
            assert_eq!(forgettable(kept, 0), Some(false), "{kept}");
        }
        assert_eq!(forgettable("1000", 0), None);
    }

    #[test]
    fn a_path_in_proc_is_written_without_allocating() {
        let mut path = [0; 40];
        write_path(&mut path, b"/proc/", 40_321, b"/stat");
        assert_eq!(CStr::from_bytes_until_nul(&path).unwrap(), c"/proc/40321/stat");
        assert_eq!(number(c"40321"), Some(40_321));
        assert_eq!(number(c"self"), None);
    }

    #[test]
    fn the_parent_is_read_from_stat() {
        let proc = raw::open_at(libc::AT_FDCWD, c"/proc", libc::O_RDONLY | libc::O_DIRECTORY);
        let parent = parent_of(proc, i32::try_from(std::process::id()).unwrap());
        assert_eq!(parent.and_then(|pid| u32::try_from(pid).ok()), Some(std::os::unix::process::parent_id()));
    }
}
