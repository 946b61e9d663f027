//! Report events: what a supervisor tells the API about an invocation, one JSON object a line.

use serde::{Deserialize, Serialize};

/// Version of the event format.
pub const VERSION: u32 = 1;

/// How an invocation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Success,
    Error,
    Timeout,
    Crashed,
    OutOfMemory,
    InitFailed,
    Cancelled,
    /// Counted, but without a record.
    Rejected,
    /// Its pod vanished before the end was known.
    Lost,
}

impl Status {
    pub const ALL: [Self; 9] = [
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::Crashed,
        Self::OutOfMemory,
        Self::InitFailed,
        Self::Cancelled,
        Self::Rejected,
        Self::Lost,
    ];

    /// The word that stands for it in records, headers and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Crashed => "crashed",
            Self::OutOfMemory => "out_of_memory",
            Self::InitFailed => "init_failed",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
            Self::Lost => "lost",
        }
    }
}

/// A body as it is kept in a record: text where it is UTF-8, else base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Whether less is kept than there was.
    pub truncated: bool,
}

/// The request, as a replay sends it again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub raw_query: String,
    pub headers: Vec<(String, String)>,
    pub size: u64,
    #[serde(flatten)]
    pub body: Kept,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub time: String,
    pub namespace: String,
    pub function: String,
    pub revision: String,
    pub trigger: String,
    pub method: String,
    pub path: String,
    pub pod: String,
    pub request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub time: String,
    pub stream: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub content_type: String,
    pub size: u64,
    #[serde(flatten)]
    pub body: Kept,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    #[serde(default)]
    pub traceback: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub time: String,
    pub status: Status,
    pub http_status: Option<u16>,
    pub duration_ms: f64,
    pub queue_ms: f64,
    pub init_ms: Option<f64>,
    pub cpu_ms: Option<f64>,
    pub max_rss_bytes: Option<u64>,
    pub result: Option<Outcome>,
    pub error: Option<ErrorInfo>,
    pub log_bytes: u64,
    pub log_dropped_bytes: u64,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum News {
    Started(Started),
    Log { lines: Vec<Line> },
    Finished(Finished),
}

/// One event. `invocation_id`, `attempt` and `seq` identify it: the API stores each once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub v: u32,
    pub invocation_id: String,
    pub seq: u32,
    pub attempt: u32,
    #[serde(flatten)]
    pub news: News,
}
