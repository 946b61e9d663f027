use serde::{Deserialize, Serialize};

/// Where the newest change of a function stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing to run yet, or not begun with.
    Pending,
    /// Its dependencies are being installed.
    Building,
    /// The newest change is what answers.
    Ready,
    /// The newest change does not build or load; the revision before it, if any, goes on answering.
    Failed,
    /// Being deleted.
    Terminating,
}

impl Phase {
    /// The word that stands for it in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Building => "Building",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}
