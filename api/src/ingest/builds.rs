//! Logs of builds as they are handed in.

use sless_backend::{FunctionRef, LogLine};

use crate::problem::Problem;

/// Kept of a log. The controller sends no more; what goes beyond is cut off.
const KEPT_BYTES: usize = 2 << 20;
/// Longest name of a build.
const NAME_BYTES: usize = 253;

/// Whose build, and which.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Build {
    pub(super) function: FunctionRef,
    pub(super) name: String,
}

impl Build {
    /// Reads `{ns}/{name}/{build}`.
    pub(super) fn parse(path: &str) -> Result<Self, Problem> {
        let mut parts = path.split('/');
        let (namespace, function, build) = (parts.next(), parts.next(), parts.next());
        let named = namespace.zip(function).zip(build).filter(|_| parts.next().is_none());
        let parsed = named.and_then(|((namespace, function), build)| {
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            let function = FunctionRef { namespace: namespace.parse().ok()?, name: function.parse().ok()? };
            let good = !build.is_empty() && build.len() <= NAME_BYTES && build.bytes().all(plain);
            good.then(|| Self { function, name: build.to_owned() })
        });
        parsed.ok_or_else(|| {
            Problem::not_found(
                "such address; a build's log goes to /internal/v1/builds/NAMESPACE/FUNCTION/BUILD",
            )
        })
    }
}

/// The lines of a log in NDJSON, and how many could not be read.
pub(super) fn lines(body: &[u8]) -> (Vec<LogLine>, u64) {
    let (mut lines, mut refused, mut bytes) = (Vec::new(), 0, 0);
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<LogLine>(line) {
            Ok(line) => {
                bytes += line.text.len() + 1;
                if bytes > KEPT_BYTES {
                    let text = format!("[the log is longer than the {KEPT_BYTES} bytes that are kept]");
                    lines.push(LogLine { text, ..line });
                    break;
                }
                lines.push(line);
            }
            Err(_) => refused += 1,
        }
    }
    (lines, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_name_a_build() {
        let build = Build::parse("team/hello/b-0123").unwrap();
        assert_eq!((build.function.to_string().as_str(), build.name.as_str()), ("team/hello", "b-0123"));
        let long = format!("team/hello/{}", "b".repeat(254));
        for wrong in [
            "",
            "team",
            "team/hello",
            "team/hello/",
            "team/hello/b/c",
            "../hello/b",
            "team/hello/B%2f",
            &long,
        ] {
            assert!(Build::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_can_be_read_of_a_log_is_kept_within_bounds() {
        let line =
            |text: &str| serde_json::json!({"time": "t", "stream": "stdout", "text": text}).to_string();
        let (read, refused) = lines(format!("{}\nnonsense\n\n{}", line("a"), line("b")).as_bytes());
        assert_eq!((read.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), refused), (vec!["a", "b"], 1));
        let large = vec![line(&"x".repeat(1 << 20)); 5].join("\n");
        let (read, _) = lines(large.as_bytes());
        assert!(read.len() == 2 && read[1].text.contains("longer"), "{}", read.len());
    }
}
