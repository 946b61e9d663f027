//! Why a reconcile did not come to its end, by what is to be done about it.

use std::fmt::Display;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Tried again with back-off.
    #[error("{action}")]
    Kube {
        /// A verb in the present, with its object.
        action: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// Somebody else's: an admin has to look.
    #[error("the namespace {name} is there and is not sless's: rename it, or use another namespace")]
    Taken { name: String },
    /// Comes to its end by itself.
    #[error("the namespace {name} is being deleted")]
    Ending { name: String },
    /// The cache is behind; a moment later it isn't.
    #[error("what was read of {name} is no longer true")]
    Stale { name: String },
    /// S3 or a registry.
    #[error("{action}: {problem}")]
    Away { action: String, problem: String },
}

/// For `map_err`: what was tried, with what.
pub(crate) fn acting(action: &str, object: impl Display) -> impl FnOnce(kube::Error) -> Error {
    let action = format!("{action} {object}");
    |source| Error::Kube { action, source: Box::new(source) }
}

pub(crate) fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// The error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some put their cause into their own text.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
