use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sless_backend::FunctionRef;
use tokio::sync::Mutex;

use crate::store::{Store, StoreError};

/// A function that can be called.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) function: FunctionRef,
    /// It has an enabled http trigger.
    pub(crate) public: bool,
}

/// All functions that can be called, by `{namespace}/{name}`: a picture that is replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Table {
    routes: ArcSwap<HashMap<Box<str>, Arc<Route>>>,
    /// Held from reading the database until the picture hangs, so that an older one never replaces a newer one.
    loading: Mutex<()>,
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<Arc<Route>> {
        self.routes.load().get(key).cloned()
    }

    /// All of it, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Route>> {
        let mut all: Vec<_> = self.routes.load().values().cloned().collect();
        all.sort_by(|a, b| a.function.cmp(&b.function));
        all
    }

    /// To be called after each change of functions or triggers, before its caller hears of it.
    pub(crate) async fn reload(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _alone = self.loading.lock().await;
        let reachable = store.reachable().await?.into_iter();
        let entry = |r: crate::store::Reachable| {
            (r.function.to_string().into(), Arc::new(Route { function: r.function, public: r.public }))
        };
        self.routes.store(Arc::new(reachable.map(entry).collect()));
        Ok(())
    }
}
