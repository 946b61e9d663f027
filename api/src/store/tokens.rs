//! Tokens as they are kept.

use async_trait::async_trait;
use sless_core::{Namespace, TokenName};

use super::StoreError;
use crate::auth::{Role, TokenHash};
use sless_backend::Moment;

/// A token without the text that only its owner has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenRow {
    /// Only grows: the order of creation.
    pub(crate) id: i64,
    pub(crate) namespace: Namespace,
    pub(crate) name: TokenName,
    pub(crate) role: Role,
    pub(crate) created_at: Moment,
    pub(crate) expires_at: Option<Moment>,
}

/// The part of a store that keeps tokens.
#[async_trait]
pub(crate) trait Tokens {
    /// # Errors
    /// [`StoreError::Exists`] if the name is taken in this namespace. A token that has expired takes no name: the new one is put in
    /// its place.
    async fn insert_token(
        &self,
        namespace: &Namespace,
        name: &TokenName,
        role: Role,
        hash: &TokenHash,
        expires_at: Option<Moment>,
    ) -> Result<TokenRow, StoreError>;
    async fn token(&self, namespace: &Namespace, name: &TokenName) -> Result<Option<TokenRow>, StoreError>;
    /// Asked for each request. Gives tokens that have expired too.
    async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRow>, StoreError>;
    /// Those of a namespace with an id below `below`, newest first.
    async fn tokens(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TokenRow>, StoreError>;
    /// # Errors
    /// [`StoreError::Gone`] if there is none.
    async fn remove_token(&self, row: &TokenRow) -> Result<(), StoreError>;
}

/// What every store does with tokens.
#[cfg(test)]
pub(crate) mod suite {
    use super::*;
    use crate::store::Records;

    pub(crate) async fn run(store: &dyn Records) {
        let (a, b): (Namespace, Namespace) = ("tokens-a".parse().unwrap(), "tokens-b".parse().unwrap());
        let name = |text: &str| text.parse::<TokenName>().unwrap();
        let hash = |text: &str| TokenHash::of(text);
        let end = Some(Moment(Moment::now().0 + 3_600_000_000));
        let made = store.insert_token(&a, &name("ci"), Role::Deployer, &hash("t1"), end).await.unwrap();
        assert_eq!((made.role, made.expires_at, made.name.as_str()), (Role::Deployer, end, "ci"));
        let taken = store.insert_token(&a, &name("ci"), Role::Viewer, &hash("t2"), None).await;
        assert!(matches!(taken, Err(StoreError::Exists)), "{taken:?}");
        let other = store.insert_token(&b, &name("ci"), Role::Viewer, &hash("t3"), None).await.unwrap();
        assert_eq!(store.token(&a, &name("ci")).await.unwrap(), Some(made.clone()));
        assert_eq!(store.token(&a, &name("nobody")).await.unwrap(), None);
        assert_eq!(store.token_by_hash(&hash("t1")).await.unwrap(), Some(made.clone()));
        assert_eq!(store.token_by_hash(&hash("t3")).await.unwrap(), Some(other));
        assert_eq!(store.token_by_hash(&hash("t2")).await.unwrap(), None);
        let second = store.insert_token(&a, &name("b"), Role::Admin, &hash("t4"), None).await.unwrap();
        assert_eq!(store.tokens(&a, None, 9).await.unwrap(), [second.clone(), made.clone()]);
        assert_eq!(store.tokens(&a, Some(second.id), 9).await.unwrap(), std::slice::from_ref(&made));
        assert_eq!(store.tokens(&a, None, 1).await.unwrap(), [second]);
        store.remove_token(&made).await.unwrap();
        assert!(matches!(store.remove_token(&made).await, Err(StoreError::Gone)));
        assert_eq!(store.token_by_hash(&hash("t1")).await.unwrap(), None);
        let again = store.insert_token(&a, &name("ci"), Role::Viewer, &hash("t5"), None).await.unwrap();
        assert!(again.id > made.id, "a cursor never meets an id again");
        assert!(matches!(store.remove_token(&made).await, Err(StoreError::Gone)), "the new one is another");
        let past = Some(Moment(1_700_000_000_000_000));
        let over = store.insert_token(&a, &name("past"), Role::Admin, &hash("t6"), past).await.unwrap();
        assert_eq!(store.token_by_hash(&hash("t6")).await.unwrap(), Some(over.clone()));
        let next = store.insert_token(&a, &name("past"), Role::Viewer, &hash("t7"), None).await.unwrap();
        assert!(next.id > over.id && next.role == Role::Viewer, "one that has expired frees its name");
        assert_eq!(store.token_by_hash(&hash("t6")).await.unwrap(), None);
    }
}
