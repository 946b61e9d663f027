//! The bodies that pass through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::upstream::UpstreamBody;

/// What is read of a body that nobody wants, so that its sender gets to read why.
const LINGER_BYTES: usize = 64 << 20;
const LINGER_FOR: Duration = Duration::from_secs(5);

/// A sender that is silent for so long is given up; a slow one that goes on is not.
const SILENCE: Duration = Duration::from_secs(30);

/// A request's body. If it is dropped before its end (the answer came early: 413, 404), the rest is read and thrown away for a
/// while: closing a connection with unread data resets it, and the reset can destroy the answer on its way.
#[derive(Debug)]
pub(crate) struct Lingering(Option<Incoming>);

impl Lingering {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self((!incoming.is_end_stream()).then_some(incoming))
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.0 else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(mut rest) = self.0.take().filter(|rest| !rest.is_end_stream()) else { return };
        // Ends by itself at its limits, or with the connection; nothing needs to wait for it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(LINGER_FOR, async move {
            let mut read = 0;
            while let Some(Ok(frame)) = rest.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > LINGER_BYTES {
                    break;
                }
            }
        }));
    }
}

/// Reads a body to its end.
///
/// # Errors
/// What is wrong with it, for its sender.
pub(super) async fn collect(mut body: Lingering) -> Result<Bytes, String> {
    let mut all = Bytes::new();
    loop {
        match tokio::time::timeout(SILENCE, body.frame()).await {
            Err(_) => return Err(format!("nothing more of it came for {} s", SILENCE.as_secs())),
            Ok(None) => return Ok(all),
            Ok(Some(Err(error))) => return Err(format!("it broke off: {error}")),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                // Most bodies come in one piece, which needs no copy.
                Ok(data) if all.is_empty() => all = data,
                Ok(data) => all = [all, data].concat().into(),
                Err(_) => {}
            },
        }
    }
}

/// The body of a call on its way to a supervisor.
#[derive(Debug)]
pub(crate) enum CallBody {
    Whole { bytes: Bytes, sent: bool },
    Streamed { body: Lingering, fault: Fault },
}

/// Whether a streamed request broke off on its caller's side.
#[derive(Debug, Clone, Default)]
pub(super) struct Fault(Arc<AtomicBool>);

impl Fault {
    pub(super) fn is_the_callers(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl CallBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::Whole { bytes, sent: false }
    }

    pub(super) fn streamed(body: Lingering) -> Self {
        Self::Streamed { body, fault: Fault::default() }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Whole { .. } => None,
            Self::Streamed { fault, .. } => Some(fault.clone()),
        }
    }

    /// The same once more, where that is possible.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            Self::Whole { bytes, .. } => Some(Self::whole(bytes.clone())),
            Self::Streamed { .. } => None,
        }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole { bytes, sent } => {
                let first = !std::mem::replace(sent, true) && !bytes.is_empty();
                Poll::Ready(first.then(|| Ok(Frame::data(bytes.clone()))))
            }
            Self::Streamed { body, fault } => {
                let frame = Pin::new(body).poll_frame(cx);
                if let Poll::Ready(Some(Err(_))) = &frame {
                    fault.0.store(true, Ordering::Relaxed);
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { bytes, sent } => *sent || bytes.is_empty(),
            Self::Streamed { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { bytes, sent } => SizeHint::with_exact(if *sent { 0 } else { bytes.len() as u64 }),
            Self::Streamed { body, .. } => body.size_hint(),
        }
    }
}

/// The body of an answer, wherever it comes from.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Bytes(Full<Bytes>),
    Upstream(UpstreamBody),
    Router(axum::body::Body),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn boxed<E: Into<BoxError>>(
    frame: Poll<Option<Result<Frame<Bytes>, E>>>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    frame.map(|frame| frame.map(|result| result.map_err(Into::into)))
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Bytes(body) => boxed(Pin::new(body).poll_frame(cx)),
            Self::Upstream(body) => boxed(Pin::new(body).poll_frame(cx)),
            Self::Router(body) => boxed(Pin::new(body).poll_frame(cx)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(body) => body.is_end_stream(),
            Self::Upstream(body) => body.is_end_stream(),
            Self::Router(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(body) => body.size_hint(),
            Self::Upstream(body) => body.size_hint(),
            Self::Router(body) => body.size_hint(),
        }
    }
}
