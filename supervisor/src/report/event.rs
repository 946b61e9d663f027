//! Events as lines of JSON: writing them, and the little that must be read of them again.
//!
//! The spool's lines are looked at by their fixed beginning and by markers such as `,"text":"`, which cannot be inside of a
//! JSON string, as a quote has a backslash before it there.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use http::HeaderMap;
use sless_protocol::event::Status;

use super::json;
use super::time::Stamp;
use crate::console::stream_name;
use crate::logs::Line;
use crate::mask::Masks;

/// Longest message or traceback of an error that is kept.
const MAX_ERROR_TEXT: usize = 64 * 1024;

/// What is known when a worker takes a call.
#[derive(Debug, Clone, Copy)]
pub struct StartedInfo<'a> {
    pub invocation_id: &'a str,
    pub attempt: u32,
    pub trigger: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    pub raw_query: &'a str,
    /// As they came: what is not to be recorded is left out here.
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub struct FinishedInfo<'a> {
    pub status: Status,
    pub http_status: Option<u16>,
    pub duration: Duration,
    pub queue: Duration,
    /// Start-up of the worker, if this call waited for it.
    pub init: Option<Duration>,
    pub cpu: Option<Duration>,
    pub max_rss_bytes: Option<u64>,
    pub result: Option<ResultInfo<'a>>,
    pub error: Option<ErrorInfo<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub struct ResultInfo<'a> {
    pub content_type: &'a str,
    /// Of the whole body, of which `body` may be but the beginning.
    pub size: u64,
    pub body: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
pub struct ErrorInfo<'a> {
    pub kind: &'a str,
    pub message: &'a str,
    pub traceback: Option<&'a str>,
}

/// What a record holds of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Kept<'a> {
    Text(Cow<'a, str>),
    Base64(String),
}

/// The first `limit` bytes of `body`, masked before they are cut, and whether that is less than all.
#[must_use]
pub fn kept<'a>(body: &'a [u8], limit: usize, masks: &Masks) -> (Kept<'a>, bool) {
    let (bytes, truncated) = masks.prefix(body, limit);
    let valid = match std::str::from_utf8(&bytes) {
        Ok(text) => Some(text.len()),
        // The cut went through a character.
        Err(e) if truncated && e.error_len().is_none() => Some(e.valid_up_to()),
        Err(_) => None,
    };
    let kept = match (valid, bytes) {
        (Some(n), Cow::Borrowed(bytes)) => Kept::Text(String::from_utf8_lossy(&bytes[..n])),
        (Some(n), Cow::Owned(mut bytes)) => {
            bytes.truncate(n);
            Kept::Text(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
        }
        (None, bytes) => Kept::Base64(base64::prelude::BASE64_STANDARD.encode(&bytes)),
    };
    (kept, truncated)
}

/// Writes events of one function.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) masks: Masks,
    pub(super) input_limit: usize,
    pub(super) result_limit: usize,
    pub(super) stamp: Stamp,
    /// `,"namespace":…,"function":…,"revision":…` and `,"pod":…`.
    names: Vec<u8>,
    pod: Vec<u8>,
}

impl Writer {
    pub(super) fn new(config: &super::ReportConfig) -> Self {
        let (mut names, mut pod) = (Vec::new(), Vec::new());
        for (name, value) in
            [("namespace", &config.namespace), ("function", &config.function), ("revision", &config.revision)]
        {
            field(&mut names, name, value);
        }
        field(&mut pod, "pod", &config.pod);
        Self {
            masks: config.masks.clone(),
            input_limit: config.input_limit,
            result_limit: config.result_limit,
            stamp: Stamp::default(),
            names,
            pod,
        }
    }

    pub(super) fn started(&mut self, out: &mut Vec<u8>, info: &StartedInfo<'_>, now_ms: u64) {
        begin(out, info.invocation_id, info.attempt, 0, "started");
        time(out, &mut self.stamp, now_ms);
        out.extend_from_slice(&self.names);
        field(out, "trigger", info.trigger);
        field(out, "method", info.method);
        // A request in which something was masked is not the one that was sent, and must not be sent again as if it were.
        let mut changed = self.hides_some_of(info.body);
        let mut masked = |out: &mut Vec<u8>, text: &str| {
            let masked = self.masks.mask_str(text);
            changed |= masked != text;
            json::string(out, &masked);
        };
        out.extend_from_slice(b",\"path\":");
        masked(out, info.path);
        out.extend_from_slice(&self.pod);
        out.extend_from_slice(b",\"request\":{\"raw_query\":");
        masked(out, info.raw_query);
        out.extend_from_slice(b",\"headers\":[");
        let mut first = true;
        for (name, value) in info.headers {
            if secret_header(name.as_str()) {
                continue;
            }
            out.extend_from_slice(if first { b"[" } else { b",[" });
            first = false;
            json::string(out, name.as_str());
            out.push(b',');
            masked(out, &header_text(value.as_bytes()));
            out.push(b']');
        }
        out.extend_from_slice(b"],");
        self.body(out, (info.body, info.body.len() as u64), self.input_limit, changed);
        out.extend_from_slice(b"}}\n");
    }

