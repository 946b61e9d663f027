//! What becomes of a call when its worker speaks of it.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use sless_protocol::event::Status;
use sless_protocol::frame::{FromWorker, Usage};
use sless_protocol::handshake::Raised;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Pool;
use super::death::Kill;
use super::slot::{OpenCall, Streaming, begin_front};
use super::worker::{Life, Worker};
use crate::call::{Answer, Piece};
use crate::failure::Failure;
use crate::report::{ErrorInfo, FinishedInfo, ResultInfo};

/// Pieces of a stream that wait for a slow caller before the worker is left to wait itself.
const STREAM_DEPTH: usize = 8;

/// How a call ended, for its record.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) failure: Option<Failure>,
    pub(super) traceback: Option<String>,
    pub(super) http_status: u16,
    pub(super) result: Option<Kept>,
    pub(super) usage: Option<Usage>,
    /// What a call cost whose worker could not say.
    pub(super) cost: Option<Cost>,
}

/// CPU time and memory of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) cpu: Duration,
    pub(super) max_rss_bytes: u64,
}

/// What the record keeps of a result.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) content_type: String,
    pub(super) bytes: Bytes,
    pub(super) size: u64,
}

impl From<Usage> for Cost {
    fn from(usage: Usage) -> Self {
        Self {
            cpu: Duration::from_micros(usage.cpu_us.into()),
            max_rss_bytes: u64::from(usage.max_rss_kib) * 1024,
        }
    }
}

impl Ending {
    pub(super) fn failed(failure: Failure, traceback: Option<String>) -> Self {
        let http_status = failure.http_status().as_u16();
        Self { failure: Some(failure), traceback, http_status, result: None, usage: None, cost: None }
    }
}

/// Handles a frame that belongs to a call.
pub(super) fn on_frame(pool: &Rc<Pool>, worker: &Rc<Worker>, index: usize, frame: FromWorker) {
    match frame {
        FromWorker::Result { call, usage, status, head, body } => {
            let Some(open) = take_front(worker, index, call) else { return };
            let limit = u64::from(pool.config.max_response_bytes);
            if body.len() as u64 > limit {
                let failure = Failure::ResponseTooLarge { size: body.len() as u64, limit };
                return fail(pool, worker, index, open, failure, None, Some(usage));
            }
            match answer_head(status, &head) {
                Ok((status, headers)) => whole(pool, worker, index, open, usage, status, headers, body),
                Err(reason) => {
                    fail(pool, worker, index, open, Failure::InvalidResponse { reason }, None, Some(usage));
                }
            }
        }
        FromWorker::Stream { call, status, head } => begin_stream(worker, index, call, status, &head),
        FromWorker::Chunk { call, data } => chunk(pool, worker, index, call, data),
        FromWorker::End { call, usage } => {
            if let Some(open) = take_front(worker, index, call) {
                end_stream(pool, worker, index, open, usage);
            }
        }
        FromWorker::Error { call, usage, head } => {
            let Some(open) = take_front(worker, index, call) else { return };
            let raised: Raised = serde_json::from_slice(&head).unwrap_or_else(|_| Raised {
                kind: "Error".to_owned(),
                message: String::from_utf8_lossy(&head).into_owned(),
                traceback: None,
            });
            let failure = Failure::Raised { kind: raised.kind, message: raised.message };
            fail(pool, worker, index, open, failure, raised.traceback, Some(usage));
        }
        FromWorker::Log { call, stream, data } => {
            let Some(slot) = worker.slots.get(index) else { return };
            let record = slot.state.borrow().open.iter().find(|o| o.number == call).map(|o| o.record.clone());
            let doomed =
                || worker.doomed.borrow().iter().find(|d| d.is(index, call)).map(|d| d.record.clone());
            if let Some(record) = record.or_else(doomed)
                && let Some(record) = record.borrow_mut().as_mut()
            {
                record.output(stream, &data);
            }
        }
        FromWorker::Oversized { call, length, .. } => {
            let Some(open) = take_front(worker, index, call) else { return };
            let limit = u64::from(pool.config.max_response_bytes);
            let streamed = open.stream.is_some();
            fail(
                pool,
                worker,
                index,
                open,
                Failure::ResponseTooLarge { size: length.into(), limit },
                None,
                None,
            );
            if streamed {
                // More frames of this call would follow, and nobody waits for them.
                worker.kill(Kill::Protocol);
            }
        }
        // Handled by the worker itself.
        FromWorker::Ready { .. }
        | FromWorker::InitFailed { .. }
        | FromWorker::Skipped { .. }
        | FromWorker::Wait { .. } => {}
    }
}

/// The running call of the slot, if the frame is its. A worker that is to die may speak of a call that is over.
fn take_front(worker: &Rc<Worker>, index: usize, call: u32) -> Option<OpenCall> {
    let slot = worker.slots.get(index)?;
    let mut state = slot.state.borrow_mut();
    if state.open.front().is_some_and(|o| o.number == call) {
        let open = state.open.pop_front();
        begin_front(&mut state, Instant::now());
        return open;
    }
    drop(state);
    let over = worker.doomed.borrow().iter().any(|d| d.is(index, call));
    if !over && worker.life.get() != Life::Gone {
        tracing::warn!(
            worker.pid = worker.family.worker_pid(),
            call,
            "worker answered a call that it does not have"
        );
        worker.kill(Kill::Protocol);
    }
    None
}

