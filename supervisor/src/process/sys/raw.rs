//! System calls without the C library's part in them.
//!
//! Its wrappers for calls that may block look into the thread's own block of memory and some of its variables; both are zero in a
//! keeper that has given back its memory. `syscall` itself only writes errno.

use std::ffi::{CStr, c_int, c_long};
use std::ptr;

/// A descriptor, or -1.
pub(super) fn open_at(folder: c_int, path: &CStr, flags: c_int) -> c_int {
    // SAFETY: a C string and plain integers.
    let fd = unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags | libc::O_CLOEXEC, 0) };
    c_int::try_from(fd).unwrap_or(-1)
}

pub(super) fn close(fd: c_int) {
    // SAFETY: a plain integer.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// How many bytes there were; 0 at the end and after an error.
pub(super) fn read(fd: c_int, buffer: &mut [u8]) -> usize {
    // SAFETY: pointer and length are those of a slice.
    let got = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
    usize::try_from(got).unwrap_or(0)
}

/// Records of a folder, as [`read`].
pub(super) fn read_folder(fd: c_int, buffer: &mut [u8]) -> usize {
    // SAFETY: pointer and length are those of a slice.
    let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) };
    usize::try_from(got).unwrap_or(0)
}

pub(super) fn send(fd: c_int, bytes: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let nobody = ptr::null::<libc::sockaddr>();
    // SAFETY: pointer and length are those of a slice; a connected socket needs no address.
    unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, nobody, 0) };
}

/// Waits until one of `fds` has news, or for `limit` if there is one.
pub(super) fn poll(fds: &mut [libc::pollfd], limit: Option<libc::timespec>) {
    let mut limit = limit;
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: pointers and length are those of a slice and of a value that lives through the call; no signal mask.
    unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, ptr::null::<c_long>(), 0) };
}

/// Buries a dead child: its pid, 0 if none is dead, less if there is none.
pub(super) fn bury(status: &mut c_int, usage: &mut libc::rusage) -> i32 {
    // SAFETY: both pointers are those of exclusive references.
    let pid = unsafe {
        libc::syscall(libc::SYS_wait4, -1, ptr::from_mut(status), libc::WNOHANG, ptr::from_mut(usage))
    };
    i32::try_from(pid).unwrap_or(-1)
}
