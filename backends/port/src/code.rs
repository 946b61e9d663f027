use std::fmt::Debug;
use std::fs::File;
use std::path::Path;

use async_trait::async_trait;
use sless_core::Digest;

use crate::FunctionRef;

/// Uploaded zips, by function and SHA-256 of their bytes.
#[async_trait]
pub trait CodeStore: Debug + Send + Sync {
    /// Keeps a copy of the file `from`. It is there whole or not at all, and once this returns it survives a crash.
    ///
    /// # Errors
    /// [`CodeError::Failed`]; may be tried again.
    async fn put_if_absent(
        &self,
        function: &FunctionRef,
        sha256: &Digest,
        from: &Path,
    ) -> Result<(), CodeError>;

    /// Opens one for reading.
    ///
    /// # Errors
    /// [`CodeError::NotFound`] if it isn't there; [`CodeError::Failed`] may be tried again.
    async fn get(&self, function: &FunctionRef, sha256: &Digest) -> Result<File, CodeError>;

    /// Removes one. Gone already counts as success.
    ///
    /// # Errors
    /// [`CodeError::Failed`]; may be tried again.
    async fn delete(&self, function: &FunctionRef, sha256: &Digest) -> Result<(), CodeError>;

    /// All that is kept for a function.
    ///
    /// # Errors
    /// [`CodeError::Failed`]; may be tried again.
    async fn list(&self, function: &FunctionRef) -> Result<Vec<Digest>, CodeError>;
}

/// Why the code store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    #[error("no code with SHA-256 {0}")]
    NotFound(Digest),
    #[error("{action}")]
    Failed {
        /// A verb in the present, with what it was done to.
        action: String,
        #[source]
        source: std::io::Error,
    },
}
