//! What lets the public in, by what is mirrored.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::stream;
use sless_backend::{BoxStream, FunctionRef, Reachable};
use sless_core::HttpTrigger;
use sless_crds::Trigger;
use sless_crds::hosts::winner;

use super::{KubernetesDefinitions, namespaces, objects, triggers};
use crate::status::function_ref;

/// Changes that come together are told of together.
const PAUSE: Duration = Duration::from_millis(20);

/// Every function that can be called, in the order of creation; so are its triggers.
pub(super) fn reachable(definitions: &KubernetesDefinitions) -> Vec<Reachable> {
    let mut all: Vec<_> = definitions.cluster.functions.all();
    all.retain(|object| {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        object.metadata.deletion_timestamp.is_none() && namespaces::counts(definitions, namespace)
    });
    all.sort_by_cached_key(|object| objects::id(&object.metadata));
    let mut opened = open(definitions);
    let named = all.iter().filter_map(|object| {
        function_ref(
            object.metadata.namespace.as_deref(),
            object.metadata.name.as_deref().unwrap_or_default(),
        )
    });
    named
        .map(|function| Reachable { triggers: opened.remove(&function).unwrap_or_default(), function })
        .collect()
}

/// The triggers that let somebody in, by their functions.
fn open(definitions: &KubernetesDefinitions) -> HashMap<FunctionRef, Vec<HttpTrigger>> {
    let mut all = definitions.cluster.triggers.all();
    all.sort_by_cached_key(|object| objects::id(&object.metadata));
    let mut asking: HashMap<&str, Vec<&Trigger>> = HashMap::new();
    for object in &all {
        if let Some(host) = &object.spec.host {
            asking.entry(host).or_default().push(object);
        }
    }
    let mut open: HashMap<FunctionRef, Vec<HttpTrigger>> = HashMap::new();
    for object in all.iter().filter(|o| o.spec.enabled && o.metadata.deletion_timestamp.is_none()) {
        let Some(function) = function_ref(object.metadata.namespace.as_deref(), &object.spec.function_ref)
        else {
            continue;
        };
        // The controller tells whose trigger is not as it must be.
        let Some(Ok(http)) = object.spec.as_http() else { continue };
        let has = |host: &str| {
            let asking = asking.get(host).map(Vec::as_slice).unwrap_or_default();
            winner(host, asking.iter().copied(), |of| triggers::may_have(definitions, of, host))
                .is_some_and(|won| won.metadata.uid == object.metadata.uid)
        };
        if http.host.as_ref().is_none_or(|host| has(host.as_str())) {
            open.entry(function).or_default().push(http);
        }
    }
    open
}

/// Yields at once, for who has asked before this was here, and then when [`reachable`] gives something else than before.
pub(super) fn changes(definitions: KubernetesDefinitions) -> BoxStream<()> {
    let cluster = &definitions.cluster;
    let news = (cluster.functions.news(), cluster.triggers.news(), cluster.namespaces.news());
    let before = None;
    Box::pin(stream::unfold((definitions, news, before), |(definitions, mut news, before)| async move {
        loop {
            if before.is_none() {
                let now = reachable(&definitions);
                return Some(((), (definitions, news, Some(now))));
            }
            tokio::select! {
                changed = news.0.changed() => changed.ok()?,
                changed = news.1.changed() => changed.ok()?,
                changed = news.2.changed() => changed.ok()?,
            }
            tokio::time::sleep(PAUSE).await;
            news.0.mark_unchanged();
            news.1.mark_unchanged();
            news.2.mark_unchanged();
            let now = Some(reachable(&definitions));
            if now != before {
                return Some(((), (definitions, news, now)));
            }
        }
    }))
}
