//! The controller's queues, put together.

use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use kube::runtime::controller::{Action, Config as QueueConfig, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use sless_core::Namespace;
use sless_crds::Function;
use tokio::sync::mpsc;

use crate::context::Context;
use crate::error::{Error, chain};
use crate::{function, namespace, trigger};

/// Objects that are looked at together.
const AT_ONCE: u16 = 32;

/// What has to be looked at, as it comes.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) functions: mpsc::Receiver<ObjectRef<Function>>,
    pub(crate) triggers: mpsc::Receiver<ObjectRef<sless_crds::Trigger>>,
    pub(crate) namespaces: mpsc::Receiver<String>,
}

/// Works until nothing comes in any more.
pub(crate) async fn run(context: Arc<Context>, incoming: Incoming) {
    let functions = queue(
        &context,
        context.stores.functions.clone(),
        incoming.functions,
        "function",
        |function, context| Box::pin(function::reconcile(function, context)),
    );
    let triggers =
        queue(&context, context.stores.triggers.clone(), incoming.triggers, "trigger", |trigger, context| {
            Box::pin(trigger::reconcile(trigger, context))
        });
    tokio::join!(functions, triggers, sweeps(&context, incoming.namespaces));
}

type Reconciled = std::pin::Pin<Box<dyn Future<Output = Result<Action, Error>> + Send>>;

async fn queue<K>(
    context: &Arc<Context>,
    store: Store<K>,
    incoming: mpsc::Receiver<ObjectRef<K>>,
    kind: &'static str,
    reconcile: fn(Arc<K>, Arc<Context>) -> Reconciled,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    ObjectRef<K>: Hash + Eq,
{
    let config = QueueConfig::default().concurrency(AT_ONCE);
    let each = move |object: Arc<K>, context: Arc<Context>| -> Reconciled {
        Box::pin(async move {
            context.stores.filled().await;
            let namespace = object.namespace().unwrap_or_default();
            if !context.config.covers(&namespace) {
                return Ok(Action::await_change());
            }
            let name = format!("{kind} {namespace}/{}", object.name_any());
            let outcome = reconcile(object, Arc::clone(&context)).await;
            if outcome.is_ok() {
                context.succeeded(&name);
            }
            context.metrics.reconcile(kind, if outcome.is_ok() { "ok" } else { "error" });
            outcome
        })
    };
    let failed = move |object: Arc<K>, error: &Error, context: Arc<Context>| {
        let name = format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
        let pause = context.pause_after_failure(&name);
        match error {
            Error::Stale { .. } => tracing::debug!("{name}: {}", chain(error)),
            _ => tracing::warn!(error = %chain(error), "{name} is tried again in {pause:.1?}"),
        }
        Action::requeue(pause)
    };
    let work = applier(each, failed, Arc::clone(context), store, stream(incoming), config);
    // Failures were told of above; what is gone needs nothing.
    work.for_each(|_| std::future::ready(())).await;
}

fn stream<T: Send + 'static>(mut receiver: mpsc::Receiver<T>) -> impl Stream<Item = Result<T, Infallible>> {
    futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx)).map(Ok)
}

async fn sweeps(context: &Context, mut namespaces: mpsc::Receiver<String>) {
    context.stores.filled().await;
    while let Some(name) = namespaces.recv().await {
        let Ok(namespace) = name.parse::<Namespace>() else { continue };
        if !context.config.covers(&name) {
            continue;
        }
        if let Err(error) = namespace::sweep(context, &namespace).await {
            // A change of it, or of the last function, brings it here again.
            tracing::warn!(error = %chain(&error), "sweep what ran for the namespace {name}");
        }
    }
}
