//! One invocation: what is asked, and what is answered.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use serde_json::value::RawValue;
use sless_protocol::event::Status;
use sless_protocol::frame::EventKind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::report::OpenRecord;

/// What is asked of the handler.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Rc<str>,
    pub(crate) trigger: String,
    pub(crate) attempt: u32,
    /// From the moment at which a worker takes the call.
    pub(crate) limit: Duration,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) raw_query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) client_ip: String,
    /// JSON object: what fired the call.
    pub(crate) source: Option<Box<RawValue>>,
    pub(crate) traceparent: String,
    pub(crate) event: EventKind,
    pub(crate) body: Bytes,
}

/// A request on its way, with the means to answer it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) arrived: Instant,
    /// `None` once the answer has begun.
    pub(crate) answer: Option<oneshot::Sender<Answer>>,
    /// Opened when the call is first sent to a worker; goes with it should that worker die before it takes it.
    pub(crate) record: Option<OpenRecord>,
}

/// What the caller gets.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole { status: StatusCode, headers: HeaderMap, body: Bytes },
    Stream { status: StatusCode, headers: HeaderMap, pieces: mpsc::Receiver<Piece> },
    Failed(Failure),
}

/// A part of a streamed body. A channel that closes without `End` means that the body is cut.
#[derive(Debug)]
pub(crate) enum Piece {
    Chunk(Bytes),
    End(Status),
}

/// Head of an `INVOKE` frame.
#[derive(Serialize)]
struct Head<'a> {
    id: &'a str,
    trigger: &'a str,
    attempt: u32,
    timeout_ms: u64,
    method: &'a str,
    path: &'a str,
    raw_query: &'a str,
    headers: Headers<'a>,
    client_ip: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a RawValue>,
    traceparent: &'a str,
}

struct Headers<'a>(&'a HeaderMap);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        for (name, value) in self.0 {
            match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => seq.serialize_element(&(name.as_str(), text))?,
                // RFC 9110 §5.5: bytes beyond ASCII are opaque; ISO 8859-1 keeps each of them.
                Err(_) => {
                    let text: String = value.as_bytes().iter().map(|&b| char::from(b)).collect();
                    seq.serialize_element(&(name.as_str(), text))?;
                }
            }
        }
        seq.end()
    }
}

impl Request {
    /// Writes the head of this call's `INVOKE` frame.
    pub(crate) fn write_head(&self, out: &mut Vec<u8>) {
        let head = Head {
            id: &self.id,
            trigger: &self.trigger,
            attempt: self.attempt,
            timeout_ms: u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX),
            method: &self.method,
            path: &self.path,
            raw_query: &self.raw_query,
            headers: Headers(&self.headers),
            client_ip: &self.client_ip,
            source: self.source.as_deref(),
            traceparent: &self.traceparent,
        };
        // Writing strings and numbers into memory cannot fail.
        drop(serde_json::to_writer(out, &head));
    }
}

impl Call {
    pub(crate) fn new(request: Request, arrived: Instant) -> (Box<Self>, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        (Box::new(Self { request, arrived, answer: Some(answer), record: None }), receiver)
    }

    /// Answers the caller; one that has left meanwhile changes nothing.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(sender) = self.answer.take() {
            drop(sender.send(answer));
        }
    }
}
