//! Events that wait for delivery, in order: in files where there is a folder with room, else in memory.
//!
//! Lines of a file that are no event begin with a sign: `~` a `finished` that counts only if no other follows, `=` the
//! `started` of an open call, delivered already and kept for the next supervisor.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::event::{self, Head, Key, Kind};
use super::segment::{Dir, Mark, Segment, Span};

/// Most bytes that wait in memory while the disk is full.
const MAX_MEMORY: u64 = 8 << 20;
/// How long a folder that refused is left alone.
const RETRY_DISK: Duration = Duration::from_secs(1);
pub(super) const PROVISIONAL: u8 = b'~';
pub(super) const CARRIED: u8 = b'=';

#[derive(Debug)]
pub(super) struct Spool {
    base: Option<PathBuf>,
    dir: Option<Rc<Dir>>,
    limit: u64,
    memory_limit: u64,
    segment_size: u64,
    segments: VecDeque<Segment>,
    next_id: u64,
    pending: u64,
    retry_disk: Option<Instant>,
    /// Segment and end of the batch that is on its way.
    in_flight: Option<(u64, u64)>,
    /// Log bytes let go, of calls whose `finished` is still to be corrected.
    shed_logs: HashMap<Key, u64>,
    lost: u64,
}

/// Whole lines on their way.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) body: Vec<u8>,
    pub(super) events: u64,
    segment: u64,
    /// Calls whose `finished` was corrected in it.
    corrected: Vec<Key>,
}

/// What an appended line means for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Started(u64),
    Log,
    Provisional(u64),
    Finished { call: u64, provisional: bool },
}

impl Spool {
    pub(super) fn new(base: Option<PathBuf>, limit: u64) -> Self {
        let memory_limit = if base.is_some() { limit.min(MAX_MEMORY) } else { limit };
        let mut spool = Self {
            base,
            dir: None,
            limit,
            memory_limit,
            segment_size: (limit / 64).clamp(4 << 10, 4 << 20),
            segments: VecDeque::new(),
            next_id: 1,
            pending: 0,
            retry_disk: None,
            in_flight: None,
            shed_logs: HashMap::new(),
            lost: 0,
        };
        spool.dir();
        spool
    }

    /// The folder of this process, made when it can be.
    pub(super) fn dir(&mut self) -> Option<Rc<Dir>> {
        let base = self.base.as_ref()?;
        if self.dir.is_none() && self.retry_disk.is_none_or(|at| at <= Instant::now()) {
            match Dir::create(base) {
                Ok(dir) => self.dir = Some(Rc::new(dir)),
                Err(e) => self.disk_refused(&e),
            }
        }
        self.dir.clone()
    }

    fn disk_refused(&mut self, error: &io::Error) {
        if self.retry_disk.is_none() {
            tracing::warn!(%error, "spool folder cannot be written; records wait in memory");
        }
        self.retry_disk = Some(Instant::now() + RETRY_DISK);
    }

    /// Bytes that wait.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Outcomes let go for want of room.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// A `log` line that no answer would take: its bytes count as dropped.
    pub(super) fn note_shed(&mut self, line: &[u8]) {
        if let Some(head) = Head::of(line) {
            *self.shed_logs.entry(head.key()).or_default() += event::logged_bytes(line);
        }
    }

    pub(super) fn note_lost(&mut self, outcomes: u64) {
        self.lost += outcomes;
    }

    /// Appends one whole line, or with [`Line::Log`] any number.
    pub(super) fn append(&mut self, kind: Line, bytes: &[u8]) {
        self.append_all(&[(kind, bytes.len())], bytes);
    }

    /// The same for several, which lie one behind another in `bytes`, in one write.
    pub(super) fn append_all(&mut self, lines: &[(Line, usize)], bytes: &[u8]) {
        self.append_lines(lines, bytes);
        if self.pending > self.limit || self.in_memory() > self.memory_limit {
            self.shed();
        }
    }

