use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sless_core::{Digest, FunctionName, FunctionSettings, Namespace, Phase, Runtime};

/// Which function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionRef {
    pub namespace: Namespace,
    pub name: FunctionName,
}

impl fmt::Display for FunctionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeRef {
    /// Of the zip's bytes; names it in the code store.
    pub sha256: Digest,
    /// Of what is in it after repair. Equal means that no new build is needed.
    pub content_sha256: Digest,
}

/// One version of a function's code and settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Revision {
    /// Lower-case hexadecimal digits, unique in its function: made from content and settings.
    pub name: String,
    pub runtime: Runtime,
    pub settings: FunctionSettings,
    pub code: CodeRef,
    /// What its secrets hold today, by the names of the variables. Not part of the revision: a change makes new workers of it.
    pub secrets: BTreeMap<String, Secret>,
}

impl Revision {
    /// Whether workers of `other` do for this one: the same revision, and the same values in its secrets.
    #[must_use]
    pub fn runs_as(&self, other: &Self) -> bool {
        self.name == other.name && self.secrets == other.secrets
    }
}

/// What should be true of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionSpec {
    pub function: FunctionRef,
    /// What should answer.
    pub wanted: Revision,
    /// What answered last, as far as the API knows: to be started at once when the backend begins anew and `wanted` is not
    /// built yet or does not load. Often equal to `wanted`.
    pub serving: Option<Revision>,
    /// Contents of the revisions that are kept: a rollback to one of them must need no build.
    pub kept: Vec<Digest>,
    /// What installers are given to find packages, while they run and at no other time. Not part of any revision.
    pub index: BTreeMap<String, Secret>,
}

/// The API's count of the changes of a function; only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// What is true of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionStatus {
    pub function: FunctionRef,
    /// Of the spec that this tells of.
    pub generation: Generation,
    pub phase: Phase,
    /// Why it failed; for people.
    pub message: Option<String>,
    /// The revision that answers.
    pub active_revision: Option<String>,
    /// Nothing is left of it.
    pub gone: bool,
}

/// A build: `Pending`, `Building`, `Ready` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildStatus {
    /// Tells it from every other build of its function.
    pub name: String,
    pub phase: Phase,
    pub started_at: SystemTime,
    pub finished_at: Option<SystemTime>,
    pub message: Option<String>,
}

/// One line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// RFC 3339, UTC.
    pub time: String,
    /// `stdout` or `stderr`.
    pub stream: String,
    pub text: String,
}

/// Who speaks to the internal listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The supervisor of a function: it reports for that one alone.
    Function(FunctionRef),
    /// Whoever builds: it delivers the builds' logs.
    Controller,
}

/// Where a supervisor listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Unix { path: PathBuf, admin: PathBuf },
    Tcp { addr: SocketAddr, admin: SocketAddr },
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text itself; for the one place that sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why the backend did not take a wish.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("{0}")]
    Conflict(String),
    /// May be tried again.
    #[error("{action}")]
    Unavailable {
        /// A verb in the present, with what it was done to.
        action: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
