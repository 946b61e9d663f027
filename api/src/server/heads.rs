//! Refuses requests that say in two ways how long they are.
//!
//! With both `Content-Length` and `Transfer-Encoding`, whoever stands before or behind us may read the other one and see another
//! request inside (request smuggling). hyper reads by the latter, drops the former and says nothing, so it is looked for here, in the
//! bytes on their way to hyper: the second header's colon is made a byte that no header may hold, and hyper answers 400 and closes.
//!
//! Following the stream needs just enough of HTTP/1.1's framing to know where heads begin. hyper alone decides what a request is:
//! should the two ever differ, a head goes unchecked or is refused, nothing else.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A caller's stream.
#[derive(Debug)]
pub(super) struct Checked<I> {
    stream: I,
    heads: Heads,
}

impl<I> Checked<I> {
    pub(super) fn new(stream: I) -> Self {
        Self { stream, heads: Heads::default() }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Checked<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(new) = buf.filled_mut().get_mut(before..) {
            this.heads.pass(new);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Checked<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const LENGTH: &[u8] = b"content-length";
const ENCODING: &[u8] = b"transfer-encoding";

/// Where in the stream the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a head (or in trailers), at the name of a header or in the first line.
    Name,
    /// Behind the colon of a header that matters not.
    Value,
    /// Behind that of `Content-Length`.
    Length,
    /// In a body of a known length, or in a chunk and the line end behind it.
    Bytes(u64),
    /// At the size of a chunk.
    Size(u64),
    /// Behind it: extensions.
    Extension(u64),
    /// A head was refused: nothing more is to be understood.
    Refused,
}

#[derive(Debug)]
struct Heads {
    at: At,
    /// The name so far, in lower case; longer ones than those that matter are not kept whole.
    name: [u8; ENCODING.len() + 1],
    named: usize,
    /// The line has no byte yet but a carriage return.
    empty: bool,
    /// It is the first line, or one of trailers.
    plain: bool,
    length: Option<u64>,
    chunked: bool,
}

impl Default for Heads {
    fn default() -> Self {
        Self { at: At::Name, name: [0; _], named: 0, empty: true, plain: true, length: None, chunked: false }
    }
}

impl Heads {
    fn pass(&mut self, bytes: &mut [u8]) {
        let mut next = 0;
        while let Some(byte) = bytes.get_mut(next) {
            if let At::Bytes(left) = self.at {
                let here = (bytes.len() - next) as u64;
                next = next.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)).min(bytes.len());
                self.at = At::Bytes(left.saturating_sub(here));
                if left <= here {
                    self.at = if self.chunked { At::Size(0) } else { At::Name };
                    self.begin_unless_chunked();
                }
                continue;
            }
            next += 1;
            self.step(byte);
        }
    }

    fn begin_unless_chunked(&mut self) {
        if !self.chunked {
            *self = Self::default();
        }
    }

    fn step(&mut self, byte: &mut u8) {
        match (self.at, *byte) {
            (At::Name, b'\n') if self.empty => self.end_of_head(),
            (At::Name | At::Value | At::Length, b'\n') => {
                self.at = At::Name;
                (self.named, self.empty, self.plain) = (0, true, self.plain && self.chunked);
            }
            (At::Name, b'\r') => {}
            (At::Name, b':') if !self.plain => {
                let name = self.name.get(..self.named).unwrap_or_default();
                let (length, encoding) = (name == LENGTH, name == ENCODING);
                self.at = if length { At::Length } else { At::Value };
                if (length && self.chunked) || (encoding && self.length.is_some()) {
                    *byte = 0;
                    self.at = At::Refused;
                } else if length {
                    self.length = Some(0);
                } else if encoding {
                    self.chunked = true;
                }
            }
            (At::Name, other) => {
                self.empty = false;
                if let Some(slot) = self.name.get_mut(self.named) {
                    *slot = other.to_ascii_lowercase();
                    self.named += 1;
                }
            }
            (At::Length, digit @ b'0'..=b'9') => {
                let so_far = self.length.unwrap_or(0);
                self.length = Some(so_far.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
            }
            (At::Size(size) | At::Extension(size), b'\n') => {
                // The line end behind a chunk; the last chunk has none, trailers follow it.
                self.at = if size > 0 { At::Bytes(size.saturating_add(2)) } else { At::Name };
                (self.named, self.empty, self.plain) = (0, true, true);
            }
            (At::Size(size), other) => {
                self.at = match char::from(other).to_digit(16) {
                    Some(digit) => At::Size(size.saturating_mul(16).saturating_add(u64::from(digit))),
                    None => At::Extension(size),
                };
            }
            (At::Value | At::Length | At::Extension(_) | At::Bytes(_) | At::Refused, _) => {}
        }
    }

    /// At the empty line behind a head, behind trailers, or before a head.
    fn end_of_head(&mut self) {
        let trailers_or_nothing = self.plain;
        match self.length {
            _ if trailers_or_nothing => *self = Self::default(),
            _ if self.chunked => self.at = At::Size(0),
            Some(length) if length > 0 => self.at = At::Bytes(length),
            _ => *self = Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hyper gets, the stream cut into pieces of each size.
    fn passed(stream: &str) -> Vec<Vec<u8>> {
        let pieces = |size| {
            let mut heads = Heads::default();
            let mut bytes = stream.as_bytes().to_vec();
            bytes.chunks_mut(size).for_each(|piece| heads.pass(piece));
            bytes
        };
        [1, 2, 3, 7, 64, stream.len()].into_iter().map(pieces).collect()
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const KNOWN: &str = "POST /x:y HTTP/1.1\r\nHost: a\r\nContent-Length: 45\r\n\r\ntransfer-encoding: x\r\n\r\ncontent-length: 5\r\n\r\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1A;a=b\r\ncontent-length: 5\r\n\r\nabcde\r\n0\r\nContent-Length: 5\r\n\r\n";
    const BOTH: [&str; 3] = [
        "POST / HTTP/1.1\r\nContent-Length: 4\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\ncontent-length:0\r\n\r\n",
        "POST / HTTP/1.1\nContent-Length: 4\nTransfer-Encoding:\n chunked\n\n",
    ];

    #[test]
    fn requests_of_one_length_pass_as_they_are_whatever_their_bodies_hold() {
        assert_eq!(KNOWN.split_once("\r\n\r\n").unwrap().1.len(), 45);
        for stream in
            [GET.repeat(3), [GET, KNOWN, GET].concat(), [CHUNKED, KNOWN, CHUNKED, "\r\n", GET].concat()]
        {
            for bytes in passed(&stream) {
                assert_eq!(String::from_utf8(bytes).unwrap(), stream);
            }
        }
    }

    #[test]
    fn a_request_of_two_lengths_is_spoiled_wherever_it_comes() {
        for both in BOTH {
            for before in ["", GET, KNOWN, CHUNKED, &[KNOWN, GET, CHUNKED].concat()] {
                let stream = [before, both, GET].concat();
                for bytes in passed(&stream) {
                    assert_eq!(bytes.iter().filter(|b| **b == 0).count(), 1, "{stream}");
                    assert!(bytes.starts_with(before.as_bytes()), "{stream}");
                }
            }
        }
    }
}
