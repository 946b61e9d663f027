//! What each call asks for, kept ready by name: the state of functions, and where their supervisors are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use sless_backend::{Endpoint, FunctionRef, FunctionStatus};
use sless_crds::Function;
use tokio::sync::watch;

use crate::slices::{self, Address, Aside};
use crate::status::{function_ref, function_status};

/// See the module. Told by the mirrors' tasks, asked by everybody.
#[derive(Debug)]
pub(crate) struct Index {
    state: RwLock<State>,
    /// Counts changes of statuses.
    statuses: watch::Sender<u64>,
    /// Counts changes of addresses.
    addresses: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    functions: HashMap<FunctionRef, Arc<FunctionStatus>>,
    /// By the name of the slice: a Service with many pods has several.
    slices: HashMap<FunctionRef, BTreeMap<String, Vec<Address>>>,
    /// Those that can take a call, made from the slices.
    ready: HashMap<FunctionRef, Arc<[Endpoint]>>,
    /// Pods of earlier revisions, by namespace and name.
    asides: BTreeMap<(String, String), Aside>,
    lists: Lists,
}

/// What a list that is being read has given so far: it counts only when it is whole.
#[derive(Debug, Default)]
struct Lists {
    functions: HashMap<FunctionRef, Arc<FunctionStatus>>,
    slices: HashMap<FunctionRef, BTreeMap<String, Vec<Address>>>,
    asides: BTreeMap<(String, String), Aside>,
}

impl Default for Index {
    fn default() -> Self {
        Self { state: RwLock::default(), statuses: watch::channel(0).0, addresses: watch::channel(0).0 }
    }
}

