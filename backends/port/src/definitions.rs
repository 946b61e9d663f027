//! What people have defined: functions with their revisions, triggers, secrets. The truth about them lies in a database or in the
//! objects of a cluster; the API reads and writes it through [`Definitions`] and does not know which.

use std::collections::BTreeMap;
use std::fmt::Debug;

use async_trait::async_trait;
use sless_core::{
    FieldError, FunctionName, FunctionSettings, HttpTrigger, Namespace, Runtime, SecretName, TriggerKind,
    TriggerName,
};

use crate::{BoxStream, CodeRef, FunctionRef, Moment, Secret};

/// Why something was not defined, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    /// The name is taken.
    #[error("the name is taken")]
    Exists,
    /// Another trigger has the host.
    #[error("the host is taken")]
    HostTaken,
    /// The host is not one that the namespace's triggers may have: a whole clause that says what they may.
    #[error("{0}")]
    HostRefused(String),
    /// The namespace, or what is in it under that name, is not ours to work with: a whole clause that says why, and what to do.
    #[error("{0}")]
    NamespaceRefused(String),
    /// Somebody else has written meanwhile.
    #[error("it has changed since")]
    Stale,
    /// What should be changed isn't there.
    #[error("it is not there")]
    Gone,
    /// A function names a secret that isn't there.
    #[error("there is no secret {0:?}")]
    NoSecret(String),
    /// What was to be written has a fault that only where it lies can tell.
    #[error(transparent)]
    Invalid(FieldError),
    /// Where it lies is away, full or overloaded: the same again may well work a little later.
    #[error("{action}")]
    Away {
        /// A verb in the present, with its object.
        action: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A fault of ours, or of who has changed what is kept.
    #[error("{action}")]
    Failed {
        /// A verb in the present, with its object.
        action: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A function as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionRow {
    /// Orders functions by their creation; nothing later of the same name has it again.
    pub id: i64,
    pub function: FunctionRef,
    pub runtime: Runtime,
    pub settings: FunctionSettings,
    /// Counts every write of somebody.
    pub version: u64,
    /// Counts the writes that the backend must hear of; [`crate::FunctionStatus`] tells of one of them.
    pub generation: u64,
    /// The revision that should answer; `None` before the first upload.
    pub wanted: Option<String>,
    /// The revision that answered last.
    pub active: Option<String>,
    pub deleting: bool,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// A revision as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionRow {
    pub name: String,
    pub settings: FunctionSettings,
    pub code: CodeRef,
    /// What its pods run, by digest, where there are images.
    pub image: Option<String>,
    pub created_at: Moment,
}

/// What is to become of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionChange {
    pub settings: FunctionSettings,
    /// What should answer from now on, kept from now on if it wasn't: new code, new settings, or an earlier revision. The one that
    /// is wanted already, if it has failed, is tried once more. `None` leaves what is wanted as it is.
    pub wanted: Option<RevisionRow>,
}

/// What somebody wants a trigger to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerWish {
    pub kind: TriggerKind,
    pub enabled: bool,
    pub function: FunctionName,
    pub http: HttpTrigger,
}

/// A trigger as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerRow {
    /// As [`FunctionRow::id`].
    pub id: i64,
    pub namespace: Namespace,
    pub name: TriggerName,
    pub wish: TriggerWish,
    /// Counts every write of somebody.
    pub version: u64,
    /// Why it lets nobody in although it is enabled and its function is there; for people.
    pub trouble: Option<String>,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// A secret without what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// As [`FunctionRow::id`].
    pub id: i64,
    pub namespace: Namespace,
    pub name: SecretName,
    /// The names of its values, in order.
    pub keys: Vec<String>,
    /// Counts every write of somebody.
    pub version: u64,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// A function that calls may be sent to, for the proxy's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachable {
    pub function: FunctionRef,
    /// Its enabled http triggers, in the order of their creation.
    pub triggers: Vec<HttpTrigger>,
}

/// What people have defined. Lists of a namespace have only what has an id below `below`, and are newest first.
///
/// Who changes something says which version of it he has read (with the row): if it is another by now the change is refused with
/// [`DefinitionError::Stale`]. Whatever else may be written to the same place (a status) is no version.
#[async_trait]
pub trait Definitions: Debug + Send + Sync {
    /// To be called before something is written into a namespace. `make`: whoever writes may make namespaces.
    ///
    /// # Errors
    /// [`DefinitionError::NamespaceRefused`] if it isn't there and may not be made, or is not one to work in.
    async fn enter_namespace(&self, namespace: &Namespace, make: bool) -> Result<(), DefinitionError>;

