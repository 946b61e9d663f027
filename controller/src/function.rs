//! A function: look at what is there, check what is asked for, build what is wanted, apply it, and say how far it has come.

mod apply;
mod aside;
mod cleanup;
mod network;
mod objects;
mod pass;
mod pod;
mod probe;
mod prune;
mod rollout;
mod status;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use sless_crds::{FINALIZER, Function, Phase, Trigger, names};

pub(crate) use objects::CONTAINER;
pub(crate) use pod::{PULL_SECRET, container_security, mount, scratch, security, variable, whole};

use crate::context::Context;
use crate::error::{Error, acting};
use crate::namespace;
use crate::revision::Revision;
use pass::Pass;
use status::Found;
use validate::Given;

/// What only time or an admin changes.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// All that is known of a function, from the caches.
struct Known {
    function: Arc<Function>,
    namespace: Option<Arc<Namespace>>,
    named: Vec<Arc<Secret>>,
    triggers: Vec<Arc<Trigger>>,
    /// The oldest first.
    revisions: Vec<Revision>,
}

fn dereference(context: &Context, function: &Arc<Function>) -> Known {
    let stores = &context.stores;
    let namespace = function.namespace().unwrap_or_default();
    let name = function.name_any();
    let within = |other: &Option<String>| other.as_deref() == Some(namespace.as_str());
    let of = |object: &ControllerRevision| {
        within(&object.metadata.namespace) && object.labels().get(names::LABEL_FUNCTION) == Some(&name)
    };
    let mut revisions: Vec<_> =
        stores.revisions.state_filter(|r| of(r)).iter().filter_map(Revision::read).collect();
    revisions.sort_by_key(|revision| revision.number);
    Known {
        namespace: stores.namespaces.get(&ObjectRef::new(&namespace)),
        named: stores.named.state_filter(|secret| within(&secret.metadata.namespace)),
        triggers: stores
            .triggers
            .state_filter(|t| within(&t.metadata.namespace) && t.spec.function_ref == name),
        revisions,
        function: Arc::clone(function),
    }
}

/// Makes a function so.
pub(crate) async fn reconcile(function: Arc<Function>, context: Arc<Context>) -> Result<Action, Error> {
    let known = dereference(&context, &function);
    let now = Timestamp::now();
    if function.metadata.deletion_timestamp.is_some() {
        return cleanup::clean(&context, &known, now).await;
    }
    let given = Given {
        config: &context.config,
        runtimes: &context.runtimes,
        function: &function,
        namespace: known.namespace.as_deref(),
        secrets: &known.named,
    };
    let valid = match given.validate() {
        Ok(valid) => valid,
        Err(invalid) => {
            let found = Found::waits(Phase::Failed, invalid.reason, invalid.message);
            return tell(&context, &function, &found, now).await.map(|()| Action::await_change());
        }
    };
    own(&context, &function).await?;
    match namespace::ensure_workloads(&context, &valid.of.namespace, valid.quota.clone()).await {
        Ok(()) => {}
        Err(error @ (Error::Taken { .. } | Error::Ending { .. })) => {
            let found = Found::waits(Phase::Failed, "NamespaceTaken", error.to_string());
            tell(&context, &function, &found, now).await?;
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        Err(error) => return Err(error),
    }
    Pass { context: &context, known: &known, given: &given, valid: &valid, now }.run().await
}

/// The finalizer, before anything is made in another namespace.
async fn own(context: &Context, function: &Function) -> Result<(), Error> {
    if function.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(());
    }
    let mut finalizers = function.finalizers().to_vec();
    finalizers.push(FINALIZER.to_owned());
    let name = function.name_any();
    let api: Api<Function> =
        Api::namespaced(context.client.clone(), &function.namespace().unwrap_or_default());
    // With the version that was read: a list in a merge patch replaces what others have put there meanwhile.
    let metadata = json!({ "finalizers": finalizers, "resourceVersion": function.resource_version() });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    api.patch(&name, &PatchParams::default(), &patch).await.map_err(acting("put the finalizer on", &name))?;
    Ok(())
}

/// Writes the status, and an event where the phase turns.
async fn tell(
    context: &Context,
    function: &Function,
    found: &Found<'_>,
    now: Timestamp,
) -> Result<(), Error> {
    let status = status::build(function, found, &context.config.external_url, now);
    status::write(context, function, &status).await?;
    let before = function.status.as_ref().and_then(|status| status.phase);
    if before != Some(found.phase) {
        let kind = if found.phase == Phase::Failed { EventType::Warning } else { EventType::Normal };
        let note = found.message.as_deref().filter(|text| !text.is_empty());
        let note =
            note.map_or_else(|| format!("{:?}", found.phase), |text| format!("{:?}: {text}", found.phase));
        context.event(function, kind, found.ready.reason, &note).await;
    }
    Ok(())
}
