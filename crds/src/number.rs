//! Numbers as the API server keeps them.

use serde::{Serialize, Serializer};

/// Writes a whole number without a fraction: to the API server 30.0 is another value than the 30 that it keeps, and an object that is
/// written back as it was read would count as changed.
pub(crate) fn whole<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    /// Beyond this not every whole number has a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the bounds")]
        Some(number) if number.fract() == 0.0 && number.abs() < EXACT => {
            serializer.serialize_i64(*number as i64)
        }
        other => other.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    #[derive(Serialize)]
    struct One {
        #[serde(serialize_with = "super::whole")]
        n: Option<f64>,
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        for (n, text) in [
            (Some(30.0), r#"{"n":30}"#),
            (Some(0.5), r#"{"n":0.5}"#),
            (Some(-1.0), r#"{"n":-1}"#),
            (Some(1e300), r#"{"n":1e+300}"#),
            (None, r#"{"n":null}"#),
        ] {
            assert_eq!(serde_json::to_string(&One { n }).unwrap(), text);
        }
    }
}