/// The commonest head of all, as both shims write it.
const JSON_HEAD: &[u8] = br#"[["content-type","application/json"]]"#;

/// Checks status and headers of an answer; drops headers that are not the handler's to set.
fn answer_head(status: u16, head: &[u8]) -> Result<(StatusCode, HeaderMap), String> {
    let status = match StatusCode::from_u16(status) {
        Ok(code) if (200..600).contains(&status) => code,
        _ => return Err(format!("statusCode {status} is not between 200 and 599")),
    };
    let mut headers = HeaderMap::with_capacity(6);
    if head == JSON_HEAD {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok((status, headers));
    }
    let pairs: Vec<(String, String)> = serde_json::from_slice(head).map_err(|e| format!("headers: {e}"))?;
    for (name, value) in pairs {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{name:?} is not a header name (RFC 9110)"))?;
        if !is_the_handlers(parsed.as_str()) {
            continue;
        }
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| format!("the value of header {name:?} holds a control character"))?;
        headers.append(parsed, value);
    }
    Ok((status, headers))
}

fn is_the_handlers(name: &str) -> bool {
    !matches!(
        name,
        "content-length" | "transfer-encoding" | "connection" | "trailer" | "keep-alive" | "upgrade"
    ) && !name.starts_with("x-sless-")
}

#[expect(clippy::too_many_arguments, reason = "the parts of one frame")]
fn whole(
    pool: &Rc<Pool>,
    worker: &Rc<Worker>,
    index: usize,
    mut open: OpenCall,
    usage: Usage,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
) {
    pool.note_size(body.len());
    let content_type = content_type(&headers);
    let result = (!body.is_empty() || !content_type.is_empty()).then(|| Kept {
        content_type,
        size: body.len() as u64,
        bytes: body.clone(),
    });
    let ending = Ending {
        failure: None,
        traceback: None,
        http_status: status.as_u16(),
        result,
        usage: Some(usage),
        cost: None,
    };
    finish(pool, worker, index, &mut open, ending);
    open.call.answer(Answer::Whole { status, headers, body });
}

fn content_type(headers: &HeaderMap) -> String {
    headers.get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).unwrap_or_default()
}

fn begin_stream(worker: &Rc<Worker>, index: usize, call: u32, status: u16, head: &[u8]) {
    let Some(slot) = worker.slots.get(index) else { return };
    let mut state = slot.state.borrow_mut();
    let Some(open) = state.open.front_mut().filter(|o| o.number == call && o.stream.is_none()) else {
        return;
    };
    match answer_head(status, head) {
        Ok((status, headers)) => {
            let (pieces, receiver) = mpsc::channel(STREAM_DEPTH);
            open.stream = Some(Streaming {
                pieces,
                http_status: status.as_u16(),
                content_type: content_type(&headers),
                kept: Vec::new(),
                size: 0,
            });
            open.call.answer(Answer::Stream { status, headers, pieces: receiver });
        }
        Err(reason) => open.failed = Some(Failure::InvalidResponse { reason }),
    }
}

fn chunk(pool: &Rc<Pool>, worker: &Rc<Worker>, index: usize, call: u32, data: Bytes) {
    let Some(slot) = worker.slots.get(index) else { return };
    let mut state = slot.state.borrow_mut();
    let Some(open) = state.open.front_mut().filter(|o| o.number == call) else { return };
    let Some(stream) = &mut open.stream else { return };
    // Some more than the limit, for a secret value may lie across it and must be found before the cut.
    let room = (pool.config.result_limit_bytes + pool.longest_secret).saturating_sub(stream.kept.len());
    if pool.config.result_limit_bytes > 0 {
        stream.kept.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
    }
    stream.size += data.len() as u64;
    // A caller that has left changes nothing: the call runs to its end.
    if let Err(mpsc::error::TrySendError::Full(Piece::Chunk(data))) =
        stream.pieces.try_send(Piece::Chunk(data))
    {
        *slot.stalled.borrow_mut() = Some((stream.pieces.clone(), data));
    }
}

fn end_stream(pool: &Rc<Pool>, worker: &Rc<Worker>, index: usize, mut open: OpenCall, usage: Usage) {
    if let Some(failure) = open.failed.take() {
        return fail(pool, worker, index, open, failure, None, Some(usage));
    }
    let Some(stream) = open.stream.take() else {
        let failure = Failure::InvalidResponse { reason: "the stream ended before it began".to_owned() };
        return fail(pool, worker, index, open, failure, None, Some(usage));
    };
    let pieces = stream.pieces.clone();
    let ending = Ending {
        failure: None,
        traceback: None,
        http_status: stream.http_status,
        result: Some(kept(stream)),
        usage: Some(usage),
        cost: None,
    };
    finish(pool, worker, index, &mut open, ending);
    if let Err(mpsc::error::TrySendError::Full(end)) = pieces.try_send(Piece::End(Status::Success)) {
        tokio::task::spawn_local(async move { drop(pieces.send(end).await) });
    }
}