    fn append_lines(&mut self, lines: &[(Line, usize)], bytes: &[u8]) {
        if self.retry_disk.is_some_and(|at| at <= Instant::now()) {
            self.persist();
        }
        if !self.segments.back().is_some_and(|s| s.shed == 0 && !s.adopted && s.length < self.segment_size) {
            self.push_segment();
        }
        let failed = self.segments.back_mut().and_then(|last| last.append(bytes).err());
        if let Some(error) = failed {
            self.disk_refused(&error);
            self.push_memory();
            let _ = self.segments.back_mut().map(|last| last.append(bytes));
        }
        let size = bytes.len() as u64;
        self.pending += size;
        let Some((id, end)) = self.segments.back().map(|last| (last.id, last.length)) else { return };
        let mut at = end - size;
        for &(kind, length) in lines {
            let span = Span { at, length: length as u64, finished: None };
            at += length as u64;
            self.mark(kind, span, (id, at));
        }
    }

    /// Notes what a line that ends at `end` of the last segment means for its call.
    fn mark(&mut self, kind: Line, span: Span, end: (u64, u64)) {
        let opened = match kind {
            Line::Log => return,
            Line::Started(call) => Mark::Started(call),
            Line::Provisional(call) => Mark::Provisional(call),
            Line::Finished { call, provisional } => {
                self.close(Mark::Started(call), end);
                if provisional {
                    self.close(Mark::Provisional(call), end);
                }
                return;
            }
        };
        if let Some(last) = self.segments.back_mut() {
            last.open.insert(opened, span);
        }
    }

    /// The call of `mark` is over, as the line that ends at `end` says.
    fn close(&mut self, mark: Mark, end: (u64, u64)) {
        for segment in self.segments.iter_mut().rev() {
            if segment.id == end.0 && segment.open.remove(&mark).is_some() {
                return;
            }
            if let Some(span) = segment.open.get_mut(&mark) {
                // Its segment may go before the end is delivered: the line stays until then.
                span.finished = Some(end);
                return;
            }
        }
    }

    fn push_segment(&mut self) {
        let (id, dir) = (self.next_id, self.dir());
        let behind_memory = self.segments.iter().any(Segment::in_memory);
        if let Some(dir) = dir
            && !behind_memory
        {
            match Segment::create(id, &dir) {
                Ok(segment) => return self.push(segment),
                Err(e) => self.disk_refused(&e),
            }
        }
        self.push_memory();
    }

    fn push_memory(&mut self) {
        self.push(Segment::memory(self.next_id));
    }

    fn push(&mut self, segment: Segment) {
        self.next_id += 1;
        if self.segments.len() > 1
            && let Some(last) = self.segments.back_mut()
        {
            last.close();
        }
        self.segments.push_back(segment);
    }

    /// Puts what waits in memory into files, now that there may be room again.
    pub(super) fn persist(&mut self) {
        if self.base.is_none() {
            return;
        }
        self.retry_disk = None;
        let Some(dir) = self.dir() else { return };
        for segment in self.segments.iter_mut().filter(|s| s.in_memory()) {
            let moved = segment.read(0, segment.length).and_then(|lines| {
                let mut file = Segment::create(segment.id, &dir)?;
                match file.append(&lines) {
                    Ok(()) => Ok(file),
                    Err(e) => {
                        file.remove();
                        Err(e)
                    }
                }
            });
            match moved {
                Ok(mut file) => {
                    (file.sent, file.shed) = (segment.sent, segment.shed);
                    file.open = std::mem::take(&mut segment.open);
                    *segment = file;
                }
                Err(e) => {
                    self.retry_disk = Some(Instant::now() + RETRY_DISK);
                    tracing::debug!(error = %e, "spool folder still cannot be written");
                    return;
                }
            }
        }
        tracing::info!("spool folder can be written again");
    }

