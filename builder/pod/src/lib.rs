//! The two steps of a build in a cluster, as containers of one pod that share the folder `/work`.
//!
//! `sless-install` runs in the runtime's image: it fetches the zip by a presigned URL, unpacks it, installs dependencies and compiles
//! Python. It has no credential but the index's, since what it runs is the author's. `sless-pack` then runs in an image of its own, in
//! which nothing of the author's runs: it makes layers of what it finds, as hostile data, appends them to the runtime's image and
//! pushes that with the registry's credential. What the controller has to know is in the containers' termination messages.

pub mod compile;
pub mod fetch;
pub mod install;
pub mod pack;

mod exit;

use serde::{Deserialize, Serialize};

pub use exit::{Exit, Failed, finish};

/// Where a function's folder lies in its image.
pub const FUNCTION_DIR: &str = "app/function";

/// Of the folder that both containers share: what the code's layer is made from.
pub const FUNCTION: &str = "function";
/// The same for the layer of dependencies; not there when they are in an earlier layer, or part of the code.
pub const DEPENDENCIES: &str = "dependencies";
/// What the first step tells the second one. Written where the author's code has run: nothing in it is believed that matters.
pub const PLAN: &str = "plan.json";

/// Dependencies that a registry has as a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependencies {
    /// Of manifest, lock file, runtime and index.
    pub key: String,
    /// The repository that surely has the layer, without the registry's name.
    #[serde(default)]
    pub repository: String,
    /// `sha256:…` of the layer's bytes.
    pub digest: String,
    /// `sha256:…` of what they unpack to.
    pub diff_id: String,
    /// Of the layer, in bytes.
    pub size: u64,
}

/// See [`PLAN`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub content_sha256: String,
    /// The key of the dependencies that are not part of the code.
    pub dependencies: Option<String>,
}

/// Reads the list that both steps are given.
///
/// # Errors
/// When it isn't one.
pub fn known(text: &str) -> Result<Vec<Dependencies>, serde_json::Error> {
    if text.is_empty() { Ok(Vec::new()) } else { serde_json::from_str(text) }
}
