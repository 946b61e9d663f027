//! The frame codec. `docs/protocol.md` is the authority.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of a frame before its payload.
pub const HEADER_LEN: usize = 9;
/// Bytes of the usage that each end of a call begins with.
pub const USAGE_LEN: usize = 9;

/// How the body of a request becomes the handler's event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Json,
    Form,
    Text,
    Bytes,
    Query,
}

impl EventKind {
    fn code(self) -> u8 {
        match self {
            Self::Json => 1,
            Self::Form => 2,
            Self::Text => 3,
            Self::Bytes => 4,
            Self::Query => 5,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Json,
            2 => Self::Form,
            3 => Self::Text,
            4 => Self::Bytes,
            5 => Self::Query,
            _ => return None,
        })
    }
}

/// What a call cost, as the worker saw it when the call ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of the worker process in this call.
    pub cpu_us: u32,
    /// Highest resident memory of the worker process so far.
    pub max_rss_kib: u32,
    /// The call has started a process.
    pub spawned: bool,
    /// The worker should not be used again.
    pub retire: bool,
}

const SPAWNED: u8 = 1;
const RETIRE: u8 = 2;
const WAITING: u8 = 1;

/// A frame from the supervisor to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToWorker {
    Hello { head: Bytes },
    Invoke { call: u32, event: EventKind, waiting: bool, pair: u16, head: Bytes, body: Bytes },
    Go { call: u32, pair: u16 },
}

/// A frame from a worker to the supervisor. Heads are JSON that nobody has looked at yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWorker {
    Ready {
        head: Bytes,
    },
    InitFailed {
        head: Bytes,
    },
    Result {
        call: u32,
        usage: Usage,
        status: u16,
        head: Bytes,
        body: Bytes,
    },
    Stream {
        call: u32,
        status: u16,
        head: Bytes,
    },
    Chunk {
        call: u32,
        data: Bytes,
    },
    End {
        call: u32,
        usage: Usage,
    },
    Error {
        call: u32,
        usage: Usage,
        head: Bytes,
    },
    Skipped {
        call: u32,
        usage: Usage,
    },
    Log {
        call: u32,
        stream: LogStream,
        data: Bytes,
    },
    Wait {
        call: u32,
    },
    /// A frame whose payload is longer than the limit: its bytes are thrown away as they come.
    Oversized {
        kind: u8,
        call: u32,
        length: u32,
    },
}

/// Which of the two streams a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    Stdout,
    Stderr,
}

/// Why a stream of frames cannot be read on. The connection cannot be used afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown frame kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("malformed {name} frame: {reason}")]
    Malformed { name: &'static str, reason: &'static str },
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const INVOKE: u8 = 2;
    pub(super) const GO: u8 = 3;
    pub(super) const READY: u8 = 64;
    pub(super) const INIT_FAILED: u8 = 65;
    pub(super) const RESULT: u8 = 66;
    pub(super) const STREAM: u8 = 67;
    pub(super) const CHUNK: u8 = 68;
    pub(super) const END: u8 = 69;
    pub(super) const ERROR: u8 = 70;
    pub(super) const SKIPPED: u8 = 71;
    pub(super) const LOG: u8 = 72;
    pub(super) const WAIT: u8 = 73;
}

fn put_header(out: &mut BytesMut, kind: u8, call: u32, length: usize) {
    out.put_u8(kind);
    out.put_u32(call);
    // Lengths come from bodies that were held to their limits (32 bits and less) before.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn put_usage(out: &mut BytesMut, usage: Usage) {
    out.put_u32(usage.cpu_us);
    out.put_u32(usage.max_rss_kib);
    out.put_u8((u8::from(usage.spawned) * SPAWNED) | (u8::from(usage.retire) * RETIRE));
}

/// Writes all of an `INVOKE` but its body, which follows as it is: so large bodies are not copied.
pub fn put_invoke(
    out: &mut BytesMut,
    call: u32,
    event: EventKind,
    waiting: bool,
    pair: u16,
    head: &[u8],
    body_len: usize,
) {
    put_header(out, kind::INVOKE, call, 8 + head.len() + body_len);
    out.put_u8(event.code());
    out.put_u8(u8::from(waiting) * WAITING);
    out.put_u16(pair);
    out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    out.put_slice(head);
}