    /// Puts in front what another supervisor left; `ends`: lines that end the calls it left open.
    pub(super) fn adopt(&mut self, dir: &Rc<Dir>, files: &[(u64, u64, u64)], ends: &[u8]) {
        // What is on its way stays the first.
        let mut at = usize::from(self.in_flight.is_some() && !self.segments.is_empty());
        for &(no, length, sent) in files {
            let segment = Segment::adopted(self.next_id, dir, no, length, sent);
            self.next_id += 1;
            self.pending += segment.pending();
            self.segments.insert(at, segment);
            at += 1;
        }
        if !ends.is_empty() {
            // Found no room beside the files; files of ours come after it once there is.
            self.retry_disk.get_or_insert_with(Instant::now);
            let mut segment = Segment::memory(self.next_id);
            self.next_id += 1;
            let _ = segment.append(ends);
            self.pending += segment.pending();
            self.segments.insert(at, segment);
        }
        if self.pending > self.limit {
            self.shed();
        }
    }

    /// The next lines, at most about `max` bytes but always one; `None` when nothing waits.
    pub(super) fn next_batch(&mut self, max: u64) -> Option<Batch> {
        loop {
            let index = self.segments.iter().position(|s| s.pending() > 0)?;
            let segment = &mut self.segments[index];
            let (id, from) = (segment.id, segment.sent);
            let lines = match read_lines(segment, max) {
                Ok(lines) => lines,
                Err(error) => {
                    tracing::error!(%error, "a file of the spool cannot be read; its records are lost");
                    let gone = segment.pending();
                    segment.sent = segment.length;
                    self.pending -= gone;
                    self.lost += 1;
                    self.tidy();
                    continue;
                }
            };
            let end = from + lines.len() as u64;
            self.in_flight = Some((id, end));
            let batch = self.filter(lines, id);
            if batch.events > 0 {
                return Some(batch);
            }
            self.delivered(&batch);
        }
    }

    /// Takes out what is no event, and corrects what was written before its log was let go.
    fn filter(&self, lines: Vec<u8>, segment: u64) -> Batch {
        let (mut events, mut plain) = (0, self.shed_logs.is_empty());
        for line in split(&lines) {
            if line.first() == Some(&b'{') {
                events += 1;
            } else {
                plain = false;
            }
        }
        let mut corrected = Vec::new();
        if plain {
            return Batch { body: lines, events, segment, corrected };
        }
        let mut body = Vec::with_capacity(lines.len());
        for line in split(&lines).filter(|line| line.first() == Some(&b'{')) {
            if let Some(head) = Head::of(line).filter(|h| h.kind == Kind::Finished)
                && let Some(dropped) = self.shed_logs.get(&head.key())
                && let Some(line) = event::with_dropped(line, *dropped)
            {
                body.extend_from_slice(&line);
                corrected.push(head.key());
            } else {
                body.extend_from_slice(line);
            }
        }
        Batch { body, events, segment, corrected }
    }

    /// `batch` is stored for good.
    pub(super) fn delivered(&mut self, batch: &Batch) {
        let Some((id, end)) = self.in_flight.take() else { return };
        debug_assert_eq!(id, batch.segment);
        for key in &batch.corrected {
            self.shed_logs.remove(key);
        }
        if let Some(segment) = self.segments.iter_mut().find(|s| s.id == id) {
            self.pending -= end - segment.sent;
            segment.set_sent(end);
        }
        self.tidy();
    }

    /// `batch` is not stored: it comes again.
    pub(super) fn failed(&mut self) {
        self.in_flight = None;
    }

    /// Removes what is delivered, but for the lines of open calls.
    fn tidy(&mut self) {
        loop {
            let alone = self.segments.len() == 1;
            let Some(first) = self.segments.front_mut().filter(|s| s.pending() == 0) else { return };
            if alone && !first.adopted {
                // Any other segment that an end was in is delivered and gone.
                let (id, sent) = (first.id, first.sent);
                first
                    .open
                    .retain(|_, span| span.finished.is_none_or(|(other, end)| other == id && end > sent));
                let kept: u64 = first.open.values().map(|s| s.length).sum();
                if first.length == 0 {
                    return;
                }
                if kept == 0 {
                    if let Some(Err(error)) = self.segments.front_mut().map(Segment::clear) {
                        tracing::debug!(%error, "a file of the spool cannot be emptied");
                        self.push_segment();
                        continue;
                    }
                    return;
                }
                // To move the lines of open calls pays when most of the file is something else.
                if first.length < self.segment_size || kept > first.length / 2 {
                    return;
                }
                self.push_segment();
            }
            let Some(first) = self.segments.pop_front() else { return };
            self.carry(first);
        }
    }

