//! The last lines of a log: a ring of whole lines of both streams, in the order in which they came.

use std::collections::VecDeque;

use super::{Line, LogStream};

#[derive(Debug)]
pub(super) struct Tail {
    capacity: usize,
    /// Sum of the entries' sizes.
    size: usize,
    /// Texts, one after another; those before `start` are gone.
    bytes: Vec<u8>,
    start: usize,
    entries: VecDeque<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    time_ms: u64,
    /// As written, newline included.
    size: u32,
    /// Of the text.
    length: u32,
    stream: LogStream,
    init: bool,
}

impl Tail {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, size: 0, bytes: Vec::new(), start: 0, entries: VecDeque::new() }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn first_ms(&self) -> Option<u64> {
        self.entries.front().map(|e| e.time_ms)
    }

    /// Adds a line and lets the oldest go; returns how many bytes have gone.
    pub(super) fn push(&mut self, line: &Line<'_>, size: usize) -> u64 {
        let mut gone = 0;
        if size > self.capacity {
            // Nothing before it may stay either: what is left out is one stretch.
            gone = self.size + size;
            self.size = 0;
            self.entries.clear();
            self.bytes.clear();
            self.start = 0;
            return gone as u64;
        }
        while self.size + size > self.capacity
            && let Some(old) = self.entries.pop_front()
        {
            self.size -= old.size as usize;
            self.start += old.length as usize;
            gone += old.size as usize;
        }
        if self.start > self.capacity {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.size += size;
        self.bytes.extend_from_slice(line.text);
        self.entries.push_back(Entry {
            time_ms: line.time_ms,
            // A part of a line has at most 16 KiB and a terminator.
            size: u32::try_from(size).unwrap_or(u32::MAX),
            length: u32::try_from(line.text.len()).unwrap_or(u32::MAX),
            stream: line.stream,
            init: line.init,
        });
        gone as u64
    }

    pub(super) fn each(&self, take: &mut impl FnMut(Line<'_>)) {
        let mut at = self.start;
        for entry in &self.entries {
            let end = at + entry.length as usize;
            take(Line {
                time_ms: entry.time_ms,
                stream: entry.stream,
                init: entry.init,
                text: &self.bytes[at..end],
            });
            at = end;
        }
    }
}
