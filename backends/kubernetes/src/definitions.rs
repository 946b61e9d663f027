//! Definitions as the objects of a cluster.

mod functions;
mod namespaces;
mod objects;
mod refusal;
mod revisions;
mod routes;
mod secrets;
mod triggers;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use sless_backend::{
    BoxStream, DefinitionError, Definitions, FunctionChange, FunctionRef, FunctionRow, Reachable,
    RevisionRow, Secret, SecretRow, TriggerRow, TriggerWish,
};
use sless_core::{FunctionSettings, Namespace, Runtime, SecretName, TriggerName};

use crate::cluster::Cluster;

/// `Function`, `Trigger` and `Secret` objects, which are the truth; `kubectl apply` writes the same ones.
///
/// What is read is read at the API server, but for what each call asks ([`Definitions::reachable`]): that comes from memory. A write
/// carries the resource version that was read, so that it changes nothing that somebody has written meanwhile; it returns when the memory
/// of this process shows it, too.
///
/// The version of a function or trigger is Kubernetes' generation, of a function together with the number of wishes to try again
/// (annotation [`sless_crds::names::RETRY`]), since these change no spec. A secret has no generation: its resource version stands
/// for it. Whether a function names a secret that isn't there, or a secret goes that is named, is looked at before the write; Kubernetes
/// has no transaction that could make sure of it, and then the controller tells.
#[derive(Debug, Clone)]
pub struct KubernetesDefinitions {
    cluster: Arc<Cluster>,
}

impl KubernetesDefinitions {
    #[must_use]
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster }
    }
}

/// A page of a list.
fn newest<T>(mut rows: Vec<T>, id: impl Fn(&T) -> i64, below: Option<i64>, limit: u32) -> Vec<T> {
    rows.retain(|row| below.is_none_or(|below| id(row) < below));
    rows.sort_by_key(|row| std::cmp::Reverse(id(row)));
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    rows
}

#[async_trait]
impl Definitions for KubernetesDefinitions {
    async fn enter_namespace(&self, namespace: &Namespace, make: bool) -> Result<(), DefinitionError> {
        namespaces::enter(self, namespace, make).await
    }

    async fn insert_function(
        &self,
        function: &FunctionRef,
        runtime: &Runtime,
        settings: &FunctionSettings,
    ) -> Result<FunctionRow, DefinitionError> {
        functions::insert(self, function, runtime, settings).await
    }

    async fn function(&self, function: &FunctionRef) -> Result<Option<FunctionRow>, DefinitionError> {
        functions::one(self, function).await
    }

    async fn functions(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<FunctionRow>, DefinitionError> {
        functions::page(self, namespace, below, limit).await
    }

    async fn change_function(
        &self,
        row: &FunctionRow,
        change: &FunctionChange,
    ) -> Result<FunctionRow, DefinitionError> {
        functions::change(self, row, change).await
    }

    async fn delete_function(&self, row: &FunctionRow) -> Result<FunctionRow, DefinitionError> {
        functions::delete(self, row).await
    }

    async fn revision(&self, row: &FunctionRow, name: &str) -> Result<Option<RevisionRow>, DefinitionError> {
        revisions::one(self, row, name).await
    }

    async fn revisions(&self, row: &FunctionRow) -> Result<Vec<RevisionRow>, DefinitionError> {
        revisions::all(self, row).await
    }

    async fn insert_trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError> {
        triggers::insert(self, namespace, name, wish).await
    }

    async fn trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
    ) -> Result<Option<TriggerRow>, DefinitionError> {
        triggers::one(self, namespace, name).await
    }

    async fn triggers(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TriggerRow>, DefinitionError> {
        triggers::page(self, namespace, below, limit).await
    }

    async fn change_trigger(
        &self,
        row: &TriggerRow,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError> {
        triggers::change(self, row, wish).await
    }

    async fn remove_trigger(&self, row: &TriggerRow) -> Result<(), DefinitionError> {
        triggers::remove(self, row).await
    }

    async fn insert_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        values: &BTreeMap<String, Secret>,
    ) -> Result<SecretRow, DefinitionError> {
        secrets::insert(self, namespace, name, values).await
    }

    async fn change_secret(
        &self,
        row: &SecretRow,
        values: &BTreeMap<String, Secret>,
    ) -> Result<(SecretRow, Vec<FunctionRef>), DefinitionError> {
        secrets::change(self, row, values).await
    }

    async fn secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<SecretRow>, DefinitionError> {
        secrets::one(self, namespace, name).await
    }

    async fn secrets(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, DefinitionError> {
        secrets::page(self, namespace, below, limit).await
    }

    async fn remove_secret(&self, row: &SecretRow) -> Result<Option<FunctionRef>, DefinitionError> {
        secrets::remove(self, row).await
    }

    async fn reachable(&self) -> Result<Vec<Reachable>, DefinitionError> {
        Ok(routes::reachable(self))
    }

    fn changes(&self) -> BoxStream<()> {
        routes::changes(self.clone())
    }

    async fn ping(&self) -> Result<(), DefinitionError> {
        refusal::asked("ask the API server for its version", self.cluster.client.apiserver_version())
            .await
            .map(drop)
    }
}
