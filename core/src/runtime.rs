use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// The name of a runtime, such as `python3.11`.
///
/// Which ones there are is the backend's to say: a new language is a new folder or image and needs no change here.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Runtime(Arc<str>);

impl Runtime {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Runtime {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
        // It names a folder, so nothing that could lead out of one.
        if text.is_empty() || text.len() > 63 || !text.bytes().all(plain) || text.starts_with(['.', '-']) {
            return Err(FieldError::new("runtime", format!("{text:?} is no runtime's name")));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Runtime {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
        text.parse()
    }
}

impl From<Runtime> for String {
    fn from(runtime: Runtime) -> Self {
        runtime.0.as_ref().to_owned()
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
