//! What a function, a trigger and their settings *are*: names, ranges, defaults, phases.
//!
//! Pure: no input or output, no clock, no runtime. Everything that a person writes is parsed here into types that cannot be wrong,
//! and every refusal names the field, for the API, the command line and the cluster alike.

mod digest;
mod entrypoint;
mod name;
mod phase;
mod revision;
mod runtime;
mod seconds;
mod settings;
mod trigger;
mod variables;

pub use digest::Digest;
pub use entrypoint::Entrypoint;
pub use name::{FunctionName, HostName, Namespace, SecretName, TokenName, TriggerName};
pub use phase::Phase;
pub use revision::revision_name;
pub use runtime::Runtime;
pub use seconds::Seconds;
pub use settings::{FunctionSettings, Kind, Retry, SETTINGS, Setting};
pub use trigger::{Cors, HttpTrigger, TriggerKind};
pub use variables::variables;

/// What is wrong with one field of what somebody wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// As it is written in JSON, a nested one with dots: `retry.max_attempts`.
    pub field: String,
    /// A whole clause that says what is expected.
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}
