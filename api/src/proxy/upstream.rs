//! One connection to a supervisor.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use sless_backend::Endpoint;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::CallBody;
use super::loads::Load;
use super::pool::Pool;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A supervisor's stream. One that answers before it has read the whole request may stop reading and close: writing then fails
/// while its answer still waits to be read, so what can't be written any more is thrown away.
pub(super) struct Io {
    stream: Box<dyn Duplex>,
    deaf: bool,
}

impl Io {
    pub(super) fn new(stream: impl Duplex + 'static) -> Self {
        Self { stream: Box::new(stream), deaf: false }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bufs.iter().map(|buf| buf.len()).sum();
        if self.deaf {
            return Poll::Ready(Ok(all));
        }
        match Pin::new(&mut self.stream).poll_write_vectored(cx, bufs) {
            Poll::Ready(Err(error))
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                self.deaf = true;
                Poll::Ready(Ok(all))
            }
            other => other,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The two halves that hyper makes of a connection, kept together: whoever waits for the answer drives the connection.
pub(super) struct Upstream {
    sender: SendRequest<CallBody>,
    connection: Connection<TokioIo<Io>, CallBody>,
    /// It has ended; driving it again is not allowed.
    ended: bool,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Why there is no answer.
pub(super) enum SendError {
    /// Nothing of the request has been written; it may be sent elsewhere.
    NotSent(Box<Request<CallBody>>),
    /// The supervisor may have taken the call.
    Broken(String),
}

impl Upstream {
    pub(super) async fn open(io: TokioIo<Io>) -> io::Result<Box<Self>> {
        let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
        Ok(Box::new(Self { sender, connection, ended: false }))
    }

    /// Lets the connection read and write.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended && Pin::new(&mut self.connection).poll(cx).is_ready() {
            self.ended = true;
        }
    }

    /// Whether it is still open and has finished its last call.
    pub(super) async fn is_usable(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            if self.ended {
                return Poll::Ready(false);
            }
            // What has been answered whole is over after one turn; one that is not can't be used.
            Poll::Ready(matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(()))))
        })
        .await
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&mut self, request: Request<CallBody>) -> Result<Response<Incoming>, SendError> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let result = poll_fn(|cx| {
            // The connection first: it writes the request, and reads what makes the answer ready.
            if !self.ended && Pin::new(&mut self.connection).poll(cx).is_ready() {
                self.ended = true;
            }
            answer.as_mut().poll(cx)
        })
        .await;
        result.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::NotSent(Box::new(request)),
            None => SendError::Broken(crate::problem::chain(error.error())),
        })
    }
}

/// Where a connection came from, and goes back to.
pub(super) struct Home {
    pub(super) pool: Arc<Pool>,
    /// Held while the call runs, so that the backend does not drain the supervisor under it.
    pub(super) lease: Arc<[Endpoint]>,
    /// Which one of them.
    pub(super) index: usize,
    /// The request's body was streamed, so the answer may come before all of it was taken.
    pub(super) streamed: bool,
    /// The call is counted for as long as it runs.
    #[expect(dead_code, reason = "it only has to live")]
    pub(super) load: Option<Load>,
}

/// The body of an answer as it comes. Read to its end, the connection goes back to the pool.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    upstream: Option<Box<Upstream>>,
    whole: bool,
    /// How it broke off, while what came before is being written.
    cut: Option<hyper::Error>,
    home: Home,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, upstream: Box<Upstream>, home: Home) -> Self {
        Self { incoming, upstream: Some(upstream), whole: false, cut: None, home }
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").field("whole", &self.whole).finish_non_exhaustive()
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        if let Some(error) = this.cut.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let mut frame = Pin::new(&mut this.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some(upstream) = &mut this.upstream
        {
            upstream.drive(cx);
            frame = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        match frame {
            Poll::Ready(None) => this.whole = true,
            Poll::Ready(Some(Err(error))) => {
                // An error makes hyper drop what it has not written yet; before that it writes when there is nothing to do.
                this.cut = Some(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.whole || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            return;
        }
        let Some(mut upstream) = self.upstream.take() else { return };
        if self.home.streamed {
            // Answered before all of the request was taken, it is of no use; whoever still sends must hear of that now.
            upstream.drive(&mut Context::from_waker(Waker::noop()));
            upstream.ended |= !upstream.sender.is_ready();
        }
        if !upstream.ended
            && let Some(endpoint) = self.home.lease.get(self.home.index)
        {
            self.home.pool.put(endpoint, upstream);
        }
    }
}
