use std::collections::BTreeMap;

use async_trait::async_trait;
use sless_backend::{
    BoxStream, Definitions, FunctionChange, FunctionRef, FunctionRow, Reachable, RevisionRow, Secret,
    SecretRow, TriggerRow, TriggerWish,
};
use sless_core::{FunctionSettings, Namespace, Runtime, SecretName, TriggerName};

use super::super::Database;
use super::{functions, secrets, triggers};
use crate::store::{Contents, Records, StoreError, Upkeep};
use crate::vault::Vault;

/// The definitions in a database, and the key of the secrets among them.
#[derive(Debug)]
pub(in crate::store) struct SqlDefinitions {
    store: Database,
    vault: Vault,
}

impl Database {
    pub(in crate::store) fn definitions(&self, vault: Vault) -> SqlDefinitions {
        SqlDefinitions { store: self.clone(), vault }
    }
}

#[async_trait]
impl Definitions for SqlDefinitions {
    /// Here a namespace is only a name.
    async fn enter_namespace(&self, _: &Namespace, _: bool) -> Result<(), StoreError> {
        Ok(())
    }

    async fn insert_function(
        &self,
        function: &FunctionRef,
        runtime: &Runtime,
        settings: &FunctionSettings,
    ) -> Result<FunctionRow, StoreError> {
        functions::insert(&self.store, function, runtime, settings).await
    }

    async fn function(&self, function: &FunctionRef) -> Result<Option<FunctionRow>, StoreError> {
        functions::one(&self.store, function).await
    }

    async fn functions(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<FunctionRow>, StoreError> {
        functions::page(&self.store, namespace, below, limit).await
    }

    async fn change_function(
        &self,
        row: &FunctionRow,
        change: &FunctionChange,
    ) -> Result<FunctionRow, StoreError> {
        functions::change(&self.store, row, change).await
    }

    async fn delete_function(&self, row: &FunctionRow) -> Result<FunctionRow, StoreError> {
        functions::delete(&self.store, row).await
    }

    async fn revision(&self, row: &FunctionRow, name: &str) -> Result<Option<RevisionRow>, StoreError> {
        functions::revision(&self.store, row.id, name).await
    }

    async fn revisions(&self, row: &FunctionRow) -> Result<Vec<RevisionRow>, StoreError> {
        functions::revisions(&self.store, row.id).await
    }

    async fn insert_trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, StoreError> {
        triggers::insert(&self.store, namespace, name, wish).await
    }

    async fn trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
    ) -> Result<Option<TriggerRow>, StoreError> {
        triggers::one(&self.store, namespace, name).await
    }

    async fn triggers(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TriggerRow>, StoreError> {
        triggers::page(&self.store, namespace, below, limit).await
    }

    async fn change_trigger(&self, row: &TriggerRow, wish: &TriggerWish) -> Result<TriggerRow, StoreError> {
        triggers::change(&self.store, row, wish).await
    }

    async fn remove_trigger(&self, row: &TriggerRow) -> Result<(), StoreError> {
        triggers::remove(&self.store, row).await
    }

    async fn insert_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        values: &BTreeMap<String, Secret>,
    ) -> Result<SecretRow, StoreError> {
        secrets::insert(&self.store, &self.vault, namespace, name, values).await
    }

    async fn change_secret(
        &self,
        row: &SecretRow,
        values: &BTreeMap<String, Secret>,
    ) -> Result<(SecretRow, Vec<FunctionRef>), StoreError> {
        secrets::change(&self.store, &self.vault, row, values).await
    }

    async fn secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<SecretRow>, StoreError> {
        Ok(secrets::one(&self.store, namespace, name).await?.map(|(row, _)| row))
    }

    async fn secrets(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, StoreError> {
        secrets::page(&self.store, namespace, below, limit).await
    }

    async fn remove_secret(&self, row: &SecretRow) -> Result<Option<FunctionRef>, StoreError> {
        secrets::remove(&self.store, row).await
    }

    async fn reachable(&self) -> Result<Vec<Reachable>, StoreError> {
        functions::reachable(&self.store).await
    }

    /// All changes come through here.
    fn changes(&self) -> BoxStream<()> {
        Box::pin(tokio_stream::pending())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Records::ping(&self.store).await
    }
}

#[async_trait]
impl Upkeep for SqlDefinitions {
    async fn all_functions(&self) -> Result<Vec<FunctionRow>, StoreError> {
        functions::all(&self.store).await
    }

    async fn set_active(&self, function: &FunctionRef, revision: &str) -> Result<(), StoreError> {
        functions::set_active(&self.store, function, revision).await
    }

    async fn remove_function(&self, function: &FunctionRef) -> Result<(), StoreError> {
        functions::remove(&self.store, function).await
    }

    async fn forget_revisions(&self, row: &FunctionRow, keep: u32) -> Result<Vec<RevisionRow>, StoreError> {
        functions::forget_revisions(&self.store, row.id, keep).await
    }

    async fn contents(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<Contents>, StoreError> {
        let found = secrets::one(&self.store, namespace, name).await?;
        Ok(found.map(|(_, sealed)| {
            self.vault.unseal(namespace, name, &sealed).map_or(Contents::Unreadable, Contents::Values)
        }))
    }

    async fn unreadable(&self) -> Result<Vec<String>, StoreError> {
        let all = secrets::all(&self.store).await?;
        let closed = all
            .into_iter()
            .filter(|(row, sealed)| self.vault.unseal(&row.namespace, &row.name, sealed).is_none());
        Ok(closed.map(|(row, _)| format!("{}/{}", row.namespace, row.name)).collect())
    }
}
