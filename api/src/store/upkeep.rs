//! What the API itself has to do for definitions that lie in a database. On a cluster somebody else does.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sless_backend::{Definitions, FunctionRef, FunctionRow, RevisionRow, Secret};
use sless_core::{Namespace, SecretName};

use super::StoreError;

/// What a secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    Values(BTreeMap<String, Secret>),
    /// It was encrypted with another key, or has been changed by somebody.
    Unreadable,
}

/// See the module.
#[async_trait]
pub(crate) trait Upkeep: Definitions {
    async fn all_functions(&self) -> Result<Vec<FunctionRow>, StoreError>;
    /// Notes which revision answers. Changes no version: it is nobody's write.
    async fn set_active(&self, function: &FunctionRef, revision: &str) -> Result<(), StoreError>;
    /// Removes one that is being deleted, for good.
    async fn remove_function(&self, function: &FunctionRef) -> Result<(), StoreError>;
    /// Forgets all but the newest `keep` revisions, the wanted and the active one, and returns those that went.
    async fn forget_revisions(&self, row: &FunctionRow, keep: u32) -> Result<Vec<RevisionRow>, StoreError>;
    /// What a secret holds; `None` if there is none of this name.
    async fn contents(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<Contents>, StoreError>;
    /// The secrets, as `{namespace}/{name}`, that this host's key does not open.
    async fn unreadable(&self) -> Result<Vec<String>, StoreError>;
}