    /// Moves the lines of calls that are not over out of a segment that goes.
    fn carry(&mut self, mut segment: Segment) {
        let mut open: Vec<_> = segment.open.drain().collect();
        open.sort_unstable_by_key(|(_, span)| span.at);
        for (mark, span) in open {
            let over = span.finished.is_some_and(|(id, end)| {
                self.segments.iter().find(|s| s.id == id).is_none_or(|s| s.sent >= end)
            });
            let Ok(line) = segment.read(span.at, span.length) else { continue };
            if over {
                continue;
            }
            let kind = match mark {
                Mark::Started(call) => Line::Started(call),
                Mark::Provisional(call) => Line::Provisional(call),
            };
            let sign: &[u8] = if line.first() == Some(&b'{') { &[CARRIED] } else { &[] };
            let line = [sign, &line[..]].concat();
            self.append_lines(&[(kind, line.len())], &line);
            if let Some(moved) = self.segments.back_mut().and_then(|s| s.open.get_mut(&mark)) {
                moved.finished = span.finished;
            }
        }
        segment.remove();
    }

    fn in_memory(&self) -> u64 {
        // Only behind a folder that refused, or without one, is there anything to add up.
        if self.base.is_some() && self.retry_disk.is_none() {
            return 0;
        }
        self.segments.iter().filter(|s| s.in_memory()).map(|s| s.length).sum()
    }

    /// Lets go what matters least until the rest has room: first log lines, then texts, last whole outcomes, each the oldest
    /// first. Makes a little more room than is needed, so that it is not called for each event.
    fn shed(&mut self) {
        for level in 1..=2 {
            for index in 0..self.segments.len() {
                let (over, over_memory) = self.over();
                if !over && !over_memory {
                    return;
                }
                if self.segments[index].shed < level && (over || self.segments[index].in_memory()) {
                    self.shed_segment(index, level);
                }
            }
        }
        // Each round takes one away, and may add one for the lines of calls that are not over.
        for _ in 0..self.segments.len() {
            let (over, over_memory) = self.over();
            let sent = self.in_flight.map(|(id, _)| id);
            let oldest = self.segments.iter().position(|s| Some(s.id) != sent && (over || s.in_memory()));
            match oldest {
                Some(index) if over || over_memory => self.drop_segment(index),
                _ => return,
            }
        }
    }

    fn over(&self) -> (bool, bool) {
        let room = |limit: u64| limit - limit / 16;
        (self.pending > room(self.limit), self.in_memory() > room(self.memory_limit))
    }

    /// Lets go the outcomes of a segment; what began in it and ends later stays.
    fn drop_segment(&mut self, index: usize) {
        let Some(mut segment) = self.segments.remove(index) else { return };
        self.pending -= segment.pending();
        let lines = segment.read(segment.sent, segment.pending()).unwrap_or_default();
        segment.sent = segment.length;
        let heads = || split(&lines).filter_map(|line| Some((line, Head::of(line)?)));
        let finished: HashSet<Key> =
            heads().filter(|(_, h)| h.kind == Kind::Finished).map(|(_, h)| h.key()).collect();
        self.lost += finished.len() as u64;
        let spans: Vec<_> = segment.open.values().copied().collect();
        let open: HashSet<_> = spans.iter().filter_map(|s| segment.read(s.at, s.length).ok()).collect();
        self.carry(segment);
        for (line, head) in heads() {
            // Those of open calls are carried already.
            if head.kind == Kind::Started && !finished.contains(&head.key()) && !open.contains(line) {
                self.append_lines(&[(Line::Log, line.len())], line);
            }
        }
        for key in finished {
            self.shed_logs.remove(&key);
        }
    }

