//! What can go wrong for somebody at the command line, and the exit code of each.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

/// Why a command failed. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The function does not build or load, or a call was not answered well.
    #[error("{0}")]
    Function(String),
    #[error("no host answers at {url} ({source}); start one with `sless up`, or set SLESS_URL")]
    NoHost { url: String, source: std::io::Error },
    #[error("the connection to {url} broke: {why}")]
    Broken { url: String, why: String },
    #[error("{0}")]
    Token(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Host(String),
    #[error("{action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
}

impl CliError {
    /// Listed in `docs/cli.md`. Code 2 is a wrong command line, which is told before any of this.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Function(_) => 1,
            Self::NoHost { .. } | Self::Broken { .. } => 3,
            Self::Token(_) => 4,
            Self::NotFound(_) => 5,
            Self::Refused(_) | Self::File { .. } => 6,
            Self::Host(_) => 7,
        })
    }

    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// From an answer of the host that is not a good one: its problem (RFC 9457), or else its status.
    pub(crate) fn of_answer(status: http::StatusCode, body: &[u8]) -> Self {
        let problem: Option<Value> = serde_json::from_slice(body).ok();
        let text = |name: &str| problem.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let mut message =
            text("detail").or_else(|| text("title")).unwrap_or_else(|| format!("the host answered {status}"));
        // Most details name their field already.
        if let Some(field) = text("field").filter(|field| !message.contains(field.as_str())) {
            message = format!("{field}: {message}");
        }
        match status.as_u16() {
            401 => Self::Token(format!(
                "{message}; set SLESS_TOKEN to a token of this host (a local host's admin token is in its data folder, see DATA_DIR)"
            )),
            403 => {
                Self::Token(format!("{message}; use a token of that role, made with `sless token create`"))
            }
            404 => Self::NotFound(message),
            400..=499 => Self::Refused(message),
            _ => Self::Host(message),
        }
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_an_error_of_its_kind() {
        let of = |status: u16, body: &str| CliError::of_answer(status.try_into().unwrap(), body.as_bytes());
        let invalid = of(
            400,
            r#"{"status": 400, "code": "Invalid", "title": "x", "detail": "must be > 0", "field": "timeout_sec"}"#,
        );
        assert_eq!(invalid.to_string(), "timeout_sec: must be > 0");
        assert!(matches!(invalid, CliError::Refused(_)));
        assert!(matches!(of(404, "{}"), CliError::NotFound(_)));
        let token = of(401, "junk");
        assert!(matches!(&token, CliError::Token(m) if m.contains("SLESS_TOKEN")), "{token}");
        assert!(matches!(of(503, ""), CliError::Host(_)));
    }
}