impl Index {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self, function: &FunctionRef) -> Option<Arc<FunctionStatus>> {
        self.read().functions.get(function).cloned()
    }

    pub(crate) fn statuses(&self) -> HashMap<FunctionRef, Arc<FunctionStatus>> {
        self.read().functions.clone()
    }

    pub(crate) fn status_changes(&self) -> watch::Receiver<u64> {
        self.statuses.subscribe()
    }

    pub(crate) fn address_changes(&self) -> watch::Receiver<u64> {
        self.addresses.subscribe()
    }

    /// Where a call can go now. Nothing for a function that is being deleted, though its pods still end what they have.
    pub(crate) fn endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        let state = self.read();
        let there = state.functions.get(function).is_some_and(|s| s.phase != sless_core::Phase::Terminating);
        let ready = if there { state.ready.get(function).cloned() } else { None };
        ready.unwrap_or_default()
    }

    /// All supervisors that there are of a function.
    pub(crate) fn supervisors(&self, function: &FunctionRef) -> Vec<Endpoint> {
        let state = self.read();
        let slices = state.slices.get(function).into_iter().flat_map(|slices| slices.values().flatten());
        let asides = state.asides.values().filter(|a| a.function == *function).map(|a| &a.address);
        let mut seen = HashSet::new();
        let all = slices.chain(asides).map(|address| address.endpoint.clone());
        all.filter(|endpoint| seen.insert(endpoint.clone())).collect()
    }

    /// The pods of an earlier revision.
    pub(crate) fn asides(&self, function: &FunctionRef, revision: &str) -> Vec<Aside> {
        let state = self.read();
        let asides = state.asides.values().filter(|a| a.function == *function && a.revision == revision);
        asides.cloned().collect()
    }

    pub(crate) fn function_event(&self, event: &Event<Function>) {
        let mut state = self.write();
        let state = &mut *state;
        let changed = match event {
            Event::Init => {
                state.lists.functions.clear();
                false
            }
            Event::InitApply(object) => {
                if let Some(status) = function_status(object) {
                    state.lists.functions.insert(status.function.clone(), Arc::new(status));
                }
                false
            }
            Event::InitDone => {
                let mut listed = std::mem::take(&mut state.lists.functions);
                for (function, status) in &mut listed {
                    // The same one again stays the same, so that nobody is told of it.
                    if let Some(before) = state.functions.get(function).filter(|before| *before == status) {
                        *status = before.clone();
                    }
                }
                state.functions = listed;
                true
            }
            Event::Apply(object) => match function_status(object) {
                Some(status) if state.functions.get(&status.function).is_none_or(|b| **b != status) => {
                    state.functions.insert(status.function.clone(), Arc::new(status));
                    true
                }
                _ => false,
            },
            Event::Delete(object) => function_ref(object.metadata.namespace.as_deref(), &object.name_any())
                .is_some_and(|function| state.functions.remove(&function).is_some()),
        };
        if changed {
            self.statuses.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn slice_event(&self, event: &Event<EndpointSlice>) {
        let mut state = self.write();
        let state = &mut *state;
        match event {
            Event::Init => state.lists.slices.clear(),
            Event::InitApply(slice) => {
                if let Some(function) = slices::owner_of_slice(slice) {
                    let of = state.lists.slices.entry(function).or_default();
                    of.insert(slice.name_any(), slices::addresses(slice));
                }
            }
            Event::InitDone => {
                state.slices = std::mem::take(&mut state.lists.slices);
                let all: HashSet<_> = state.slices.keys().chain(state.ready.keys()).cloned().collect();
                all.iter().for_each(|function| state.gather(function));
            }
            Event::Apply(slice) => {
                let Some(function) = slices::owner_of_slice(slice) else { return };
                let of = state.slices.entry(function.clone()).or_default();
                of.insert(slice.name_any(), slices::addresses(slice));
                state.gather(&function);
            }
            Event::Delete(slice) => {
                let Some(function) = slices::owner_of_slice(slice) else { return };
                if let Some(of) = state.slices.get_mut(&function) {
                    of.remove(&slice.name_any());
                }
                state.gather(&function);
            }
        }
        self.addresses.send_modify(|count| *count += 1);
    }

    pub(crate) fn aside_event(&self, event: &Event<Pod>) {
        let mut state = self.write();
        let key = |pod: &Pod| (pod.namespace().unwrap_or_default(), pod.name_any());
        match event {
            Event::Init => state.lists.asides.clear(),
            Event::InitApply(pod) => {
                if let Some(aside) = slices::aside(pod) {
                    state.lists.asides.insert(key(pod), aside);
                }
            }
            Event::InitDone => state.asides = std::mem::take(&mut state.lists.asides),
            Event::Apply(pod) => {
                match slices::aside(pod) {
                    Some(aside) => state.asides.insert(key(pod), aside),
                    None => state.asides.remove(&key(pod)),
                };
            }
            Event::Delete(pod) => {
                state.asides.remove(&key(pod));
            }
        }
        drop(state);
        self.addresses.send_modify(|count| *count += 1);
    }
}

impl State {
    /// Makes a function's list anew. The same addresses stay the same list: who holds it can tell.
    fn gather(&mut self, function: &FunctionRef) {
        let slices = self.slices.get(function).filter(|slices| !slices.is_empty());
        let Some(slices) = slices else {
            self.slices.remove(function);
            self.ready.remove(function);
            return;
        };
        let mut seen = HashSet::new();
        let ready = slices.values().flatten().filter(|address| address.ready).map(|a| &a.endpoint);
        // While addresses move from one slice to another they are in both for a moment.
        let ready: Vec<_> = ready.filter(|endpoint| seen.insert(*endpoint)).cloned().collect();
        if self.ready.get(function).is_none_or(|before| **before != *ready) {
            self.ready.insert(function.clone(), ready.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sless_crds::names::LABEL_FUNCTION;

    use super::*;

    fn function(name: &str, phase: &str) -> Function {
        serde_json::from_value(json!({
            "apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"namespace": "team", "name": name},
            "spec": {"runtime": "nodejs20"}, "status": {"observedGeneration": 1, "phase": phase}
        }))
        .unwrap()
    }

    fn slice(name: &str, of: &str, ready: &[&str], ending: &[&str]) -> EndpointSlice {
        let one = |ip: &&str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready, "terminating": !ready}});
        let all: Vec<_> =
            ready.iter().map(|ip| one(ip, true)).chain(ending.iter().map(|ip| one(ip, false))).collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "sless-fn-team", "name": name, "labels": {LABEL_FUNCTION: of}}, "addressType": "IPv4", "endpoints": all
        }))
        .unwrap()
    }

    fn named(name: &str) -> FunctionRef {
        FunctionRef { namespace: "team".parse().unwrap(), name: name.parse().unwrap() }
    }

    fn filled() -> Index {
        let index = Index::default();
        index.function_event(&Event::Apply(function("f", "Ready")));
        index.slice_event(&Event::Apply(slice("one", "f", &["10.0.0.1"], &["10.0.0.2"])));
        index.slice_event(&Event::Apply(slice("two", "f", &["10.0.0.1", "10.0.0.3"], &[])));
        index
    }

    #[test]
    fn ready_pods_of_all_slices_take_calls_each_once() {
        let index = filled();
        let before = index.endpoints(&named("f"));
        assert_eq!((before.len(), index.supervisors(&named("f")).len()), (2, 3));
        index.slice_event(&Event::Apply(slice("two", "f", &["10.0.0.1", "10.0.0.3"], &["10.0.0.4"])));
        assert!(Arc::ptr_eq(&before, &index.endpoints(&named("f"))), "the same addresses are the same list");
        index.slice_event(&Event::Delete(slice("one", "f", &[], &[])));
        index.slice_event(&Event::Delete(slice("two", "f", &[], &[])));
        assert!(index.endpoints(&named("f")).is_empty() && index.supervisors(&named("f")).is_empty());
    }

    #[test]
    fn a_new_list_takes_the_place_of_all_that_was_known() {
        let index = filled();
        let kept = index.status(&named("f")).unwrap();
        let seen = index.status_changes();
        index.slice_event(&Event::Init);
        index.slice_event(&Event::InitApply(slice("one", "g", &["10.0.0.9"], &[])));
        assert_eq!(index.endpoints(&named("f")).len(), 2, "not before it is whole");
        index.slice_event(&Event::InitDone);
        assert!(index.endpoints(&named("f")).is_empty());
        for event in [
            Event::Init,
            Event::InitApply(function("f", "Ready")),
            Event::InitApply(function("g", "Ready")),
            Event::InitDone,
        ] {
            index.function_event(&event);
        }
        assert_eq!(index.endpoints(&named("g")).len(), 1);
        assert!(Arc::ptr_eq(&kept, &index.status(&named("f")).unwrap()) && seen.has_changed().unwrap());
        index.function_event(&Event::Init);
        index.function_event(&Event::InitDone);
        assert!(index.status(&named("f")).is_none());
    }

    #[test]
    fn what_is_being_deleted_takes_no_calls() {
        let index = filled();
        let mut going = function("f", "Ready");
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        index.function_event(&Event::Apply(going));
        assert!(index.endpoints(&named("f")).is_empty());
        assert_eq!(index.supervisors(&named("f")).len(), 3, "but what runs can be cancelled");
        index.function_event(&Event::Delete(function("f", "Ready")));
        assert!(index.status(&named("f")).is_none());
    }
}