    /// `log`: bytes kept and bytes dropped.
    pub(super) fn finished(
        &mut self,
        out: &mut Vec<u8>,
        call: (&str, u32, u32),
        info: &FinishedInfo<'_>,
        log: (u64, u64),
        now_ms: u64,
    ) {
        let (id, attempt, seq) = call;
        begin(out, id, attempt, seq, "finished");
        time(out, &mut self.stamp, now_ms);
        field(out, "status", info.status.as_str());
        out.extend_from_slice(b",\"http_status\":");
        json::option(out, info.http_status, |out, v| json::number(out, u64::from(v)));
        out.extend_from_slice(b",\"duration_ms\":");
        json::millis(out, info.duration);
        out.extend_from_slice(b",\"queue_ms\":");
        json::millis(out, info.queue);
        out.extend_from_slice(b",\"init_ms\":");
        json::option(out, info.init, json::millis);
        out.extend_from_slice(b",\"cpu_ms\":");
        json::option(out, info.cpu, json::millis);
        out.extend_from_slice(b",\"max_rss_bytes\":");
        json::option(out, info.max_rss_bytes, json::number);
        out.extend_from_slice(b",\"result\":");
        json::option(out, info.result, |out, result| {
            out.extend_from_slice(b"{\"content_type\":");
            json::string(out, result.content_type);
            out.push(b',');
            self.body(out, (result.body, result.size), self.result_limit, false);
            out.push(b'}');
        });
        out.extend_from_slice(b",\"error\":");
        json::option(out, info.error, |out, error| {
            out.extend_from_slice(b"{\"type\":");
            json::string(out, &self.masks.mask_str(error.kind));
            out.extend_from_slice(b",\"message\":");
            self.error_text(out, error.message);
            out.extend_from_slice(b",\"traceback\":");
            json::option(out, error.traceback, |out, text| self.error_text(out, text));
            out.push(b'}');
        });
        log_counts(out, log.0, log.1);
    }

    /// Whether what is kept of a request's body would not be what was sent, though none of it is cut.
    fn hides_some_of(&self, body: &[u8]) -> bool {
        let (kept, cut) = self.masks.prefix(body, self.input_limit);
        !cut && *kept != *body
    }

    /// The fields `size`, `text` or `base64`, and `truncated`, which is also said if it is not whole for another reason.
    fn body(&self, out: &mut Vec<u8>, (body, size): (&[u8], u64), limit: usize, otherwise_cut: bool) {
        out.extend_from_slice(b"\"size\":");
        json::number(out, size);
        let (kept, cut) = kept(body, limit, &self.masks);
        match kept {
            Kept::Text(text) => {
                out.extend_from_slice(TEXT);
                out.pop();
                json::string(out, &text);
            }
            Kept::Base64(text) => {
                out.extend_from_slice(BASE64);
                out.extend_from_slice(text.as_bytes());
                out.push(b'"');
            }
        }
        out.extend_from_slice(b",\"truncated\":");
        json::boolean(out, cut || otherwise_cut || size > body.len() as u64);
    }

    fn error_text(&self, out: &mut Vec<u8>, text: &str) {
        match kept(text.as_bytes(), MAX_ERROR_TEXT, &self.masks).0 {
            Kept::Text(text) => json::string(out, &text),
            // What is UTF-8 stays UTF-8.
            Kept::Base64(_) => json::string(out, ""),
        }
    }
}

const TEXT: &[u8] = b",\"text\":\"";
const BASE64: &[u8] = b",\"base64\":\"";
const BEGIN: &[u8] = b"{\"v\":1,\"invocation_id\":";
const LOG_BYTES: &[u8] = b",\"log_bytes\":";

fn begin(out: &mut Vec<u8>, id: &str, attempt: u32, seq: u32, kind: &str) {
    out.extend_from_slice(BEGIN);
    json::string(out, id);
    out.extend_from_slice(b",\"attempt\":");
    json::number(out, u64::from(attempt));
    out.extend_from_slice(b",\"seq\":");
    json::number(out, u64::from(seq));
    out.extend_from_slice(b",\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.push(b'"');
}

fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json::string(out, value);
}

fn time(out: &mut Vec<u8>, stamp: &mut Stamp, ms: u64) {
    out.extend_from_slice(b",\"time\":\"");
    out.extend_from_slice(stamp.at(ms));
    out.push(b'"');
}

fn log_counts(out: &mut Vec<u8>, kept: u64, dropped: u64) {
    out.extend_from_slice(LOG_BYTES);
    json::number(out, kept);
    out.extend_from_slice(b",\"log_dropped_bytes\":");
    json::number(out, dropped);
    out.extend_from_slice(b"}\n");
}

pub(super) fn begin_log(out: &mut Vec<u8>, id: &str, attempt: u32, seq: u32) {
    begin(out, id, attempt, seq, "log");
    out.extend_from_slice(b",\"lines\":[");
}

