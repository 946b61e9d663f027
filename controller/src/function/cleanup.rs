//! The end of a function: what runs, what builds, and what lies in S3 and the registry; then the finalizer, and the object goes.
//!
//! Each step counts what is gone already as done, and what can't be reached is given up after a while: an object that can't be deleted
//! keeps its whole namespace from going.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::Store;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use sless_backend::{CodeStore, FunctionRef};
use sless_crds::{FINALIZER, Function, Phase, names};

use super::status::{Check, Found};
use super::{Known, tell};
use crate::context::Context;
use crate::error::{Error, acting, chain, is_absent};
use crate::tags;

/// Calls that run may end within it; then their pods go.
const GRACE_SEC: u32 = 25;
/// So long are S3, the registry and pods on lost nodes waited for.
const PATIENCE_SEC: i64 = 90;
/// Watches tell when something is gone; this is for what they can't tell.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
const ONE_CALL: Duration = Duration::from_secs(15);

pub(super) async fn clean(context: &Arc<Context>, known: &Known, now: Timestamp) -> Result<Action, Error> {
    let function = &known.function;
    if !function.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Action::await_change());
    }
    let name = || -> Option<FunctionRef> {
        Some(FunctionRef {
            namespace: function.namespace()?.parse().ok()?,
            name: function.name_any().parse().ok()?,
        })
    };
    // Nothing was ever made under a name that is none.
    let Some(of) = name() else { return release(context, function).await };
    let going = Check::no("Deleted", "");
    let found = Found {
        phase: Phase::Terminating,
        message: None,
        built: Check::unknown("Deleted"),
        deployed: going.clone(),
        ready: going,
        answers: None,
        build: None,
    };
    tell(context, function, &found, now).await?;
    let left = remove_objects(context, &of).await?;
    let since = function.metadata.deletion_timestamp.as_ref().map_or(now, |at| at.0);
    let late = now.duration_since(since).as_secs() > PATIENCE_SEC;
    if left && !late {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    // Only now: a build that still ran would have pushed once more.
    let outside = tokio::join!(remove_code(context, &of), remove_images(context, known, &of));
    for (what, result) in [("code in S3", outside.0), ("images in the registry", outside.1)] {
        let Err(problem) = result else { continue };
        if !late {
            return Err(Error::Away { action: format!("remove the {what} of {of}"), problem });
        }
        let note = format!("the {what} could not be removed and stays there: {problem}");
        tracing::error!(namespace = %of.namespace, function = %of.name, "{of}: {note}");
        context.event(function, EventType::Warning, "LeftBehind", &note).await;
    }
    release(context, function).await
}

async fn release(context: &Context, function: &Function) -> Result<Action, Error> {
    let name = function.name_any();
    let finalizers: Vec<_> =
        function.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let api: Api<Function> =
        Api::namespaced(context.client.clone(), &function.namespace().unwrap_or_default());
    // Without the version: the status was just written. Others' finalizers are there still, or their owners put them back.
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(error) if !is_absent(&error) => return Err(acting("take the finalizer from", &name)(error)),
        _ => {}
    }
    tracing::info!("{}/{name} is gone", function.namespace().unwrap_or_default());
    Ok(Action::await_change())
}

/// Whether anything is left of what was made for it.
async fn remove_objects(context: &Context, of: &FunctionRef) -> Result<bool, Error> {
    let stores = &context.stores;
    let gentle = DeleteParams::background();
    let mut left = false;
    left |= remove::<Deployment>(context, &stores.deployments, of, &gentle).await?;
    left |= remove::<Service>(context, &stores.services, of, &gentle).await?;
    left |= remove::<Job>(context, &stores.jobs, of, &gentle).await?;
    left |=
        remove::<Pod>(context, &stores.pods, of, &DeleteParams::background().grace_period(GRACE_SEC)).await?;
    // Their pods need them to the end.
    if !left {
        left |= remove::<Secret>(context, &stores.secrets, of, &gentle).await?;
        left |= remove::<ServiceAccount>(context, &stores.accounts, of, &gentle).await?;
        left |= remove::<NetworkPolicy>(context, &stores.policies, of, &gentle).await?;
    }
    Ok(left)
}

async fn remove<K>(
    context: &Context,
    store: &Store<K>,
    of: &FunctionRef,
    how: &DeleteParams,
) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let mine = |object: &K| {
        let label = |name: &str| object.labels().get(name).map(String::as_str);
        label(names::LABEL_FUNCTION) == Some(of.name.as_str())
            && label(names::LABEL_NAMESPACE) == Some(of.namespace.as_str())
    };
    let mut left = false;
    for object in store.state_filter(|object| mine(object)) {
        left = true;
        if object.meta().deletion_timestamp.is_some() {
            continue;
        }
        let name = object.name_any();
        let api: Api<K> = Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
        match api.delete(&name, how).await {
            Err(error) if !is_absent(&error) => {
                return Err(acting(&format!("delete the {}", K::kind(&())), &name)(error));
            }
            _ => {}
        }
    }
    Ok(left)
}

async fn remove_code(context: &Context, of: &FunctionRef) -> Result<(), String> {
    let remove = async {
        for sha256 in context.code.list(of).await.map_err(|e| chain(&e))? {
            context.code.delete(of, &sha256).await.map_err(|e| chain(&e))?;
        }
        Ok(())
    };
    tokio::time::timeout(ONE_CALL, remove)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {ONE_CALL:?}")))
}

async fn remove_images(context: &Context, known: &Known, of: &FunctionRef) -> Result<(), String> {
    // Revisions may be gone already: in a namespace that is deleted everything goes at once.
    let status = known.function.status.as_ref();
    let built = status.is_some_and(|status| status.build.is_some() || status.image.is_some())
        || known.revisions.iter().any(|revision| revision.image.is_some());
    if !built {
        return Ok(());
    }
    let remove = tags::remove(context, of, &[]);
    tokio::time::timeout(ONE_CALL, remove)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {ONE_CALL:?}")))
}
