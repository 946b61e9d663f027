//! Definitions in memory, for tests of what stands above the port: they change behind the API's back when a test says so, as the
//! objects of a cluster do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sless_core::{FunctionSettings, Namespace, Runtime, SecretName, TriggerName};
use tokio::sync::broadcast;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

use crate::{
    BoxStream, DefinitionError, Definitions, FunctionChange, FunctionRef, FunctionRow, Moment, Reachable,
    RevisionRow, Secret, SecretRow, TriggerRow, TriggerWish,
};

/// See the module.
#[derive(Debug)]
pub struct FakeDefinitions {
    state: Mutex<State>,
    changes: broadcast::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    ids: i64,
    namespaces: BTreeSet<Namespace>,
    foreign: BTreeSet<Namespace>,
    away: bool,
    functions: BTreeMap<FunctionRef, (FunctionRow, Vec<RevisionRow>)>,
    triggers: BTreeMap<(Namespace, TriggerName), TriggerRow>,
    secrets: BTreeMap<(Namespace, SecretName), (SecretRow, BTreeMap<String, Secret>)>,
}

impl Default for FakeDefinitions {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: broadcast::channel(16).0 }
    }
}

impl State {
    fn id(&mut self) -> i64 {
        self.ids += 1;
        self.ids
    }

    fn check_named(&self, namespace: &Namespace, settings: &FunctionSettings) -> Result<(), DefinitionError> {
        let missing = settings
            .secrets
            .iter()
            .find(|name| !self.secrets.contains_key(&(namespace.clone(), (*name).clone())));
        missing.map_or(Ok(()), |name| Err(DefinitionError::NoSecret(name.as_str().to_owned())))
    }

    fn naming(&self, namespace: &Namespace, secret: &SecretName) -> Vec<FunctionRef> {
        let names =
            |row: &FunctionRow| row.function.namespace == *namespace && row.settings.secrets.contains(secret);
        self.functions.values().filter(|(row, _)| names(row)).map(|(row, _)| row.function.clone()).collect()
    }

    fn check_host(&self, wish: &TriggerWish, id: i64) -> Result<(), DefinitionError> {
        let Some(host) = &wish.http.host else { return Ok(()) };
        let taken = |row: &&TriggerRow| row.id != id && row.wish.http.host.as_ref() == Some(host);
        self.triggers.values().find(taken).map_or(Ok(()), |_| Err(DefinitionError::HostTaken))
    }
}

/// Newest first, and only below an id.
fn page<T>(rows: impl Iterator<Item = T>, id: impl Fn(&T) -> i64, below: Option<i64>, limit: u32) -> Vec<T> {
    let mut rows: Vec<T> = rows.filter(|row| below.is_none_or(|below| id(row) < below)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(id(row)));
    rows.truncate(limit as usize);
    rows
}

impl FakeDefinitions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A namespace that is somebody else's.
    pub fn keep_out_of(&self, namespace: &Namespace) {
        self.state().foreign.insert(namespace.clone());
    }

    /// Whether nothing can be read or written.
    pub fn be_away(&self, away: bool) {
        self.state().away = away;
    }

    /// Somebody else has changed a trigger.
    pub fn change_behind(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        change: impl FnOnce(&mut TriggerRow),
    ) {
        if let Some(row) = self.state().triggers.get_mut(&(namespace.clone(), name.clone())) {
            change(row);
            row.version += 1;
        }
        // Nobody listening is no fault.
        let _ = self.changes.send(());
    }

    /// Lets a deletion come to its end.
    pub fn finish(&self, function: &FunctionRef) {
        let mut state = self.state();
        if state.functions.get(function).is_some_and(|(row, _)| row.deleting) {
            state.functions.remove(function);
        }
    }
}

#[async_trait]
impl Definitions for FakeDefinitions {
    async fn enter_namespace(&self, namespace: &Namespace, make: bool) -> Result<(), DefinitionError> {
        let mut state = self.state();
        if state.foreign.contains(namespace) {
            return Err(DefinitionError::NamespaceRefused(format!(
                "namespace {namespace} is somebody else's"
            )));
        }
        if make {
            state.namespaces.insert(namespace.clone());
        }
        if state.namespaces.contains(namespace) {
            return Ok(());
        }
        Err(DefinitionError::NamespaceRefused(format!("there is no namespace {namespace}")))
    }

