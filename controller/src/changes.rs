//! Who is to be looked at after a change on the cluster.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use sless_crds::{Function, Trigger, names};
use tokio::sync::mpsc;

use crate::stores::Stores;

/// A change, by what it concerns. It is turned into objects later, with all caches at hand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Changed {
    /// The function, and triggers that name it.
    Function(ObjectRef<Function>),
    /// What belongs to a function.
    Child(ObjectRef<Function>),
    /// Itself, those of the same host, and its function.
    Trigger {
        this: ObjectRef<Trigger>,
        function: String,
        host: Option<String>,
    },
    /// What belongs to a trigger.
    Ingress(ObjectRef<Trigger>),
    /// All in it.
    Namespace(String),
    /// Functions that name it.
    Secret {
        namespace: String,
        name: String,
    },
    /// Its function, and whoever waits for its place.
    Build(Option<ObjectRef<Function>>),
    Nothing,
}

pub(crate) fn function(object: &Function) -> Changed {
    Changed::Function(ObjectRef::from_obj(object))
}

pub(crate) fn trigger(object: &Trigger) -> Changed {
    Changed::Trigger {
        this: ObjectRef::from_obj(object),
        function: object.spec.function_ref.clone(),
        host: object.spec.host.clone(),
    }
}

pub(crate) fn namespace(object: &Namespace) -> Changed {
    let name = object.name_any();
    match names::namespace_of_workloads(&name) {
        Some(namespace) => Changed::Namespace(namespace.to_string()),
        None => Changed::Namespace(name),
    }
}

pub(crate) fn named_secret(object: &Secret) -> Changed {
    match object.namespace() {
        Some(namespace) => Changed::Secret { namespace, name: object.name_any() },
        None => Changed::Nothing,
    }
}

pub(crate) fn build(object: &Job) -> Changed {
    Changed::Build(owner(object))
}

/// Of all that has the labels of a function, or at least those of a namespace.
pub(crate) fn child<K: ResourceExt>(object: &K) -> Changed {
    match (owner(object), object.labels().get(names::LABEL_NAMESPACE)) {
        (Some(function), _) => Changed::Child(function),
        (None, Some(namespace)) => Changed::Namespace(namespace.clone()),
        (None, None) => Changed::Nothing,
    }
}

pub(crate) fn ingress(object: &Ingress) -> Changed {
    let label = |name: &str| object.labels().get(name);
    match (label(names::LABEL_NAMESPACE), label(crate::trigger::LABEL_TRIGGER)) {
        (Some(namespace), Some(trigger)) => Changed::Ingress(ObjectRef::new(trigger).within(namespace)),
        _ => Changed::Nothing,
    }
}

fn owner<K: ResourceExt>(object: &K) -> Option<ObjectRef<Function>> {
    let labels = object.labels();
    let (namespace, function) = (labels.get(names::LABEL_NAMESPACE)?, labels.get(names::LABEL_FUNCTION)?);
    Some(ObjectRef::new(function).within(namespace))
}

/// Where those go that are to be looked at.
#[derive(Debug, Clone)]
pub(crate) struct Wake {
    pub(crate) functions: mpsc::Sender<ObjectRef<Function>>,
    pub(crate) triggers: mpsc::Sender<ObjectRef<Trigger>>,
    pub(crate) namespaces: mpsc::Sender<String>,
}

/// Turns changes into objects, until there are no more.
pub(crate) async fn dispatch(
    mut changes: mpsc::Receiver<Changed>,
    stores: Stores,
    wake: Wake,
    places: std::sync::Arc<crate::builds::Places>,
) {
    while let Some(change) = changes.recv().await {
        let (functions, triggers) = concerned(&change, &stores);
        // Nobody listens any more only when the process ends.
        for function in functions {
            let _ = wake.functions.send(function).await;
        }
        for trigger in triggers {
            let _ = wake.triggers.send(trigger).await;
        }
        match change {
            Changed::Namespace(namespace) => drop(wake.namespaces.send(namespace).await),
            Changed::Function(function) => {
                drop(wake.namespaces.send(function.namespace.unwrap_or_default()).await)
            }
            Changed::Build(_) => {
                for function in places.waiting() {
                    let _ = wake.functions.send(function).await;
                }
            }
            _ => {}
        }
    }
}

fn concerned(change: &Changed, stores: &Stores) -> (Vec<ObjectRef<Function>>, Vec<ObjectRef<Trigger>>) {
    let functions = |wanted: &dyn Fn(&Function) -> bool| {
        let state = stores.functions.state();
        state.iter().filter(|f| wanted(f)).map(|f| ObjectRef::from_obj(&**f)).collect::<Vec<_>>()
    };
    let triggers = |wanted: &dyn Fn(&Trigger) -> bool| {
        let state = stores.triggers.state();
        state.iter().filter(|t| wanted(t)).map(|t| ObjectRef::from_obj(&**t)).collect::<Vec<_>>()
    };
    match change {
        Changed::Function(function) => {
            let of =
                triggers(&|t| t.spec.function_ref == function.name && t.namespace() == function.namespace);
            (vec![function.clone()], of)
        }
        Changed::Child(function) | Changed::Build(Some(function)) => (vec![function.clone()], Vec::new()),
        Changed::Trigger { this, function, host } => {
            let mut others = match host {
                Some(host) => triggers(&|t| t.spec.host.as_ref() == Some(host)),
                None => Vec::new(),
            };
            if !others.contains(this) {
                others.push(this.clone());
            }
            let function = ObjectRef::new(function).within(this.namespace.as_deref().unwrap_or_default());
            (vec![function], others)
        }
        Changed::Ingress(trigger) => (Vec::new(), vec![trigger.clone()]),
        Changed::Namespace(namespace) => (
            functions(&|f| f.metadata.namespace.as_ref() == Some(namespace)),
            triggers(&|t| t.metadata.namespace.as_ref() == Some(namespace)),
        ),
        Changed::Secret { namespace, name } => {
            let names_it = |f: &Function| {
                f.metadata.namespace.as_ref() == Some(namespace)
                    && f.spec.secrets.as_ref().is_some_and(|secrets| secrets.contains(name))
            };
            (functions(&names_it), Vec::new())
        }
        Changed::Build(None) | Changed::Nothing => (Vec::new(), Vec::new()),
    }
}
