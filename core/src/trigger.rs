mod http;

use serde::{Deserialize, Serialize};

pub use http::{Cors, HttpTrigger};

/// What makes a trigger fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerKind {
    Http,
}

impl TriggerKind {
    /// The word that stands for it in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text == "http").then_some(Self::Http)
    }
}