pub(super) fn log_line(out: &mut Vec<u8>, stamp: &mut Stamp, line: &Line<'_>) {
    if out.last() == Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(stamp.at(line.time_ms));
    out.extend_from_slice(b"\",\"stream\":\"");
    out.extend_from_slice(stream_name(line.stream).as_bytes());
    out.extend_from_slice(b"\",\"text\":");
    json::string(out, &String::from_utf8_lossy(line.text));
    if line.init {
        out.extend_from_slice(b",\"phase\":\"init\"");
    }
    out.push(b'}');
}

pub(super) fn end_log(out: &mut Vec<u8>) {
    out.extend_from_slice(b"]}\n");
}

/// Header values as text: what is not UTF-8 is taken as ISO 8859-1, as handlers see it.
fn header_text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.iter().map(|b| char::from(*b)).collect()),
    }
}

fn secret_header(name: &str) -> bool {
    matches!(name, "authorization" | "cookie" | "proxy-authorization" | "x-api-key")
        || name.starts_with("x-sless-")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Started,
    Log,
    Finished,
}

/// The beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// As it stands in the JSON, escapes and all.
    pub(super) id: &'a [u8],
    pub(super) attempt: u32,
    pub(super) seq: u32,
    pub(super) kind: Kind,
}

/// Which attempt of which invocation; the id as it stands in the JSON.
pub(super) type Key = (Box<[u8]>, u32);

impl<'a> Head<'a> {
    pub(super) fn key(&self) -> Key {
        (self.id.into(), self.attempt)
    }

    /// `None`: no line of ours.
    pub(super) fn of(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_prefix(BEGIN)?.strip_prefix(b"\"")?;
        let end = string_end(rest)?;
        let (id, rest) = rest.split_at(end);
        let (attempt, rest) = digits(rest.strip_prefix(b"\",\"attempt\":")?)?;
        let (seq, rest) = digits(rest.strip_prefix(b",\"seq\":")?)?;
        let rest = rest.strip_prefix(b",\"type\":\"")?;
        let kind = match rest.first()? {
            b's' => Kind::Started,
            b'l' => Kind::Log,
            b'f' => Kind::Finished,
            _ => return None,
        };
        Some(Self { id, attempt: u32::try_from(attempt).ok()?, seq: u32::try_from(seq).ok()?, kind })
    }
}

/// Where the JSON string ends that `text` is the inside of.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        from = at + 2;
    }
}

fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let value = std::str::from_utf8(&text[..length]).ok()?.parse().ok()?;
    Some((value, &text[length..]))
}

/// A `finished` line with `more` bytes of its log counted as dropped.
pub(super) fn with_dropped(line: &[u8], more: u64) -> Option<Vec<u8>> {
    let at = memchr::memmem::rfind(line, LOG_BYTES)?;
    let (kept, rest) = digits(&line[at + LOG_BYTES.len()..])?;
    let (dropped, _) = digits(rest.strip_prefix(b",\"log_dropped_bytes\":")?)?;
    // The newline of a last line without one was never there.
    let more = more.min(kept);
    let mut out = line[..at].to_vec();
    log_counts(&mut out, kept - more, dropped + more);
    Some(out)
}

/// A `started` or `finished` line without the text of its body.
pub(super) fn without_text(line: &[u8]) -> Option<Vec<u8>> {
    let (at, marker) = match (memchr::memmem::find(line, TEXT), memchr::memmem::find(line, BASE64)) {
        (Some(at), _) => (at, TEXT),
        (None, Some(at)) => (at, BASE64),
        (None, None) => return None,
    };
    let inside = &line[at + marker.len()..];
    let end = string_end(inside)?;
    let rest = inside[end..].strip_prefix(b"\",\"truncated\":")?;
    let rest = rest.strip_prefix(b"true").or(rest.strip_prefix(b"false"))?;
    if end == 0 {
        return None;
    }
    Some([&line[..at], b",\"text\":\"\",\"truncated\":true", rest].concat())
}

/// A line with another number, as the next supervisor sets it.
pub(super) fn with_seq(line: &[u8], seq: u32) -> Option<Vec<u8>> {
    let marker = b",\"seq\":";
    let at = memchr::memmem::find(line, marker)? + marker.len();
    let (_, rest) = digits(&line[at..])?;
    let mut out = line[..at].to_vec();
    json::number(&mut out, u64::from(seq));
    out.extend_from_slice(rest);
    Some(out)
}

/// Bytes that the lines of a `log` line stand for, newlines included.
pub(super) fn logged_bytes(line: &[u8]) -> u64 {
    #[derive(serde::Deserialize)]
    struct Log<'a> {
        #[serde(borrow)]
        lines: Vec<Text<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Text<'a> {
        #[serde(borrow)]
        text: Cow<'a, str>,
    }
    let log: Log<'_> = serde_json::from_slice(line).unwrap_or(Log { lines: Vec::new() });
    log.lines.iter().map(|l| l.text.len() as u64 + 1).sum()
}

#[cfg(test)]
mod tests;
