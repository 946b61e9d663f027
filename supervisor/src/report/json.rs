//! JSON written by hand into a buffer that is used again: events are the supervisor's hottest output.

use std::time::Duration;

/// 0: as it is; `u`: as `\u00XX`; else the letter behind the backslash.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 0x20 {
        table[i] = b'u';
        i += 1;
    }
    table[8] = b'b';
    table[9] = b't';
    table[10] = b'n';
    table[12] = b'f';
    table[13] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

/// `text` as a JSON string.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let escape = ESCAPES[byte as usize];
        if escape == 0 {
            continue;
        }
        out.extend_from_slice(&bytes[done..at]);
        out.extend_from_slice(&[b'\\', escape]);
        if escape == b'u' {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(&[b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        done = at + 1;
    }
    out.extend_from_slice(&bytes[done..]);
    out.push(b'"');
}

pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Milliseconds with at most three decimals.
pub(crate) fn millis(out: &mut Vec<u8>, value: Duration) {
    let us = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
    number(out, us / 1000);
    let mut rest = us % 1000;
    if rest > 0 {
        let digits = [rest / 100, rest / 10 % 10, rest % 10].map(|d| b'0' + u8::try_from(d).unwrap_or(0));
        let mut length = 3;
        while rest.is_multiple_of(10) {
            rest /= 10;
            length -= 1;
        }
        out.push(b'.');
        out.extend_from_slice(&digits[..length]);
    }
}

pub(crate) fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// What follows, or `null`.
pub(crate) fn option<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn durations_are_milliseconds() {
        for (us, text) in [
            (0, "0"),
            (1, "0.001"),
            (1_930, "1.93"),
            (1_500, "1.5"),
            (2_000, "2"),
            (12_345_678, "12345.678"),
            (10, "0.01"),
        ] {
            assert_eq!(written(|out| millis(out, Duration::from_micros(us))), text);
        }
    }

    proptest! {
        #[test]
        fn strings_are_json(text in any::<String>()) {
            let json = written(|out| string(out, &text));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