    async fn insert_function(
        &self,
        function: &FunctionRef,
        runtime: &Runtime,
        settings: &FunctionSettings,
    ) -> Result<FunctionRow, DefinitionError> {
        let mut state = self.state();
        if state.functions.contains_key(function) {
            return Err(DefinitionError::Exists);
        }
        state.check_named(&function.namespace, settings)?;
        let now = Moment::now();
        let row = FunctionRow {
            id: state.id(),
            function: function.clone(),
            runtime: runtime.clone(),
            settings: settings.clone(),
            version: 1,
            generation: 1,
            wanted: None,
            active: None,
            deleting: false,
            created_at: now,
            updated_at: now,
        };
        state.functions.insert(function.clone(), (row.clone(), Vec::new()));
        Ok(row)
    }

    async fn function(&self, function: &FunctionRef) -> Result<Option<FunctionRow>, DefinitionError> {
        Ok(self.state().functions.get(function).map(|(row, _)| row.clone()))
    }

    async fn functions(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<FunctionRow>, DefinitionError> {
        let state = self.state();
        let rows = state.functions.values().map(|(row, _)| row.clone());
        Ok(page(rows.filter(|row| row.function.namespace == *namespace), |row| row.id, below, limit))
    }

    async fn change_function(
        &self,
        row: &FunctionRow,
        change: &FunctionChange,
    ) -> Result<FunctionRow, DefinitionError> {
        let mut state = self.state();
        state.check_named(&row.function.namespace, &change.settings)?;
        let (now, revisions) = state.functions.get_mut(&row.function).ok_or(DefinitionError::Stale)?;
        if (now.id, now.version) != (row.id, row.version) {
            return Err(DefinitionError::Stale);
        }
        now.version += 1;
        now.settings = change.settings.clone();
        now.updated_at = Moment::now();
        if let Some(wanted) = &change.wanted {
            now.generation += 1;
            now.wanted = Some(wanted.name.clone());
            revisions.retain(|one| one.name != wanted.name);
            revisions.insert(0, wanted.clone());
        }
        Ok(now.clone())
    }

    async fn delete_function(&self, row: &FunctionRow) -> Result<FunctionRow, DefinitionError> {
        let mut state = self.state();
        let (now, _) = state.functions.get_mut(&row.function).ok_or(DefinitionError::Stale)?;
        if (now.id, now.version) != (row.id, row.version) {
            return Err(DefinitionError::Stale);
        }
        now.version += 1;
        now.deleting = true;
        Ok(now.clone())
    }

    async fn revision(&self, row: &FunctionRow, name: &str) -> Result<Option<RevisionRow>, DefinitionError> {
        Ok(self.revisions(row).await?.into_iter().find(|one| one.name == name))
    }

    async fn revisions(&self, row: &FunctionRow) -> Result<Vec<RevisionRow>, DefinitionError> {
        let state = self.state();
        let found = state.functions.get(&row.function).filter(|(now, _)| now.id == row.id);
        Ok(found.map(|(_, revisions)| revisions.clone()).unwrap_or_default())
    }

    async fn insert_trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError> {
        let mut state = self.state();
        let key = (namespace.clone(), name.clone());
        if state.triggers.contains_key(&key) {
            return Err(DefinitionError::Exists);
        }
        let id = state.id();
        state.check_host(wish, id)?;
        let now = Moment::now();
        let row = TriggerRow {
            id,
            namespace: namespace.clone(),
            name: name.clone(),
            wish: wish.clone(),
            version: 1,
            trouble: None,
            created_at: now,
            updated_at: now,
        };
        state.triggers.insert(key, row.clone());
        Ok(row)
    }

    async fn trigger(
        &self,
        namespace: &Namespace,
        name: &TriggerName,
    ) -> Result<Option<TriggerRow>, DefinitionError> {
        Ok(self.state().triggers.get(&(namespace.clone(), name.clone())).cloned())
    }

    async fn triggers(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TriggerRow>, DefinitionError> {
        let state = self.state();
        let rows = state.triggers.values().filter(|row| row.namespace == *namespace).cloned();
        Ok(page(rows, |row| row.id, below, limit))
    }

    async fn change_trigger(
        &self,
        row: &TriggerRow,
        wish: &TriggerWish,
    ) -> Result<TriggerRow, DefinitionError> {
        let mut state = self.state();
        state.check_host(wish, row.id)?;
        let key = (row.namespace.clone(), row.name.clone());
        let now = state.triggers.get_mut(&key).ok_or(DefinitionError::Stale)?;
        if (now.id, now.version) != (row.id, row.version) {
            return Err(DefinitionError::Stale);
        }
        now.version += 1;
        now.wish = wish.clone();
        now.updated_at = Moment::now();
        Ok(now.clone())
    }

    async fn remove_trigger(&self, row: &TriggerRow) -> Result<(), DefinitionError> {
        let mut state = self.state();
        let key = (row.namespace.clone(), row.name.clone());
        let same = state.triggers.get(&key).is_some_and(|now| (now.id, now.version) == (row.id, row.version));
        if !same {
            return Err(DefinitionError::Stale);
        }
        state.triggers.remove(&key);
        Ok(())
    }

    async fn insert_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        values: &BTreeMap<String, Secret>,
    ) -> Result<SecretRow, DefinitionError> {
        let mut state = self.state();
        let key = (namespace.clone(), name.clone());
        if state.secrets.contains_key(&key) {
            return Err(DefinitionError::Exists);
        }
        let now = Moment::now();
        let row = SecretRow {
            id: state.id(),
            namespace: namespace.clone(),
            name: name.clone(),
            keys: values.keys().cloned().collect(),
            version: 1,
            created_at: now,
            updated_at: now,
        };
        state.secrets.insert(key, (row.clone(), values.clone()));
        Ok(row)
    }

    async fn change_secret(
        &self,
        row: &SecretRow,
        values: &BTreeMap<String, Secret>,
    ) -> Result<(SecretRow, Vec<FunctionRef>), DefinitionError> {
        let mut state = self.state();
        let naming = state.naming(&row.namespace, &row.name);
        let key = (row.namespace.clone(), row.name.clone());
        let (now, held) = state.secrets.get_mut(&key).ok_or(DefinitionError::Stale)?;
        if (now.id, now.version) != (row.id, row.version) {
            return Err(DefinitionError::Stale);
        }
        if held == values {
            return Ok((now.clone(), Vec::new()));
        }
        now.version += 1;
        now.keys = values.keys().cloned().collect();
        now.updated_at = Moment::now();
        *held = values.clone();
        let changed = now.clone();
        for function in &naming {
            if let Some((row, _)) = state.functions.get_mut(function) {
                row.version += 1;
                row.generation += 1;
            }
        }
        Ok((changed, naming))
    }

    async fn secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
    ) -> Result<Option<SecretRow>, DefinitionError> {
        Ok(self.state().secrets.get(&(namespace.clone(), name.clone())).map(|(row, _)| row.clone()))
    }