impl ToWorker {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Hello { head } => {
                put_header(out, kind::HELLO, 0, head.len());
                out.put_slice(head);
            }
            Self::Invoke { call, event, waiting, pair, head, body } => {
                put_invoke(out, *call, *event, *waiting, *pair, head, body.len());
                out.put_slice(body);
            }
            Self::Go { call, pair } => {
                put_header(out, kind::GO, *call, 2);
                out.put_u16(*pair);
            }
        }
    }

    /// Takes one whole frame off the front of `buf`; `None` means that more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`] for what no supervisor sends.
    pub fn decode(buf: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        loop {
            let Some((kind, call, mut payload)) = take(buf) else { return Ok(None) };
            return Ok(Some(match kind {
                kind::HELLO => Self::Hello { head: payload },
                kind::INVOKE => {
                    let bad = |reason| FrameError::Malformed { name: "INVOKE", reason };
                    if payload.len() < 8 {
                        return Err(bad("shorter than its fixed part"));
                    }
                    let event = EventKind::from_code(payload.get_u8()).ok_or(bad("unknown event kind"))?;
                    let waiting = payload.get_u8() & WAITING != 0;
                    let pair = payload.get_u16();
                    let head = take_head(&mut payload).ok_or(bad("head longer than the frame"))?;
                    Self::Invoke { call, event, waiting, pair, head, body: payload }
                }
                kind::GO if payload.len() >= 2 => Self::Go { call, pair: payload.get_u16() },
                kind::GO => {
                    return Err(FrameError::Malformed { name: "GO", reason: "shorter than its fixed part" });
                }
                128.. => continue,
                kind => return Err(FrameError::UnknownKind { kind }),
            }));
        }
    }
}

/// Takes `kind`, `call` and payload of one whole frame off the front.
fn take(buf: &mut BytesMut) -> Option<(u8, u32, Bytes)> {
    let header: [u8; HEADER_LEN] = buf.get(..HEADER_LEN)?.try_into().ok()?;
    let [kind, c0, c1, c2, c3, l0, l1, l2, l3] = header;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if buf.len() - HEADER_LEN < length {
        return None;
    }
    buf.advance(HEADER_LEN);
    Some((kind, u32::from_be_bytes([c0, c1, c2, c3]), buf.split_to(length).freeze()))
}

fn take_head(payload: &mut Bytes) -> Option<Bytes> {
    if payload.len() < 4 {
        return None;
    }
    let length = payload.get_u32() as usize;
    (payload.len() >= length).then(|| payload.split_to(length))
}

fn take_usage(payload: &mut Bytes) -> Option<Usage> {
    if payload.len() < USAGE_LEN {
        return None;
    }
    let (cpu_us, max_rss_kib, flags) = (payload.get_u32(), payload.get_u32(), payload.get_u8());
    Some(Usage { cpu_us, max_rss_kib, spawned: flags & SPAWNED != 0, retire: flags & RETIRE != 0 })
}

/// Reads what a worker sends. A worker is untrusted: nothing is allocated on its word.
#[derive(Debug)]
pub struct Decoder {
    max_payload: u32,
    /// Bytes of an oversized payload that are still to be thrown away.
    discard: usize,
}

impl Decoder {
    /// `max_payload`: longest payload that is kept; a longer frame gives [`FromWorker::Oversized`] at its header.
    #[must_use]
    pub fn new(max_payload: u32) -> Self {
        Self { max_payload, discard: 0 }
    }

    /// How many bytes the frame at the front of `buf` still lacks, so that a reader may reserve them at once.
    #[must_use]
    pub fn lacks(&self, buf: &BytesMut) -> usize {
        match buf.get(5..HEADER_LEN).and_then(|l| <[u8; 4]>::try_from(l).ok()).map(u32::from_be_bytes) {
            Some(length) if self.discard == 0 && length <= self.max_payload => {
                (HEADER_LEN + length as usize).saturating_sub(buf.len())
            }
            _ => 0,
        }
    }

    /// Takes one whole frame off the front of `buf`; `None` means that more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]: the connection cannot be used afterwards.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<FromWorker>, FrameError> {
        loop {
            if self.discard > 0 {
                let n = self.discard.min(buf.len());
                buf.advance(n);
                self.discard -= n;
                if self.discard > 0 {
                    return Ok(None);
                }
            }
            let Some(header) = buf.get(..HEADER_LEN).and_then(|h| <[u8; HEADER_LEN]>::try_from(h).ok())
            else {
                return Ok(None);
            };
            let [kind, c0, c1, c2, c3, l0, l1, l2, l3] = header;
            let length = u32::from_be_bytes([l0, l1, l2, l3]);
            let skip = kind > 127;
            if !skip && !(kind::READY..=kind::WAIT).contains(&kind) {
                return Err(FrameError::UnknownKind { kind });
            }
            if skip && length > self.max_payload {
                // No protocol of ours will ever need that: it is garbage, and skipping it would swallow what follows.
                return Err(FrameError::Malformed {
                    name: "unknown",
                    reason: "longer than any frame may be",
                });
            }
            if skip || length > self.max_payload {
                buf.advance(HEADER_LEN);
                self.discard = length as usize;
                if skip {
                    continue;
                }
                return Ok(Some(FromWorker::Oversized {
                    kind,
                    call: u32::from_be_bytes([c0, c1, c2, c3]),
                    length,
                }));
            }
            let Some((kind, call, payload)) = take(buf) else { return Ok(None) };
            return parse(kind, call, payload).map(Some);
        }
    }
}