    fn shed_segment(&mut self, index: usize, level: u8) {
        let segment = &mut self.segments[index];
        segment.shed = level;
        let Ok(lines) = segment.read(0, segment.length) else { return };
        let fixed = self.in_flight.filter(|(id, _)| *id == segment.id).map_or(segment.sent, |(_, end)| end);
        let mut marks: HashMap<u64, Mark> =
            segment.open.iter().map(|(mark, span)| (span.at, *mark)).collect();
        let mut out = Vec::with_capacity(lines.len());
        let (mut at, mut sent, mut fixed_end) = (0, 0, 0);
        for line in split(&lines) {
            let mark = marks.remove(&at);
            let new_at = out.len() as u64;
            if at < segment.sent {
                // Delivered: only open calls still need it.
                if mark.is_some() {
                    if line.first() == Some(&b'{') {
                        out.push(CARRIED);
                    }
                    out.extend_from_slice(line);
                }
            } else if at < fixed {
                out.extend_from_slice(line);
            } else {
                let less = lessen(line, level, &mut self.shed_logs);
                match less {
                    Less::Line => out.extend_from_slice(line),
                    Less::Other(other) => out.extend_from_slice(&other),
                    Less::Gone => {}
                }
            }
            at += line.len() as u64;
            if at <= segment.sent {
                sent = out.len() as u64;
            }
            if at <= fixed {
                fixed_end = out.len() as u64;
            }
            if let Some(mark) = mark {
                let length = out.len() as u64 - new_at;
                if length == 0 {
                    segment.open.remove(&mark);
                } else if let Some(span) = segment.open.get_mut(&mark) {
                    (span.at, span.length) = (new_at, length);
                }
            }
        }
        let before = segment.pending();
        segment.replace(out);
        segment.set_sent(sent);
        self.pending = self.pending - before + segment.pending();
        if let Some((id, end)) = &mut self.in_flight
            && *id == segment.id
        {
            *end = fixed_end;
        }
    }
}

impl Drop for Spool {
    /// An empty file is nothing to leave behind.
    fn drop(&mut self) {
        for segment in self.segments.drain(..) {
            if segment.length == 0 {
                segment.remove();
            }
        }
    }
}

enum Less {
    Line,
    Other(Vec<u8>),
    Gone,
}

/// What is left of a line at a level of want.
fn lessen(line: &[u8], level: u8, shed_logs: &mut HashMap<Key, u64>) -> Less {
    let Some(head) = Head::of(line) else { return Less::Line };
    match head.kind {
        Kind::Log => {
            *shed_logs.entry(head.key()).or_default() += event::logged_bytes(line);
            Less::Gone
        }
        kind => {
            let mut other = None;
            if kind == Kind::Finished
                && let Some(dropped) = shed_logs.remove(&head.key())
            {
                other = event::with_dropped(line, dropped);
            }
            if level == 2 {
                let now = event::without_text(other.as_deref().unwrap_or(line));
                other = now.or(other);
            }
            other.map_or(Less::Line, Less::Other)
        }
    }
}

/// Whole lines of `text`, each with its newline.
pub(super) fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|b| *b == b'\n').filter(|line| line.last() == Some(&b'\n'))
}

/// Whole lines from where delivery stands: about `max` bytes, but one line at least.
fn read_lines(segment: &mut Segment, max: u64) -> io::Result<Vec<u8>> {
    let max = max.max(1);
    let mut size = max;
    loop {
        let mut lines = segment.read(segment.sent, size.min(segment.pending()))?;
        // A line longer than asked for comes alone.
        let end = if size > max { memchr::memchr(b'\n', &lines) } else { memchr::memrchr(b'\n', &lines) };
        if let Some(end) = end {
            lines.truncate(end + 1);
            return Ok(lines);
        }
        if size >= segment.pending() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
        }
        size *= 2;
    }
}

#[cfg(test)]
mod tests;
