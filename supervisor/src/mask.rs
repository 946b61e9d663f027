//! Secret values become `***`, in streams and in whole texts, before anything is cut.
//!
//! A value of 6 characters or more is looked for as written and as JSON escapes it, a value of several lines line by
//! line. Values that overlap where they are found become one `***`; values side by side become one each.

use std::borrow::Cow;
use std::rc::Rc;

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// Shorter values are not masked: they would hit ordinary words.
const MIN_CHARS: usize = 6;
const MASK: &[u8] = b"***";
/// How much of a body is masked at a time while enough of it is kept.
const PIECE: usize = 64 * 1024;

/// The values to mask; cheap to clone. Without values nothing is searched or copied.
#[derive(Clone, Default)]
pub struct Masks(Option<Rc<Inner>>);

struct Inner {
    automaton: AhoCorasick,
    patterns: Vec<Vec<u8>>,
    longest: usize,
}

impl std::fmt::Debug for Masks {
    /// Says how many, never which.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masks({})", self.0.as_ref().map_or(0, |i| i.patterns.len()))
    }
}

impl Masks {
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// # Errors
    /// Values too large in all for one automaton (hundreds of megabytes).
    pub fn new<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Result<Self, aho_corasick::BuildError> {
        let mut patterns = Vec::new();
        for value in values {
            let value = value.as_ref();
            let before = patterns.len();
            for line in value.split(['\n', '\r']) {
                add_forms(line, &mut patterns);
            }
            if patterns.len() == before {
                // Its lines are too short one by one; together they are not.
                add_forms(value, &mut patterns);
            }
        }
        patterns.sort_unstable();
        patterns.dedup();
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns)?;
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Self(Some(Rc::new(Inner { automaton, patterns, longest }))))
    }

    /// Bytes of the longest value: so much more than a limit must be kept for a value across it to be found.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| inner.longest)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All of `text`, masked.
    #[must_use]
    pub fn mask<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.0 {
            Some(inner) if inner.automaton.is_match(text) => {
                let (mut stream, mut out) = (Stream::default(), Vec::with_capacity(text.len()));
                stream.feed(self, text, &mut out);
                stream.end(&mut out);
                Cow::Owned(out)
            }
            _ => Cow::Borrowed(text),
        }
    }

    /// [`Self::mask`] for what is a `str`: masking takes out whole characters, so it stays one.
    #[must_use]
    pub fn mask_str<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.mask(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(masked) => Cow::Owned(String::from_utf8_lossy(&masked).into_owned()),
        }
    }

    /// The first `limit` bytes of `body` as masked, and whether that is less than all.
    /// Looks at little more of `body` than it keeps.
    #[must_use]
    pub fn prefix<'a>(&self, body: &'a [u8], limit: usize) -> (Cow<'a, [u8]>, bool) {
        if self.is_empty() || body.is_empty() {
            return (Cow::Borrowed(&body[..body.len().min(limit)]), body.len() > limit);
        }
        let (mut stream, mut out) = (Stream::default(), Vec::new());
        let mut pieces = body.chunks(PIECE);
        // One byte more than is kept, so that a body that ends at the limit is not called truncated.
        while out.len() <= limit
            && let Some(piece) = pieces.next()
        {
            stream.feed(self, piece, &mut out);
        }
        if pieces.len() == 0 {
            stream.end(&mut out);
        }
        let truncated = out.len() > limit;
        out.truncate(limit);
        (Cow::Owned(out), truncated)
    }
}

fn add_forms(value: &str, patterns: &mut Vec<Vec<u8>>) {
    if value.chars().count() < MIN_CHARS {
        return;
    }
    patterns.push(value.as_bytes().to_vec());
    for (ascii, upper) in [(false, false), (true, false), (true, true)] {
        patterns.push(escaped(value, ascii, upper).into_bytes());
    }
}

/// `value` inside a JSON string: non-ASCII as it is or as `\uXXXX`, with lower or upper case digits.
fn escaped(value: &str, ascii: bool, upper: bool) -> String {
    let mut out = String::with_capacity(value.len() + 8);
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// Masks a stream that comes in pieces: a value may lie across any number of them.
#[derive(Debug, Default)]
pub struct Stream {
    /// What may be the beginning of a value.
    tail: Vec<u8>,
    /// So many bytes of `tail` belong to a value whose `***` is out already.
    masked: usize,
}

impl Stream {
    /// Appends to `out` what is certain.
    pub fn feed(&mut self, masks: &Masks, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(inner) = &masks.0 else {
            out.extend_from_slice(bytes);
            return;
        };
        if self.tail.is_empty() {
            let hold = inner.hold(bytes);
            self.scan(inner, bytes, hold, out);
            self.tail.extend_from_slice(&bytes[hold..]);
        } else {
            let mut joined = std::mem::take(&mut self.tail);
            joined.extend_from_slice(bytes);
            let hold = inner.hold(&joined);
            self.scan(inner, &joined, hold, out);
            joined.drain(..hold);
            self.tail = joined;
        }
    }

    /// Appends what was held back: no value can follow any more.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tail[self.masked.min(self.tail.len())..]);
        self.tail = Vec::new();
        self.masked = 0;
    }

    /// Writes `text[..hold]`, masked. Values that begin at `hold` or after it are the next call's.
    fn scan(&mut self, inner: &Inner, text: &[u8], hold: usize, out: &mut Vec<u8>) {
        // `text[..done]` is written, or belongs to a value whose `***` is.
        let mut done = self.masked;
        let mut from = 0;
        while let Some(found) = inner.automaton.find(Input::new(text).range(from..)) {
            if found.start() >= hold {
                break;
            }
            if found.start() >= done {
                out.extend_from_slice(&text[done..found.start()]);
                out.extend_from_slice(MASK);
            }
            done = done.max(found.end());
            from = found.start() + 1;
        }
        if done < hold {
            out.extend_from_slice(&text[done..hold]);
        }
        self.masked = done.saturating_sub(hold);
    }
}

