//! The JSON heads of `HELLO`, `READY`, `INIT_FAILED` and `ERROR`.

use serde::{Deserialize, Serialize};

/// Version of the worker protocol that this crate speaks.
pub const PROTOCOL: u32 = 1;

/// What a worker is told before it runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub entrypoint: String,
    pub function_dir: String,
    pub namespace: String,
    pub function: String,
    pub revision: String,
    pub slots: u32,
    /// Descriptor of the shared page.
    pub shared: i32,
    /// Descriptors of the stack pipes: where the request is read, where the answer is written.
    pub stack: [i32; 2],
    /// Descriptors of the output pairs: stdout, stderr.
    pub pairs: Vec<[i32; 2]>,
    /// 32 hexadecimal digits; secret, so that no handler can forge a mark.
    pub mark: String,
    pub init_deadline_ms: u64,
}

/// How a shim marks where the output of a call ends while the next one waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    Pairs,
    Marks,
}

/// A worker is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    pub protocol: u32,
    #[serde(default)]
    pub runtime: String,
    #[serde(default)]
    pub version: String,
    pub boundary: Boundary,
}

/// What a handler raised, as a worker tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub traceback: Option<String>,
}
