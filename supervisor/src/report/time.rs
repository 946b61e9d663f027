//! Times as records have them: RFC 3339, UTC, milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats times, and keeps the last second's text: neighbours mostly share it.
#[derive(Debug, Clone)]
pub(crate) struct Stamp {
    second: u64,
    text: [u8; 24],
}

impl Default for Stamp {
    fn default() -> Self {
        Self { second: 0, text: *b"1970-01-01T00:00:00.000Z" }
    }
}

impl Stamp {
    /// `ms` as `2026-01-01T00:00:00.000Z`.
    pub(crate) fn at(&mut self, ms: u64) -> &[u8; 24] {
        // Until the year 9999, past which the form has no place for more.
        let ms = ms.min(253_402_300_799_999);
        let second = ms / 1000;
        if second != self.second {
            self.second = second;
            let (days, of_day) = (second / 86_400, second % 86_400);
            let (year, month, day) = civil(days);
            put(&mut self.text[0..4], year);
            put(&mut self.text[5..7], month);
            put(&mut self.text[8..10], day);
            put(&mut self.text[11..13], of_day / 3600);
            put(&mut self.text[14..16], of_day / 60 % 60);
            put(&mut self.text[17..19], of_day % 60);
        }
        put(&mut self.text[20..23], ms % 1000);
        &self.text
    }
}

fn put(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

/// Year, month and day of a number of days since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// The reverse of [`Stamp::at`].
pub(crate) fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (y, mp) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let (era, yoe) = (y / 400, y % 400);
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + (153 * mp + 2) / 5 + day;
    let seconds = number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    Some((days.checked_sub(719_469)? * 86_400 + seconds) * 1000 + number(20, 23)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        let mut stamp = Stamp::default();
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_001, "2000-03-01T00:00:00.001Z"),
            (1_767_225_600_000, "2026-01-01T00:00:00.000Z"),
            (1_767_225_600_042, "2026-01-01T00:00:00.042Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(std::str::from_utf8(stamp.at(ms)), Ok(text));
            assert_eq!(parse(text), Some(ms.min(253_402_300_799_999)));
        }
    }
}