fn kept(stream: Streaming) -> Kept {
    Kept { content_type: stream.content_type, bytes: stream.kept.into(), size: stream.size }
}

fn fail(
    pool: &Rc<Pool>,
    worker: &Rc<Worker>,
    index: usize,
    mut open: OpenCall,
    failure: Failure,
    traceback: Option<String>,
    usage: Option<Usage>,
) {
    let failure = open.failed.take().unwrap_or(failure);
    let cost = if usage.is_none() { Some(worker.cost_of_the_rest()) } else { None };
    let mut ending = Ending { usage, cost, ..Ending::failed(failure.clone(), traceback) };
    let cut = open.stream.take().map(|stream| {
        ending.http_status = stream.http_status;
        let pieces = stream.pieces.clone();
        ending.result = Some(kept(stream));
        pieces
    });
    finish(pool, worker, index, &mut open, ending);
    // A channel that closes without an end cuts the body.
    drop(cut);
    open.call.answer(Answer::Failed(failure));
}

/// The call of a dead worker: nothing more is to come.
pub(super) fn lost_worker(
    pool: &Rc<Pool>,
    worker: &Rc<Worker>,
    index: usize,
    open: OpenCall,
    failure: Failure,
) {
    fail(pool, worker, index, open, failure, None, None);
}

/// Takes the call's last output, writes its record, and counts it. The answer goes out after this.
fn finish(pool: &Rc<Pool>, worker: &Rc<Worker>, index: usize, open: &mut OpenCall, ending: Ending) {
    let now = Instant::now();
    let usage = ending.usage;
    worker.end_output(open.pair, &open.record, usage.is_some_and(|u| u.spawned));
    let begun = open.begun.unwrap_or(now);
    let duration = now.duration_since(begun);
    let queue = begun.saturating_duration_since(open.call.arrived);
    record(pool, worker, open, ending, duration, queue);
    if let Some(slot) = worker.slots.get(index) {
        slot.took(duration);
    }
    worker.idle_since.set(now);
    if let Some(usage) = usage {
        worker.accounted.set(worker.accounted.get() + Duration::from_micros(usage.cpu_us.into()));
    }
    if usage.is_some_and(|u| u.retire) {
        worker.retire();
    }
    worker.check_emptied();
}

/// Writes `finished` and counts the call.
pub(super) fn record(
    pool: &Rc<Pool>,
    worker: &Rc<Worker>,
    open: &mut OpenCall,
    ending: Ending,
    duration: Duration,
    queue: Duration,
) {
    let status = ending.failure.as_ref().map_or(Status::Success, Failure::status);
    pool.metrics.ended(status, &open.call.request.trigger, duration, queue);
    let record = open.record.borrow_mut().take();
    if let Some(record) = record {
        let init = worker.init.take();
        with_info(status, &ending, duration, queue, init, |info| record.finish(info));
    }
    pool.call_over();
}

/// Builds the borrowed form that records are written from.
pub(super) fn with_info<T>(
    status: Status,
    ending: &Ending,
    duration: Duration,
    queue: Duration,
    init: Option<Duration>,
    then: impl FnOnce(&FinishedInfo<'_>) -> T,
) -> T {
    let message = ending.failure.as_ref().map(ToString::to_string);
    let cost = ending.usage.map(Cost::from).or(ending.cost);
    let error = ending.failure.as_ref().zip(message.as_deref()).map(|(failure, message)| ErrorInfo {
        kind: failure.kind(),
        message,
        traceback: ending.traceback.as_deref(),
    });
    let result = ending.result.as_ref().map(|kept| ResultInfo {
        content_type: &kept.content_type,
        body: &kept.bytes,
        size: kept.size,
    });
    then(&FinishedInfo {
        status,
        http_status: Some(ending.http_status),
        duration,
        queue,
        init,
        cpu: cost.map(|c| c.cpu),
        max_rss_bytes: cost.map(|c| c.max_rss_bytes),
        result,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_head_is_what_serde_would_read() {
        let pairs: Vec<(String, String)> = serde_json::from_slice(JSON_HEAD).unwrap();
        assert_eq!(pairs, [("content-type".to_owned(), "application/json".to_owned())]);
    }

    #[test]
    fn what_is_not_the_handlers_is_dropped_and_what_is_invalid_refused() {
        let (_, headers) =
            answer_head(200, br#"[["Content-Length","2"],["X-Sless-Status","x"],["X-A","b"],["x-a","c"]]"#)
                .unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers.get_all("x-a").iter().count(), 2);
        assert!(answer_head(199, b"[]").is_err() && answer_head(600, b"[]").is_err());
        assert!(answer_head(200, br#"[["x-a","b\r\nx-evil: 1"]]"#).is_err());
        assert!(answer_head(200, br#"[["x a","b"]]"#).is_err());
    }
}
