use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

/// How a step ended, for who reads exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The author has to change something.
    Author,
    /// The same again may well work: `EX_TEMPFAIL` of sysexits(3).
    Again,
    /// Dependencies that the registry was said to have are gone: again, and without them.
    Forgotten,
    /// A setting of the step is missing or wrong: `EX_CONFIG` of sysexits(3).
    Settings,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Author => 1,
            Exit::Again => 75,
            Exit::Forgotten => 76,
            Exit::Settings => 78,
        })
    }
}

/// Why a step failed, in words for the function's author.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failed {
    pub exit: Exit,
    pub message: String,
}

impl Failed {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// An error and all that caused it.
    pub fn of(exit: Exit, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self { exit, message }
    }
}

/// What Kubernetes keeps of a termination message, with room for JSON's own characters.
const MESSAGE_BYTES: usize = 3000;

/// Leaves the result where Kubernetes reads it, and the reason of a failure there and on standard error.
pub fn finish<T: Serialize>(result: Result<T, Failed>, termination_log: &Path) -> ExitCode {
    let (text, code) = match result {
        Ok(value) => (serde_json::to_string(&value).unwrap_or_default(), ExitCode::SUCCESS),
        Err(failed) => {
            let mut message = failed.message.as_str();
            message = message.get(..message.floor_char_boundary(MESSAGE_BYTES)).unwrap_or_default();
            say(&failed);
            (json!({ "error": message }).to_string(), failed.exit.into())
        }
    };
    if let Err(error) = std::fs::write(termination_log, text) {
        say(&format_args!("write {}: {error}", termination_log.display()));
        return Exit::Again.into();
    }
    code
}

fn say(text: &dyn Display) {
    eprintln!("error: {text}");
}
