use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// A length of time at the edge: seconds, with fractions; written without a fraction where there is none.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "f64")]
pub struct Seconds(f64);

impl Seconds {
    /// `None` unless `value` is finite and not negative.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && (0.0..1e12).contains(&value)).then_some(Self(value))
    }

    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }

    /// The number of seconds, if it is a whole one.
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked: whole, not negative, below 1e12"
        )]
        (self.0.fract() == 0.0).then_some(self.0 as u64)
    }
}

impl TryFrom<f64> for Seconds {
    type Error = &'static str;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        Self::new(value).ok_or("seconds must be finite and not negative")
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.whole() {
            Some(whole) => serializer.serialize_u64(whole),
            None => serializer.serialize_f64(self.0),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
