//! Memory that is shared between processes.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

/// A shared mapping of whole pages; all access to it is atomic, as other processes write to it too.
#[derive(Debug)]
pub(in crate::process) struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

impl Mapping {
    /// A file in memory of `size` bytes, with its mapping. It is sealed: a process that holds it cannot
    /// change its size, which would kill us with SIGBUS.
    pub(in crate::process) fn file(size: usize) -> io::Result<(OwnedFd, Mapping)> {
        let length = libc::off_t::try_from(size).map_err(io::Error::other)?;
        // SAFETY: a C string and plain integers; the descriptor is new and ours.
        let fd = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            let fd = OwnedFd::from_raw_fd(super::checked(libc::memfd_create(c"sless".as_ptr(), flags))?);
            super::checked(libc::ftruncate(fd.as_raw_fd(), length))?;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            super::checked(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
            fd
        };
        let mapping = Mapping::map(size, libc::MAP_SHARED, Some(std::os::fd::AsFd::as_fd(&fd)))?;
        Ok((fd, mapping))
    }

    fn map(size: usize, flags: c_int, file: Option<BorrowedFd<'_>>) -> io::Result<Mapping> {
        let fd: RawFd = file.map_or(-1, |fd| fd.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(|start| Mapping { start, size }).ok_or_else(io::Error::last_os_error)
    }

    pub(in crate::process) fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.size, "offset {offset} in the shared page");
        // SAFETY: in bounds and aligned (checked above; a mapping begins at a page), and mapped as long as `self` lives.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }.load(SeqCst)
    }

    pub(in crate::process) fn store_u32(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.size, "offset {offset} in the shared page");
        // SAFETY: as in `load_u32`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }.store(value, SeqCst);
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.size, "offset {offset} in the shared page");
        // SAFETY: in bounds (checked above), and mapped as long as `self` lives.
        unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) }
    }

    pub(in crate::process) fn load_u8(&self, offset: usize) -> u8 {
        self.byte(offset).load(SeqCst)
    }

    pub(in crate::process) fn store_u8(&self, offset: usize, value: u8) {
        self.byte(offset).store(value, SeqCst);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// A number that the supervisor shares with all of its keepers.
#[derive(Debug)]
pub(in crate::process) struct Counter(Mapping);

impl Counter {
    pub(in crate::process) fn new() -> io::Result<Counter> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        Mapping::map(size_of::<u64>(), flags, None).map(Counter)
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: the mapping has room for it, begins at a page, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().cast()) }
    }

    /// For keepers: the number itself, which is where it is also when the memory that holds `self` is not.
    pub(in crate::process) fn as_ptr(&self) -> *const AtomicU64 {
        self.value()
    }

    pub(in crate::process) fn add_one(&self) {
        self.value().fetch_add(1, SeqCst);
    }

    pub(in crate::process) fn get(&self) -> u64 {
        self.value().load(SeqCst)
    }
}
