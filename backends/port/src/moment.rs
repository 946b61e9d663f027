//! Moments: microseconds since 1970 where they are kept, RFC 3339 in UTC outside.

use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

/// Microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

impl Moment {
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// `None` if `text` is not RFC 3339.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text).ok().map(|time| Self(time.timestamp_micros()))
    }

    #[must_use]
    pub fn rfc3339(self) -> String {
        // Always with six digits, so that the texts sort as the moments do.
        DateTime::<Utc>::from_timestamp_micros(self.0)
            .unwrap_or_default()
            .to_rfc3339_opts(SecondsFormat::Micros, true)
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        Self(DateTime::<Utc>::from(time).timestamp_micros())
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_keep_their_microseconds_and_sort_as_texts() {
        let moment = Moment::parse("2026-01-01T01:00:00.000001+01:00").unwrap();
        assert_eq!(moment.rfc3339(), "2026-01-01T00:00:00.000001Z");
        assert_eq!(Moment::parse(&moment.rfc3339()), Some(moment));
        assert!(Moment(moment.0 + 999_999).rfc3339() > moment.rfc3339());
        assert_eq!(Moment::parse("yesterday"), None);
    }
}
