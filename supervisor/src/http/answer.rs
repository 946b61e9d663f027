//! Responses: the handler's, ours, and the headers that every one carries.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, TE, TRAILER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use sless_protocol::event::Status;
use tokio::sync::mpsc;

use super::platform::Claims;
use super::trace;
use crate::call::{Answer, Piece};
use crate::failure::Failure;

const INVOCATION_ID: HeaderName = HeaderName::from_static("x-sless-invocation-id");
const STATUS: HeaderName = HeaderName::from_static("x-sless-status");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What identifies an invocation to its caller.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) id: Rc<str>,
    pub(super) traceparent: String,
    pub(super) trailers: bool,
}

impl Labels {
    pub(super) fn new(claims: &Claims, headers: &HeaderMap) -> Self {
        let uuid = claims.id.unwrap_or_else(uuid::Uuid::now_v7);
        let mut buffer = uuid::Uuid::encode_buffer();
        let id: Rc<str> = Rc::from(&*uuid.hyphenated().encode_lower(&mut buffer));
        let traceparent = trace::continued(headers.get(TRACEPARENT), uuid);
        Self { id, traceparent, trailers: false }
    }

    fn put(&self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert(INVOCATION_ID, id);
        }
        if let Ok(traceparent) = HeaderValue::from_str(&self.traceparent) {
            headers.insert(TRACEPARENT, traceparent);
        }
    }

    pub(super) fn answer(&self, answer: Answer) -> Response<ResponseBody> {
        let (status, mut headers, body) = match answer {
            Answer::Whole { status, mut headers, body } => {
                headers.insert(STATUS, HeaderValue::from_static(Status::Success.as_str()));
                (status, headers, ResponseBody::whole(body))
            }
            Answer::Stream { status, mut headers, pieces } => {
                if self.trailers {
                    headers.insert(TRAILER, HeaderValue::from_static("x-sless-status"));
                }
                (status, headers, ResponseBody::Stream { pieces, trailers: self.trailers })
            }
            Answer::Failed(failure) => return self.failed(&failure),
        };
        self.put(&mut headers);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    pub(super) fn failed(&self, failure: &Failure) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::whole(failure.to_json(&self.id).into()));
        *response.status_mut() = failure.http_status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(STATUS, HeaderValue::from_static(failure.status().as_str()));
        if matches!(failure, Failure::Overloaded { .. } | Failure::Draining | Failure::InitFailed { .. }) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        self.put(headers);
        response
    }
}

/// Whether the caller takes trailers (RFC 9110 §6.5.1); hyper sends none to others.
pub(super) fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers
        .get_all(TE)
        .iter()
        .any(|v| v.to_str().is_ok_and(|v| v.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers"))))
}

pub(super) fn json(status: u16, body: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// To a process that may not speak here at all.
pub(super) fn forbidden() -> Response<ResponseBody> {
    let body = br#"{"error":{"type":"Forbidden","message":"only the host and holders of the proxy token are answered here"}}"#;
    json(403, body.to_vec())
}

/// A response's body.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Whole(Option<Bytes>),
    Stream {
        pieces: mpsc::Receiver<Piece>,
        trailers: bool,
    },
    /// Cut, once what came before is written.
    Cutting,
    Done,
}

/// The handler's stream broke off; the connection is cut so that the caller sees it.
#[derive(Debug, thiserror::Error)]
#[error("the handler's stream broke off")]
pub(crate) struct Cut;

impl ResponseBody {
    pub(super) fn whole(body: Bytes) -> Self {
        Self::Whole((!body.is_empty()).then_some(body))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Whole(body) => Poll::Ready(body.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream { pieces, trailers } => match pieces.poll_recv(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Piece::Chunk(data))) => Poll::Ready(Some(Ok(Frame::data(data)))),
                Poll::Ready(Some(Piece::End(status))) => {
                    let trailers = *trailers;
                    *self = Self::Done;
                    if !trailers {
                        return Poll::Ready(None);
                    }
                    let mut map = HeaderMap::with_capacity(1);
                    map.insert(STATUS, HeaderValue::from_static(status.as_str()));
                    Poll::Ready(Some(Ok(Frame::trailers(map))))
                }
                Poll::Ready(None) => {
                    // An error makes hyper drop what it has not written yet; before that it writes when there is nothing to do.
                    *self = Self::Cutting;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            },
            Self::Cutting => {
                *self = Self::Done;
                Poll::Ready(Some(Err(Cut)))
            }
            Self::Done => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Done | Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Done => SizeHint::with_exact(0),
            Self::Stream { .. } | Self::Cutting => SizeHint::default(),
        }
    }
}
