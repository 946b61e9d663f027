//! Sockets: binding them, who is at the other end, and connections that come to an end when we drain.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

use crate::config::Listen;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    Network(SocketAddr),
    /// The process that started us, on a unix socket.
    Host,
    /// Another process, on a unix socket.
    Stranger,
}

impl Peer {
    pub(super) fn ip(&self) -> String {
        match self {
            Self::Network(address) => address.ip().to_canonical().to_string(),
            Self::Host | Self::Stranger => String::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, host: i32 },
}

/// Opens the socket. `host` is the process that is believed on unix sockets.
pub(crate) async fn bind(listen: &Listen, host: i32) -> io::Result<Listener> {
    match listen {
        Listen::Tcp(address) => TcpListener::bind(address).await.map(Listener::Tcp),
        Listen::Unix(path) => {
            // One that a predecessor left would refuse us its name.
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            Ok(Listener::Unix { listener: UnixListener::bind(path)?, host })
        }
    }
}

/// Connections that are open, and the word that they shall end.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Cell<usize>,
    ending: Cell<bool>,
    changed: Notify,
}

impl Connections {
    /// Each connection ends after the answer that it is at; idle ones end now. Waits for that, but not for ever.
    pub(crate) async fn end(&self, limit: Duration) {
        self.ending.set(true);
        self.changed.notify_waiters();
        let all = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.open.get() == 0 {
                    return;
                }
                changed.await;
            }
        };
        drop(tokio::time::timeout(limit, all).await);
    }
}

/// Accepts connections for ever, each in a task of its own.
pub(crate) async fn accept<F, Fut, B>(listener: Listener, connections: Rc<Connections>, serve: F)
where
    F: Fn(Request<Incoming>, Peer) -> Fut + Clone + 'static,
    Fut: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    loop {
        let accepted = match &listener {
            Listener::Tcp(tcp) => tcp.accept().await.map(|(stream, address)| {
                // An answer is written at once; waiting for more of it would only delay it.
                drop(stream.set_nodelay(true));
                spawn(stream, Peer::Network(address), &connections, serve.clone());
            }),
            Listener::Unix { listener, host } => listener.accept().await.map(|(stream, _)| {
                let is_host = stream.peer_cred().ok().and_then(|c| c.pid()) == Some(*host);
                let peer = if is_host { Peer::Host } else { Peer::Stranger };
                spawn(stream, peer, &connections, serve.clone());
            }),
        };
        if let Err(error) = accepted {
            // Descriptors may be short for a moment; without a pause this would spin.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn spawn<S, F, Fut, B>(stream: S, peer: Peer, connections: &Rc<Connections>, serve: F)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    F: Fn(Request<Incoming>, Peer) -> Fut + 'static,
    Fut: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connections = connections.clone();
    connections.open.set(connections.open.get() + 1);
    tokio::task::spawn_local(async move {
        let service = service_fn(move |request| serve(request, peer.clone()));
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(super::HEAD_LIMIT).half_close(true);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        // Broken requests and callers that leave are their own affair: hyper has answered what can be answered.
        let ended = {
            let changed = connections.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if connections.ending.get() {
                false
            } else {
                loop {
                    tokio::select! {
                        _ = connection.as_mut() => break true,
                        () = changed.as_mut() => {
                            if connections.ending.get() {
                                break false;
                            }
                            changed.set(connections.changed.notified());
                        }
                    }
                }
            }
        };
        if !ended {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
        connections.open.set(connections.open.get() - 1);
        if connections.ending.get() {
            connections.changed.notify_waiters();
        }
    });
}
