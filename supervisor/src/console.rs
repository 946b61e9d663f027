//! What the supervisor itself prints: the handler's lines and its own messages, as JSON lines or as text.
//!
//! Nobody who prints ever waits: lines are gathered in memory, and a thread writes them. When the reader is stuck, lines
//! are dropped and counted; the count is printed once the reader goes on.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use crate::logs::{Line, LogStream};
use crate::report::json;
use crate::report::time::{Stamp, now_ms};

/// How many bytes may wait for the reader.
const MAX_WAITING: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    /// For people.
    Text,
}

/// Whose line it is.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub namespace: &'a str,
    pub function: &'a str,
    /// Empty for output that belongs to no call.
    pub invocation_id: &'a str,
}

/// Cheap to clone, may be used from any thread.
#[derive(Debug, Clone)]
pub struct Console {
    shared: Arc<Shared>,
    format: Format,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// All is written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    writing: bool,
    dropped: u64,
    dropped_unsaid: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if it did, the lines would still be lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines and takes them.
    fn take(&self, lines: &mut Vec<u8>, format: Format) {
        let mut state = self.lock();
        while state.waiting.is_empty() {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.waiting, lines);
        state.writing = true;
        let dropped = std::mem::take(&mut state.dropped_unsaid);
        drop(state);
        if dropped > 0 {
            let said = format!("{dropped} lines were dropped here: the reader was too slow");
            message(lines, format, "warn", &said, &[]);
        }
    }
}

impl Console {
    /// Prints to `out`, from a thread that lives as long as the process.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(out: impl Write + Send + 'static, format: Format) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        std::thread::Builder::new().name("console".into()).stack_size(64 * 1024).spawn(move || {
            let (mut out, mut lines) = (out, Vec::new());
            loop {
                theirs.take(&mut lines, format);
                // A closed reader is no reason to stop: the lines are in the records too.
                let _ = out.write_all(&lines).and_then(|()| out.flush());
                lines.clear();
                if lines.capacity() > 128 * 1024 {
                    lines = Vec::new();
                }
                theirs.lock().writing = false;
                theirs.idle.notify_all();
            }
        })?;
        Ok(Self { shared, format })
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// How many lines the reader was too slow for.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// Prints whole lines.
    pub fn print(&self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.waiting.len() + lines.len() > MAX_WAITING && !state.waiting.is_empty() {
            let count = memchr::memchr_iter(b'\n', lines).count() as u64;
            state.dropped += count;
            state.dropped_unsaid += count;
            return;
        }
        state.waiting.extend_from_slice(lines);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Waits until all is written or `limit` has passed.
    pub fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        while state.writing || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Appends a handler's line to `out`, which goes to [`Self::print`] in the end.
    pub(crate) fn format_line(
        &self,
        out: &mut Vec<u8>,
        stamp: &mut Stamp,
        origin: &Origin<'_>,
        line: &Line<'_>,
    ) {
        let stream = stream_name(line.stream);
        let text = String::from_utf8_lossy(line.text);
        match self.format {
            Format::Json => {
                out.extend_from_slice(b"{\"time\":\"");
                out.extend_from_slice(stamp.at(line.time_ms));
                out.extend_from_slice(b"\",\"level\":\"info\",\"stream\":\"");
                out.extend_from_slice(stream.as_bytes());
                out.extend_from_slice(b"\",\"namespace\":");
                json::string(out, origin.namespace);
                out.extend_from_slice(b",\"function\":");
                json::string(out, origin.function);
                if !origin.invocation_id.is_empty() {
                    out.extend_from_slice(b",\"invocation_id\":");
                    json::string(out, origin.invocation_id);
                }
                out.extend_from_slice(b",\"message\":");
                json::string(out, &text);
                out.extend_from_slice(b"}\n");
            }
            Format::Text => {
                out.extend_from_slice(stamp.at(line.time_ms));
                for word in [stream, origin.invocation_id] {
                    if !word.is_empty() {
                        out.push(b' ');
                        out.extend_from_slice(word.as_bytes());
                    }
                }
                out.extend_from_slice(b" | ");
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
            }
        }
    }
}

#[must_use]
pub fn stream_name(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout => "stdout",
        LogStream::Stderr => "stderr",
    }
}

/// Appends a message of the supervisor itself; `more` is fields in this format.
fn message(out: &mut Vec<u8>, format: Format, level: &str, text: &str, more: &[u8]) {
    let mut stamp = Stamp::default();
    let now = stamp.at(now_ms());
    match format {
        Format::Json => {
            out.extend_from_slice(b"{\"time\":\"");
            out.extend_from_slice(now);
            out.extend_from_slice(b"\",\"level\":\"");
            out.extend_from_slice(level.as_bytes());
            out.extend_from_slice(b"\",\"message\":");
            json::string(out, text);
            out.extend_from_slice(more);
            out.extend_from_slice(b"}\n");
        }
        Format::Text => {
            out.extend_from_slice(now);
            out.push(b' ');
            out.extend_from_slice(level.as_bytes());
            out.push(b' ');
            out.extend_from_slice(text.replace('\n', "\n    ").as_bytes());
            out.extend_from_slice(more);
            out.push(b'\n');
        }
    }
}

/// Prints the supervisor's own messages (`info` and above); spans are not followed.
#[derive(Debug)]
pub struct Messages(Console);

impl Messages {
    #[must_use]
    pub fn new(console: Console) -> Self {
        Self(console)
    }
}

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.is_event()
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::INFO)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields { format: self.0.format, message: String::new(), more: Vec::new() };
        event.record(&mut fields);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            _ => "info",
        };
        let mut out = Vec::with_capacity(160);
        message(&mut out, self.0.format, level, &fields.message, &fields.more);
        self.0.print(&out);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Fields {
    format: Format,
    message: String,
    more: Vec<u8>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str, quoted: bool) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        match self.format {
            Format::Json => {
                self.more.push(b',');
                json::string(&mut self.more, field.name());
                self.more.push(b':');
                if quoted {
                    json::string(&mut self.more, value);
                } else {
                    self.more.extend_from_slice(value.as_bytes());
                }
            }
            Format::Text => {
                self.more.push(b' ');
                self.more.extend_from_slice(field.name().as_bytes());
                self.more.push(b'=');
                self.more.extend_from_slice(value.as_bytes());
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, &format!("{value:?}"), true);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, true);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string(), false);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value.to_string(), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, &value.to_string(), false);
    }
}

#[cfg(test)]
mod tests;