    async fn secrets(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, DefinitionError> {
        let state = self.state();
        let rows = state.secrets.values().map(|(row, _)| row.clone());
        Ok(page(rows.filter(|row| row.namespace == *namespace), |row| row.id, below, limit))
    }

    async fn remove_secret(&self, row: &SecretRow) -> Result<Option<FunctionRef>, DefinitionError> {
        let mut state = self.state();
        let key = (row.namespace.clone(), row.name.clone());
        let same =
            state.secrets.get(&key).is_some_and(|(now, _)| (now.id, now.version) == (row.id, row.version));
        if !same {
            return Err(DefinitionError::Stale);
        }
        if let Some(function) = state.naming(&row.namespace, &row.name).into_iter().next() {
            return Ok(Some(function));
        }
        state.secrets.remove(&key);
        Ok(None)
    }

    async fn reachable(&self) -> Result<Vec<Reachable>, DefinitionError> {
        self.ping().await?;
        let state = self.state();
        let alive = state.functions.values().filter(|(row, _)| !row.deleting);
        let reachable = |row: &FunctionRow| {
            let ours = |trigger: &&TriggerRow| {
                trigger.wish.enabled
                    && trigger.namespace == row.function.namespace
                    && trigger.wish.function == row.function.name
            };
            let mut triggers: Vec<_> = state.triggers.values().filter(ours).collect();
            triggers.sort_by_key(|trigger| trigger.id);
            let triggers = triggers.into_iter().map(|trigger| trigger.wish.http.clone()).collect();
            Reachable { function: row.function.clone(), triggers }
        };
        Ok(alive.map(|(row, _)| reachable(row)).collect())
    }

    fn changes(&self) -> BoxStream<()> {
        // Who was too slow has missed nothing that he would not read now.
        Box::pin(BroadcastStream::new(self.changes.subscribe()).map(drop))
    }

    async fn ping(&self) -> Result<(), DefinitionError> {
        if self.state().away {
            let source = "the test says so".into();
            return Err(DefinitionError::Away { action: "read what is in memory", source });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definitions_suite::{Harness, run};

    #[async_trait]
    impl Harness for FakeDefinitions {
        fn definitions(&self) -> &dyn Definitions {
            self
        }

        async fn finish(&self, function: &FunctionRef) {
            Self::finish(self, function);
        }
    }

    #[tokio::test]
    async fn the_fake_passes() {
        run(&FakeDefinitions::default()).await;
    }
}
