//! Reads a request's body: whole, within its limit, and from senders that keep on sending.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout};

use crate::failure::Failure;

/// A sender that is silent for so long is given up; a slow one that goes on is not.
const SILENCE: Duration = Duration::from_secs(30);
/// After a refusal so much is still read, and for so long, or the reset that follows unread bytes destroys the answer.
const LINGER_BYTES: u64 = 256 << 20;
const LINGER: Duration = Duration::from_secs(10);

/// The whole body.
pub(super) async fn read(mut incoming: Incoming, headers: &HeaderMap, limit: u32) -> Result<Bytes, Failure> {
    let limit = u64::from(limit);
    let too_large = Failure::RequestTooLarge { limit };
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit) {
        // One who asks first (RFC 9110 §10.1.1) has not sent it.
        if !headers.contains_key(EXPECT) {
            linger(incoming, LINGER_BYTES).await;
        }
        return Err(too_large);
    }
    if incoming.is_end_stream() {
        return Ok(Bytes::new());
    }
    let mut whole = Gathered::Nothing;
    let mut size = 0;
    loop {
        let frame = match timeout(SILENCE, incoming.frame()).await {
            Err(_) => return Err(Failure::RequestTimeout { waited: SILENCE }),
            Ok(None) => return Ok(whole.into_bytes()),
            Ok(Some(Err(error))) => {
                return Err(Failure::BadRequest {
                    reason: format!("the request body cannot be read: {error}"),
                });
            }
            Ok(Some(Ok(frame))) => frame,
        };
        // Trailers carry nothing that a handler is promised.
        let Ok(data) = frame.into_data() else { continue };
        size += data.len() as u64;
        if size > limit {
            drop(whole);
            linger(incoming, LINGER_BYTES).await;
            return Err(too_large);
        }
        whole.push(data, announced);
    }
}

/// Most bodies come in one piece, which needs no copy.
enum Gathered {
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Gathered {
    fn push(&mut self, data: Bytes, announced: Option<u64>) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Self::One(data),
            Self::One(first) => {
                let expected = usize::try_from(announced.unwrap_or(0)).unwrap_or(0);
                let mut all = BytesMut::with_capacity(expected.max(2 * (first.len() + data.len())));
                all.extend_from_slice(&first);
                all.extend_from_slice(&data);
                Self::Many(all)
            }
            Self::Many(mut all) => {
                all.extend_from_slice(&data);
                Self::Many(all)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

async fn linger(mut incoming: Incoming, most: u64) {
    let until = Instant::now() + LINGER;
    let mut left = most;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(until, incoming.frame()).await {
        left = left.saturating_sub(frame.data_ref().map_or(0, |d| d.len() as u64));
        if left == 0 {
            return;
        }
    }
}