fn parse(kind: u8, call: u32, mut payload: Bytes) -> Result<FromWorker, FrameError> {
    let short = |name| FrameError::Malformed { name, reason: "shorter than its fixed part" };
    Ok(match kind {
        kind::READY => FromWorker::Ready { head: payload },
        kind::INIT_FAILED => FromWorker::InitFailed { head: payload },
        kind::RESULT => {
            let usage = take_usage(&mut payload).ok_or(short("RESULT"))?;
            let (status, head) = take_answer(&mut payload, "RESULT")?;
            FromWorker::Result { call, usage, status, head, body: payload }
        }
        kind::STREAM => {
            let (status, head) = take_answer(&mut payload, "STREAM")?;
            FromWorker::Stream { call, status, head }
        }
        kind::CHUNK => FromWorker::Chunk { call, data: payload },
        kind::END => FromWorker::End { call, usage: take_usage(&mut payload).ok_or(short("END"))? },
        kind::ERROR => {
            let usage = take_usage(&mut payload).ok_or(short("ERROR"))?;
            FromWorker::Error { call, usage, head: payload }
        }
        kind::SKIPPED => {
            FromWorker::Skipped { call, usage: take_usage(&mut payload).ok_or(short("SKIPPED"))? }
        }
        kind::LOG => {
            if payload.is_empty() {
                return Err(short("LOG"));
            }
            let stream = match payload.get_u8() {
                1 => LogStream::Stdout,
                2 => LogStream::Stderr,
                _ => return Err(FrameError::Malformed { name: "LOG", reason: "unknown stream" }),
            };
            FromWorker::Log { call, stream, data: payload }
        }
        kind::WAIT => FromWorker::Wait { call },
        kind => return Err(FrameError::UnknownKind { kind }),
    })
}

fn take_answer(payload: &mut Bytes, name: &'static str) -> Result<(u16, Bytes), FrameError> {
    let malformed = |reason| FrameError::Malformed { name, reason };
    if payload.len() < 6 {
        return Err(malformed("shorter than its fixed part"));
    }
    let status = payload.get_u16();
    Ok((status, take_head(payload).ok_or(malformed("head longer than the frame"))?))
}

impl FromWorker {
    /// Appends the whole frame; for tests, transcripts and fuzzing, since only shims send these.
    pub fn encode(&self, out: &mut BytesMut) {
        let frame = |out: &mut BytesMut, kind, call, payload: &[u8]| {
            put_header(out, kind, call, payload.len());
            out.put_slice(payload);
        };
        let mut p = BytesMut::new();
        match self {
            Self::Ready { head } => frame(out, kind::READY, 0, head),
            Self::InitFailed { head } => frame(out, kind::INIT_FAILED, 0, head),
            Self::Result { call, usage, status, head, body } => {
                put_usage(&mut p, *usage);
                put_answer(&mut p, *status, head);
                p.put_slice(body);
                frame(out, kind::RESULT, *call, &p);
            }
            Self::Stream { call, status, head } => {
                put_answer(&mut p, *status, head);
                frame(out, kind::STREAM, *call, &p);
            }
            Self::Chunk { call, data } => frame(out, kind::CHUNK, *call, data),
            Self::End { call, usage } => {
                put_usage(&mut p, *usage);
                frame(out, kind::END, *call, &p);
            }
            Self::Error { call, usage, head } => {
                put_usage(&mut p, *usage);
                p.put_slice(head);
                frame(out, kind::ERROR, *call, &p);
            }
            Self::Skipped { call, usage } => {
                put_usage(&mut p, *usage);
                frame(out, kind::SKIPPED, *call, &p);
            }
            Self::Log { call, stream, data } => {
                p.put_u8(if *stream == LogStream::Stdout { 1 } else { 2 });
                p.put_slice(data);
                frame(out, kind::LOG, *call, &p);
            }
            Self::Wait { call } => frame(out, kind::WAIT, *call, &[]),
            Self::Oversized { kind, call, length } => put_header(out, *kind, *call, *length as usize),
        }
    }
}

fn put_answer(out: &mut BytesMut, status: u16, head: &[u8]) {
    out.put_u16(status);
    out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    out.put_slice(head);
}

#[cfg(test)]
mod tests;