    /// # Errors
    /// [`DefinitionError::Exists`] if the name is taken, [`DefinitionError::NoSecret`] if the settings name a secret that isn't there.
    async fn insert_function(
        &self,
        function: &FunctionRef,
        runtime: &Runtime,
        settings: &FunctionSettings,
    ) -> Result<FunctionRow, DefinitionError>;
    /// Also one that is being deleted.
    async fn function(&self, function: &FunctionRef) -> Result<Option<FunctionRow>, DefinitionError>;
    async fn functions(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<FunctionRow>, DefinitionError>;
    /// Makes a change of what was read as `row`. With a `wanted` revision it counts a generation.
    ///
    /// # Errors
    /// [`DefinitionError::Stale`] if it has another version by now or is gone, [`DefinitionError::NoSecret`] as above.
    async fn change_function(
        &self,
        row: &FunctionRow,
        change: &FunctionChange,
    ) -> Result<FunctionRow, DefinitionError>;
    /// Lets the deletion of what was read as `row` begin. It is over when [`Definitions::function`] has nothing any more.
    ///
    /// # Errors
    /// [`DefinitionError::Stale`] if it has another version by now or is gone.
    async fn delete_function(&self, row: &FunctionRow) -> Result<FunctionRow, DefinitionError>;

    /// A revision of a function that is kept.
    async fn revision(&self, row: &FunctionRow, name: &str) -> Result<Option<RevisionRow>, DefinitionError>;
    /// All that are kept of a function.
    async fn revisions(&self, row: &FunctionRow) -> Result<Vec<RevisionRow>, DefinitionError>;

    /// # Errors
    /// [`DefinitionError::Exists`] if the name is taken, [`DefinitionError::HostTaken`] if another trigger has the host,
    /// [`DefinitionError::HostRefused`] if this namespace's triggers may not have it.
    async fn insert_trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError>;
    async fn trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
    ) -> Result<Option<TriggerRow>, DefinitionError>;
    async fn triggers(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TriggerRow>, DefinitionError>;
    /// Makes what was read as `row` what `wish` says; its kind is the same.
    ///
    /// # Errors
    /// As [`Definitions::insert_trigger`], and [`DefinitionError::Stale`] if it has another version by now or is gone.
    async fn change_trigger(
        &self,
        row: &TriggerRow,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError>;
    /// Removes what was read as `row`.
    ///
    /// # Errors
    /// [`DefinitionError::Stale`] if it has another version by now or is gone.
    async fn remove_trigger(&self, row: &TriggerRow) -> Result<(), DefinitionError>;

    /// # Errors
    /// [`DefinitionError::Exists`] if the name is taken.
    async fn insert_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        values: &BTreeMap<String, Secret>,
    ) -> Result<SecretRow, DefinitionError>;
    /// Puts `values` in the place of what the secret read as `row` holds. If they are not what it holds anyway, that is a write, and a
    /// generation of every function that names it; these functions are returned with the row.
    ///
    /// # Errors
    /// [`DefinitionError::Stale`] if it has another version by now or is gone.
    async fn change_secret(
        &self,
        row: &SecretRow,
        values: &BTreeMap<String, Secret>,
    ) -> Result<(SecretRow, Vec<FunctionRef>), DefinitionError>;
    async fn secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<SecretRow>, DefinitionError>;
    async fn secrets(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, DefinitionError>;
    /// Removes what was read as `row`, unless a function names it; gives the name of one that does.
    ///
    /// # Errors
    /// [`DefinitionError::Stale`] if it has another version by now or is gone.
    async fn remove_secret(&self, row: &SecretRow) -> Result<Option<FunctionRef>, DefinitionError>;

    /// Every function that is not being deleted, with what lets the public in. Shows at least all that was written here.
    async fn reachable(&self) -> Result<Vec<Reachable>, DefinitionError>;
    /// Yields when others may have changed what [`Definitions::reachable`] gives. Never ends.
    fn changes(&self) -> BoxStream<()>;
    /// Whether it answers, and knows all that it must know by itself.
    async fn ping(&self) -> Result<(), DefinitionError>;
}
