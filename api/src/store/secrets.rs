//! Secrets as they are kept: encrypted, and with a hand on what names them.

use async_trait::async_trait;
use sless_backend::FunctionRef;
use sless_core::{Namespace, SecretName};

use super::StoreError;
use sless_backend::Moment;

/// A secret. What is in it can be read with the key alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretRow {
    /// Only grows: the order of creation.
    pub(crate) id: i64,
    pub(crate) namespace: Namespace,
    pub(crate) name: SecretName,
    /// The names of its values, in order.
    pub(crate) keys: Vec<String>,
    pub(crate) sealed: Vec<u8>,
    pub(crate) version: u64,
    pub(crate) created_at: Moment,
    pub(crate) updated_at: Moment,
}

/// The part of a store that keeps secrets. It makes sure of one thing that no caller could: a function names no secret that isn't
/// there. `insert_function` and `update_function` fail with [`StoreError::NoSecret`], and what is named stays.
#[async_trait]
pub(crate) trait Secrets {
    /// # Errors
    /// [`StoreError::Exists`] if the name is taken.
    async fn insert_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        keys: &[String],
        sealed: &[u8],
    ) -> Result<SecretRow, StoreError>;
    /// Writes `keys` and `sealed` over the version that `row` was read as, raises generation and version of every function that names
    /// it (so that a write that goes on at the same time does not give the same generation again), and returns these functions.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it has another version now or is gone.
    async fn update_secret(&self, row: &SecretRow) -> Result<(SecretRow, Vec<FunctionRef>), StoreError>;
    async fn secret(&self, namespace: &Namespace, name: &SecretName)
    -> Result<Option<SecretRow>, StoreError>;
    /// Those of a namespace with an id below `below`, newest first.
    async fn secrets(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, StoreError>;
    /// Those of all namespaces, oldest first.
    async fn all_secrets(&self) -> Result<Vec<SecretRow>, StoreError>;
    /// Removes the version that `row` was read as, unless a function names it; gives the name of one that does.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it has another version now or is gone.
    async fn remove_secret(&self, row: &SecretRow) -> Result<Option<FunctionRef>, StoreError>;
}

/// What every store does with secrets.
#[cfg(test)]
pub(crate) mod suite {
    use sless_core::FunctionSettings;

    use super::*;
    use crate::store::{FunctionRow, Store};

    pub(crate) async fn run(store: &dyn Store) {
        let ns: Namespace = "secrets-a".parse().unwrap();
        let elsewhere: Namespace = "secrets-b".parse().unwrap();
        let name = |text: &str| text.parse::<SecretName>().unwrap();
        let keys = |text: &str| vec![text.to_owned()];
        let made = store.insert_secret(&ns, &name("db"), &keys("A"), b"\0\xff1").await.unwrap();
        assert_eq!((made.version, made.sealed.as_slice(), &made.keys), (1, &b"\0\xff1"[..], &keys("A")));
        let taken = store.insert_secret(&ns, &name("db"), &keys("A"), b"").await;
        assert!(matches!(taken, Err(StoreError::Exists)), "{taken:?}");
        assert_eq!(store.secret(&ns, &name("db")).await.unwrap(), Some(made.clone()));
        assert_eq!(store.secret(&elsewhere, &name("db")).await.unwrap(), None);
        let second = store.insert_secret(&ns, &name("b"), &[], b"2").await.unwrap();
        assert_eq!(store.secrets(&ns, None, 9).await.unwrap(), [second.clone(), made.clone()]);
        assert_eq!(store.secrets(&ns, Some(second.id), 9).await.unwrap(), std::slice::from_ref(&made));

        let f = FunctionRef { namespace: ns.clone(), name: "f".parse().unwrap() };
        let naming = |names: &[&str]| FunctionSettings {
            secrets: names.iter().map(|n| name(n)).collect(),
            ..FunctionSettings::default()
        };
        let runtime = "python3.11".parse().unwrap();
        let refused = store.insert_function(&f, &runtime, &naming(&["db", "none"])).await;
        assert!(matches!(&refused, Err(StoreError::NoSecret(n)) if n == "none"), "{refused:?}");
        assert_eq!(store.function(&f).await.unwrap(), None);
        let row = store.insert_function(&f, &runtime, &naming(&["db"])).await.unwrap();
        let worse = FunctionRow { settings: naming(&["none"]), ..row.clone() };
        assert!(matches!(store.update_function(&worse, None).await, Err(StoreError::NoSecret(_))));
        assert_eq!(store.function(&f).await.unwrap(), Some(row.clone()));

        let wanted = crate::store::SecretRow { keys: keys("B"), sealed: b"3".to_vec(), ..made.clone() };
        let (changed, told) = store.update_secret(&wanted).await.unwrap();
        assert_eq!((changed.version, changed.id, told), (2, made.id, vec![f.clone()]));
        assert!(matches!(store.update_secret(&wanted).await, Err(StoreError::Stale)));
        let seen = store.function(&f).await.unwrap().unwrap();
        assert_eq!((seen.generation, seen.version), (row.generation + 1, row.version + 1));
        let (_, told) = store.update_secret(&second).await.unwrap();
        assert!(told.is_empty());

        assert!(matches!(store.remove_secret(&made).await, Err(StoreError::Stale)));
        assert_eq!(store.remove_secret(&changed).await.unwrap(), Some(f));
        let row = FunctionRow { settings: naming(&[]), ..seen };
        store.update_function(&row, None).await.unwrap();
        assert_eq!(store.remove_secret(&changed).await.unwrap(), None);
        assert_eq!(store.secret(&ns, &name("db")).await.unwrap(), None);
    }
}
