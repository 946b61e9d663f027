use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sless_backend::{DefinitionError, Definitions, FunctionRef, Reachable};
use sless_core::HttpTrigger;
use tokio::sync::Mutex;

/// A function that can be called.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) function: FunctionRef,
    /// What lets the public in: its enabled http triggers, or the one whose host was asked.
    pub(crate) triggers: Vec<HttpTrigger>,
}

#[derive(Debug, Default)]
struct Routes {
    /// By `{namespace}/{name}`.
    named: HashMap<Box<str>, Arc<Route>>,
    /// By the host of a trigger.
    hosts: HashMap<Box<str>, Arc<Route>>,
}

/// All functions that can be called: a picture that is replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Table {
    routes: ArcSwap<Routes>,
    /// Held from reading the database until the picture hangs, so that an older one never replaces a newer one.
    loading: Mutex<()>,
}

impl Routes {
    fn add(&mut self, reachable: Reachable) {
        let Reachable { function, triggers } = reachable;
        for trigger in &triggers {
            if let Some(host) = &trigger.host {
                let route = Route { function: function.clone(), triggers: vec![trigger.clone()] };
                self.hosts.insert(host.as_str().into(), Arc::new(route));
            }
        }
        self.named.insert(function.to_string().into(), Arc::new(Route { function, triggers }));
    }
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<Arc<Route>> {
        self.routes.load().named.get(key).cloned()
    }

    pub(super) fn has_hosts(&self) -> bool {
        !self.routes.load().hosts.is_empty()
    }

    pub(super) fn of_host(&self, host: &str) -> Option<Arc<Route>> {
        self.routes.load().hosts.get(host).cloned()
    }

    /// All of it, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Route>> {
        let mut all: Vec<_> = self.routes.load().named.values().cloned().collect();
        all.sort_by(|a, b| a.function.cmp(&b.function));
        all
    }

    /// To be called after each change of functions or triggers, before its caller hears of it.
    pub(crate) async fn reload(&self, definitions: &dyn Definitions) -> Result<(), DefinitionError> {
        let _alone = self.loading.lock().await;
        let mut routes = Routes::default();
        definitions.reachable().await?.into_iter().for_each(|reachable| routes.add(reachable));
        self.routes.store(Arc::new(routes));
        Ok(())
    }
}
