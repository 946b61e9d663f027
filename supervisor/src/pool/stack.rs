//! Asks a worker where it is: one byte into a pipe, text out of another.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::process;

/// No shim needs longer; a runtime that cannot mark the end has ended after so much silence.
const QUIET: Duration = Duration::from_millis(50);
/// A stack is some kilobytes; what is beyond this is a handler's mischief.
const LIMIT: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Stack {
    request: OwnedFd,
    answer: AsyncFd<OwnedFd>,
}

impl Stack {
    /// Gives the worker's ends too: where it reads the request, where it writes the answer.
    pub(super) fn new() -> io::Result<(Self, [OwnedFd; 2])> {
        let (request_read, request) = pipe2(OFlag::O_CLOEXEC)?;
        // A worker that does not read must not make us wait.
        fcntl(&request, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (answer, answer_write) = process::pipe_pair()?;
        let answer = process::readiness(answer)?;
        Ok((Self { request, answer }, [request_read, answer_write]))
    }

    /// The stack as the shim tells it, without lines that name a file below `runtime_dir`; `None` if nothing came by `until`.
    pub(super) async fn ask(&self, until: Instant, runtime_dir: &str) -> Option<String> {
        nix::unistd::write(&self.request, b"?").ok()?;
        let mut text = Vec::new();
        let mut quiet = until;
        while text.len() < LIMIT {
            let ready = tokio::time::timeout_at(quiet.min(until), self.answer.readable()).await;
            let Ok(Ok(mut guard)) = ready else { break };
            let mut buffer = [0; 4096];
            match nix::unistd::read(self.answer.get_ref(), &mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    text.extend_from_slice(buffer.get(..n).unwrap_or_default());
                    if text.last() == Some(&0) {
                        break;
                    }
                    quiet = Instant::now() + QUIET;
                }
                Err(nix::errno::Errno::EAGAIN) => guard.clear_ready(),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        let text = String::from_utf8_lossy(&text);
        let kept: Vec<_> =
            text.trim_end_matches('\0').split('\n').filter(|line| !line.contains(runtime_dir)).collect();
        let text = kept.join("\n").replace('\0', "\n").trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}
