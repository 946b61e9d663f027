//! A worker process and the socket to it. A message is its length (4 bytes, big-endian) and that many bytes, each way.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;

unsafe extern "C" {
    fn dup2(from: i32, to: i32) -> i32;
}

/// Where the worker finds its end of the socket.
const WORKER_FD: i32 = 3;

/// Starts `command` with its end of a socket pair as descriptor 3. The child lives as long as this process.
pub fn spawn(command: &[&str]) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let theirs: OwnedFd = theirs.into();
    let fd = theirs.as_raw_fd();
    let mut child = Command::new(command[0]);
    child.args(&command[1..]);
    // SAFETY: between fork and exec only dup2 is called, which is async-signal-safe; it also clears close-on-exec on the copy.
    // By way of a high number, for `fd` may be 3 itself, where dup2 would do nothing.
    unsafe {
        child.pre_exec(move || {
            if dup2(fd, 63) < 0 || dup2(63, WORKER_FD) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let child = child.spawn()?;
    Ok((UnixStream::from_std(ours)?, child))
}

pub fn frame(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(4 + body.len());
    frame.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    frame.put_slice(body);
    frame.freeze()
}

pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let length = from.read_u32().await?;
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).await?;
    Ok(body.into())
}