impl Inner {
    /// Where the longest end of `text` begins that is the beginning of a value, but not all of it.
    fn hold(&self, text: &[u8]) -> usize {
        let from = text.len().saturating_sub(self.longest - 1);
        (from..text.len())
            .find(|&at| {
                let end = &text[at..];
                self.patterns.iter().any(|p| p.len() > end.len() && p.starts_with(end))
            })
            .unwrap_or(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masks(values: &[&str]) -> Masks {
        Masks::new(values).unwrap()
    }

    fn masked(values: &[&str], text: &str) -> String {
        masks(values).mask_str(text).into_owned()
    }

    #[test]
    fn values_are_masked_as_written_and_as_json_escapes_them() {
        let values = ["s3cr3t-value", "pa\"ss\\wörd", "short"];
        assert_eq!(masked(&values, "it is s3cr3t-value."), "it is ***.");
        assert_eq!(masked(&values, "s3cr3t-values3cr3t-value"), "******");
        assert_eq!(
            masked(&values, r#"pa"ss\wörd {"a":"pa\"ss\\wörd"} pa\"ss\\w\u00f6rd pa\"ss\\w\u00F6rd"#),
            r#"*** {"a":"***"} *** ***"#
        );
        assert_eq!(masked(&values, "short"), "short");
    }

    #[test]
    fn a_value_of_several_lines_is_masked_line_by_line() {
        let key = "-----BEGIN KEY-----\nabcdefgh\r\nxy\n-----END KEY-----";
        assert_eq!(masked(&[key], &format!("{key}\n")), "***\n***\r\nxy\n***\n");
        assert_eq!(
            masked(&[key], r#"{"k":"-----BEGIN KEY-----\nabcdefgh\r\nxy"}"#),
            r#"{"k":"***\n***\r\nxy"}"#
        );
        assert_eq!(masked(&["ab\ncd\nef"], "x ab\ncd\nef ab\\ncd\\nef"), "x *** ***");
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(masked(&["üüü"], "üüü"), "üüü");
        assert_eq!(masked(&["üüüüüü"], "üüüüüü"), "***");
    }

    #[test]
    fn a_prefix_is_masked_before_it_is_cut() {
        let m = masks(&["s3cr3t-value"]);
        let body = [vec![b'x'; 65_532], b"s3cr3t-value".to_vec()].concat();
        let (kept, truncated) = m.prefix(&body, 65_536);
        assert!(kept.ends_with(b"xx***") && kept.len() == 65_535 && !truncated);
        let long = [body, vec![b'y'; 1 << 20]].concat();
        let (kept, truncated) = m.prefix(&long, 65_536);
        assert!(kept.ends_with(b"xx***y") && kept.len() == 65_536 && truncated);
        assert_eq!(m.prefix(b"", 0), (Cow::Borrowed(&b""[..]), false));
        assert_eq!(m.prefix(b"ab", 0), (Cow::Borrowed(&b""[..]), true));
    }

    /// All occurrences of all forms; those that overlap are one.
    fn oracle(patterns: &[Vec<u8>], text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut end = 0;
        for at in 0..text.len() {
            let longest = patterns.iter().filter(|p| text[at..].starts_with(p)).map(Vec::len).max();
            if let Some(length) = longest {
                if at >= end {
                    out.extend_from_slice(MASK);
                }
                end = end.max(at + length);
            }
            if at >= end {
                out.push(text[at]);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn a_stream_is_masked_as_its_whole_is_however_it_is_cut(
            values in proptest::collection::vec("[ab\"]{6,8}", 1..4),
            words in proptest::collection::vec(prop_oneof!["[ab\"]{0,9}", "[abc\\\\\"\n]{0,3}"], 0..12),
            picks in proptest::collection::vec(0usize..4, 0..12),
            cuts in proptest::collection::vec(1usize..9, 1..30),
        ) {
            let m = masks(&values.iter().map(String::as_str).collect::<Vec<_>>());
            let mut text = String::new();
            for (i, word) in words.iter().enumerate() {
                text.push_str(word);
                if let Some(value) = picks.get(i).and_then(|p| values.get(*p)) {
                    text.push_str(value);
                }
            }
            let wanted = oracle(&m.0.as_ref().unwrap().patterns, text.as_bytes());
            prop_assert_eq!(&*m.mask(text.as_bytes()), &*wanted);
            let (mut stream, mut out) = (Stream::default(), Vec::new());
            let (mut rest, mut cuts) = (text.as_bytes(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                stream.feed(&m, now, &mut out);
                rest = later;
            }
            stream.end(&mut out);
            prop_assert_eq!(out, wanted);
        }
    }
}
