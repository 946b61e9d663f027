//! Where supervisors deliver their records: never on a public listener.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{StartError, serve};
use crate::config::Listen;
use crate::ingest::Ingest;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Takes records on `listen` until `stop`; the batches that are on their way then are stored and answered.
pub(super) async fn listen(
    ingest: Arc<Ingest>,
    listen: &Listen,
    senders: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(), StartError> {
    let (listener, at) = match listen {
        Listen::Tcp(addr) => (TcpListener::bind(addr).await.map(Listener::Tcp), addr.to_string()),
        Listen::Unix(path) => (bind(path).map(Listener::Unix), path.display().to_string()),
    };
    let listener =
        listener.map_err(|source| StartError::Listen { what: "API_INTERNAL_LISTEN", at, source })?;
    senders.spawn(take(listener, ingest, senders.clone(), stop.clone()));
    Ok(())
}

/// An old socket is in the way also when nobody listens on it any more.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

async fn take(listener: Listener, ingest: Arc<Ingest>, senders: TaskTracker, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok(stream) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let ingest = ingest.clone();
        let service = service_fn(move |request| {
            let ingest = ingest.clone();
            async move { Ok::<_, Infallible>(ingest.handle(request).await) }
        });
        senders.spawn(serve(TokioIo::new(stream), service, stop.clone()));
    }
}
