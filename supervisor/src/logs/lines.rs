//! Splits a stream into lines and long lines into parts.

use super::MAX_LINE;
use crate::mask::{Masks, Stream};

#[derive(Debug, Default)]
pub(super) struct Lines {
    mask: Stream,
    /// A line without its end. At most `MAX_LINE` bytes, and a `\r` that may belong to the newline.
    partial: Vec<u8>,
}

impl Lines {
    /// `take` gets each whole line without its end, and its size with it.
    pub(super) fn feed(&mut self, masks: &Masks, bytes: &[u8], take: &mut impl FnMut(&[u8], usize)) {
        if masks.is_empty() {
            self.split(bytes, take);
        } else {
            let mut masked = Vec::with_capacity(bytes.len());
            self.mask.feed(masks, bytes, &mut masked);
            self.split(&masked, take);
        }
    }

    /// The stream has ended: what is left is a line.
    pub(super) fn end(mut self, take: &mut impl FnMut(&[u8], usize)) {
        let mut masked = Vec::new();
        self.mask.end(&mut masked);
        self.split(&masked, take);
        if !self.partial.is_empty() {
            take(without_cr(&self.partial), self.partial.len());
        }
    }

    fn split(&mut self, mut bytes: &[u8], take: &mut impl FnMut(&[u8], usize)) {
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let line = self.cut(&bytes[..at], take);
            if self.partial.is_empty() {
                take(without_cr(line), line.len() + 1);
            } else {
                self.partial.extend_from_slice(line);
                take(without_cr(&self.partial), self.partial.len() + 1);
                self.partial.clear();
            }
            bytes = &bytes[at + 1..];
        }
        let rest = self.cut(bytes, take);
        self.partial.extend_from_slice(rest);
    }

    /// Hands out parts while the line, begun in `partial` and going on in `more`, is too long; returns what is left of `more`.
    fn cut<'a>(&mut self, mut more: &'a [u8], take: &mut impl FnMut(&[u8], usize)) -> &'a [u8] {
        while too_long(&self.partial, more) {
            if self.partial.is_empty() {
                let at = border(more, MAX_LINE);
                take(&more[..at], at);
                more = &more[at..];
                continue;
            }
            // One byte more than a part, so that `border` sees what follows.
            let wanted = (MAX_LINE + 1).saturating_sub(self.partial.len()).min(more.len());
            self.partial.extend_from_slice(&more[..wanted]);
            more = &more[wanted..];
            let at = border(&self.partial, MAX_LINE);
            take(&self.partial[..at], at);
            self.partial.drain(..at);
        }
        more
    }
}

fn too_long(partial: &[u8], more: &[u8]) -> bool {
    let length = partial.len() + more.len();
    // A `\r` at the end is perhaps no part of the text.
    length > MAX_LINE + 1 || (length > MAX_LINE && more.last().or(partial.last()) != Some(&b'\r'))
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The last place up to `at` where no UTF-8 character is cut; `at` itself where there is no UTF-8.
fn border(text: &[u8], at: usize) -> usize {
    let continues = |i: usize| text.get(i).is_some_and(|b| b & 0xC0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|&i| i > 0 && !continues(i)).unwrap_or(at)
}
