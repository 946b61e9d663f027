//! A call's output as lines: split, masked, held to its limit.
//!
//! Of a log longer than the limit the first three quarters and the end are kept, in whole lines; what is between is
//! counted. The beginning is handed out as it comes, the end when the call has ended.

mod lines;
mod tail;

pub use sless_protocol::frame::LogStream;

use crate::mask::Masks;
use lines::Lines;
use tail::Tail;

/// Longest part of a line, in bytes; longer lines are cut.
pub const MAX_LINE: usize = 16 * 1024;

/// One line, without its newline. Not always UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Unix time in milliseconds.
    pub time_ms: u64,
    pub stream: LogStream,
    /// Written before the worker was ready.
    pub init: bool,
    pub text: &'a [u8],
}

/// The output of one call. Without output it costs nothing.
///
/// Bytes are counted after masking, newlines included: `kept + dropped = written`.
#[derive(Debug)]
pub struct CallLog {
    limit: usize,
    head_used: usize,
    /// There once a line did not fit into the first three quarters.
    tail: Option<Tail>,
    dropped: u64,
    written: [u64; 2],
    streams: [Lines; 2],
    init: bool,
    last_ms: u64,
}

/// How much there was in all, when a call has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub kept: u64,
    pub dropped: u64,
    pub stdout: u64,
    pub stderr: u64,
}

impl CallLog {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            head_used: 0,
            tail: None,
            dropped: 0,
            written: [0; 2],
            streams: Default::default(),
            init: false,
            last_ms: 0,
        }
    }

    /// Takes what was read from one stream; `live` gets the lines that are kept for certain.
    pub fn feed(
        &mut self,
        masks: &Masks,
        stream: LogStream,
        bytes: &[u8],
        now_ms: u64,
        live: &mut impl FnMut(Line<'_>),
    ) {
        self.last_ms = now_ms;
        let mut lines = std::mem::take(&mut self.streams[stream as usize]);
        lines.feed(masks, bytes, &mut |text, size| self.admit(stream, text, size, live));
        self.streams[stream as usize] = lines;
    }

    /// Bytes kept and dropped up to now; those of a line without an end are not among them.
    #[must_use]
    pub fn so_far(&self) -> (u64, u64) {
        let tail = self.tail.as_ref().map_or(0, Tail::size);
        ((self.head_used + tail) as u64, self.dropped)
    }

    /// Ends the lines that have no newline.
    fn end_lines(&mut self, live: &mut impl FnMut(Line<'_>)) {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            let lines = std::mem::take(&mut self.streams[stream as usize]);
            lines.end(&mut |text, size| self.admit(stream, text, size, live));
        }
    }

    /// The call has ended: `rest` gets what is still to come, in order.
    pub fn finish(mut self, rest: &mut impl FnMut(Line<'_>)) -> Totals {
        self.end_lines(rest);
        if self.dropped > 0 && self.limit > 0 {
            let text = format!("[sless: {} bytes of output are left out here]", self.dropped);
            let time_ms = self.tail.as_ref().and_then(Tail::first_ms).unwrap_or(self.last_ms);
            rest(Line { time_ms, stream: LogStream::Stderr, init: false, text: text.as_bytes() });
        }
        let mut kept = self.head_used as u64;
        if let Some(tail) = &self.tail {
            tail.each(rest);
            kept += tail.size() as u64;
        }
        let [stdout, stderr] = self.written;
        Totals { kept, dropped: self.dropped, stdout, stderr }
    }

    /// `size`: bytes of the line as written, its newline included.
    fn admit(&mut self, stream: LogStream, text: &[u8], size: usize, live: &mut impl FnMut(Line<'_>)) {
        self.written[stream as usize] += size as u64;
        let line = Line { time_ms: self.last_ms, stream, init: self.init, text };
        match &mut self.tail {
            Some(tail) => self.dropped += tail.push(&line, size),
            None if self.head_used + size <= self.limit - self.limit / 4 => {
                self.head_used += size;
                live(line);
            }
            None => {
                // All that the head left over: a log within the limit is whole.
                let mut tail = Tail::new(self.limit - self.head_used);
                self.dropped += tail.push(&line, size);
                self.tail = Some(tail);
            }
        }
    }
}

/// What a worker prints before it is ready; goes into the log of its first call.
#[derive(Debug)]
pub struct InitLog {
    log: CallLog,
    head: Tail,
}

impl InitLog {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let mut log = CallLog::new(limit);
        log.init = true;
        Self { log, head: Tail::new(limit) }
    }

    pub fn feed(&mut self, masks: &Masks, stream: LogStream, bytes: &[u8], now_ms: u64) {
        let head = &mut self.head;
        self.log.feed(masks, stream, bytes, now_ms, &mut |line| {
            head.push(&line, line.text.len());
        });
    }

    /// Makes it the beginning of a call's log.
    pub fn into_call(mut self, live: &mut impl FnMut(Line<'_>)) -> CallLog {
        self.head.each(live);
        self.log.end_lines(live);
        self.log.init = false;
        self.log
    }
}

#[cfg(test)]
mod tests;
