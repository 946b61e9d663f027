//! What a worker and the supervisor talk through.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::unix::AsyncFd;

use super::sys;

/// As much as one large body.
const SOCKET_BUFFER: usize = 1 << 20;

/// Lets the runtime, inside of which this must be called, tell when a descriptor that does not block can be read or written.
pub fn readiness(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    sys::readiness(fd)
}

/// A pipe, close-on-exec: the end to read from, which never blocks, and the end to write to, which does.
pub fn pipe_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = sys::pipe()?;
    sys::set_nonblocking(reader.as_fd())?;
    Ok((reader, writer))
}

/// A pair of stream sockets, close-on-exec: ours, which never blocks, and the worker's, which does.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = sys::socket_pair(libc::SOCK_STREAM)?;
    // The kernel gives what it allows (net.core.wmem_max): fewer turns for large bodies. Empty buffers cost nothing.
    for end in [&ours, &theirs] {
        let _ = setsockopt(end, sockopt::SndBuf, &SOCKET_BUFFER);
    }
    sys::set_nonblocking(ours.as_fd())?;
    Ok((ours, theirs))
}

/// Memory that a worker shares with the supervisor. Offsets are the supervisor's own; one outside of it is a bug and panics.
#[derive(Debug)]
pub struct SharedPage {
    file: OwnedFd,
    memory: sys::Mapping,
}

impl SharedPage {
    /// `size` bytes of zeros. The worker can write to it but not change its size.
    pub fn new(size: usize) -> io::Result<SharedPage> {
        let (file, memory) = sys::Mapping::file(size)?;
        Ok(SharedPage { file, memory })
    }

    /// The file to hand to the worker.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The number at `offset`, which is a multiple of 4, in this machine's byte order.
    pub fn read_u32(&self, offset: usize) -> u32 {
        self.memory.load_u32(offset)
    }

    pub fn write_u32(&self, offset: usize, value: u32) {
        self.memory.store_u32(offset, value);
    }

    pub fn read_u8(&self, offset: usize) -> u8 {
        self.memory.load_u8(offset)
    }

    pub fn write_u8(&self, offset: usize, value: u8) {
        self.memory.store_u8(offset, value);
    }
}
