//! Connections to supervisors that wait for the next call.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use sless_backend::Endpoint;
use tokio::net::{TcpStream, UnixStream};

use super::upstream::{Io, Upstream};

/// Idle connections of one supervisor; more are closed.
const IDLE_MAX: usize = 256;
/// Idle for so long: closed.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// With the moment since which each waits. Boxed, so that a call moves pointers about.
type Idle = HashMap<Endpoint, Vec<(Box<Upstream>, Instant)>>;

#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<Idle>,
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is ready for a call: the one that was used last, else a new one.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> io::Result<Box<Upstream>> {
        loop {
            let Some((mut upstream, _)) = self.idle().get_mut(endpoint).and_then(Vec::pop) else { break };
            if upstream.is_usable().await {
                return Ok(upstream);
            }
        }
        let io: Io = match endpoint {
            Endpoint::Unix { path, .. } => Io::new(UnixStream::connect(path).await?),
            Endpoint::Tcp { addr, .. } => Io::new(tcp(*addr).await?),
        };
        Upstream::open(TokioIo::new(io)).await
    }

    pub(super) fn put(&self, endpoint: &Endpoint, upstream: Box<Upstream>) {
        let mut idle = self.idle();
        let now = Instant::now();
        match idle.get_mut(endpoint) {
            Some(waiting) if waiting.len() < IDLE_MAX => waiting.push((upstream, now)),
            Some(_) => {}
            None => {
                idle.insert(endpoint.clone(), vec![(upstream, now)]);
            }
        }
    }

    pub(super) fn sweep(&self) {
        self.idle().retain(|_, waiting| {
            waiting.retain(|(_, since)| since.elapsed() < IDLE_FOR);
            !waiting.is_empty()
        });
    }
}

async fn tcp(addr: std::net::SocketAddr) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(addr)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection to the admin port, used once.
pub(super) async fn open_admin(endpoint: &Endpoint) -> io::Result<Box<Upstream>> {
    let io: Io = match endpoint {
        Endpoint::Unix { admin, .. } => Io::new(UnixStream::connect(admin).await?),
        Endpoint::Tcp { admin, .. } => Io::new(tcp(*admin).await?),
    };
    Upstream::open(TokioIo::new(io)).await
}

/// Before a call is offered again: time for a replacement to show up.
pub(super) fn pause(attempt: usize) -> Duration {
    Duration::from_millis(5 << attempt.min(6))
}
