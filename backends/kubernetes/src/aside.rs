//! Earlier revisions that somebody calls: the controller starts a pod of one for as long as an annotation asks for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sless_backend::{BackendError, Endpoint, FunctionRef, Moment};
use sless_crds::names::ASIDE;
use tokio::time::Instant;

use crate::admin;
use crate::calls::annotate;
use crate::cluster::Cluster;
use crate::slices::Aside;

/// Longest wait for a pod.
pub(crate) const WITHIN: Duration = Duration::from_secs(90);
/// A pod that is not ready is asked this often why.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The controller lets it go five minutes after it was asked for last: well before that it is asked for again.
const RENEW_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(crate) struct Asides {
    started: Mutex<HashMap<FunctionRef, Started>>,
    /// A function has one such pod at a time: who wants another revision waits for his turn.
    turns: Mutex<HashMap<FunctionRef, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug, Clone)]
struct Started {
    revision: String,
    /// Whoever calls it holds the list.
    list: Arc<[Endpoint]>,
    asked: Instant,
}

impl Asides {
    fn started(&self) -> MutexGuard<'_, HashMap<FunctionRef, Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, function: &FunctionRef) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody waits for any more need not be remembered.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(function.clone()).or_default().clone()
    }

    /// See [`sless_backend::Backend::revision_endpoints`].
    pub(crate) async fn endpoints(
        &self,
        cluster: &Cluster,
        function: &FunctionRef,
        revision: &str,
    ) -> Result<Arc<[Endpoint]>, BackendError> {
        let turn = self.turn(function);
        let _mine = turn.lock().await;
        let before = self.started().get(function).filter(|s| s.revision == revision).cloned();
        let fresh = before.as_ref().is_some_and(|s| s.asked.elapsed() < RENEW_AFTER);
        if !fresh {
            ask(cluster, function, revision).await?;
        }
        let asked =
            if fresh { before.as_ref().map_or_else(Instant::now, |s| s.asked) } else { Instant::now() };
        let ready = match tokio::time::timeout(WITHIN, wait(cluster, function, revision)).await {
            Ok(ready) => ready?,
            Err(_) => return Err(late(revision)),
        };
        // The same pod is the same list, so that it is seen to be held.
        let list = match before {
            Some(before) if *before.list == *ready => before.list,
            _ => ready.into(),
        };
        let started = Started { revision: revision.to_owned(), list: list.clone(), asked };
        self.started().insert(function.clone(), started);
        Ok(list)
    }

    /// Asks again for what is being called, and forgets what is not. To be called every now and then.
    pub(crate) async fn renew(&self, cluster: &Cluster) {
        let old: Vec<_> = {
            let mut started = self.started();
            started.retain(|_, s| s.asked.elapsed() < RENEW_AFTER || Arc::strong_count(&s.list) > 1);
            let old = started.iter().filter(|(_, s)| s.asked.elapsed() >= RENEW_AFTER);
            old.map(|(function, s)| (function.clone(), s.revision.clone())).collect()
        };
        for (function, revision) in old {
            match ask(cluster, &function, &revision).await {
                Ok(()) => {
                    if let Some(started) = self.started().get_mut(&function) {
                        started.asked = Instant::now();
                    }
                }
                Err(error) => {
                    tracing::warn!(function = %function, error = %error, "failed to ask again for an earlier revision");
                }
            }
        }
    }
}

async fn ask(cluster: &Cluster, function: &FunctionRef, revision: &str) -> Result<(), BackendError> {
    let value = format!("{revision} {}", Moment::now().rfc3339());
    annotate(&cluster.client, function, ASIDE, &value).await
}

pub(crate) fn late(revision: &str) -> BackendError {
    let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
    let action = format!("start a pod of revision {revision:?} within {WITHIN:?}");
    BackendError::Unavailable { action, source: Box::new(source) }
}

/// Waits until a pod of it is ready.
async fn wait(
    cluster: &Cluster,
    function: &FunctionRef,
    revision: &str,
) -> Result<Vec<Endpoint>, BackendError> {
    let mut changes = cluster.index.address_changes();
    loop {
        changes.mark_unchanged();
        let pods = cluster.index.asides(function, revision);
        let ready: Vec<_> = pods.iter().filter(|pod| pod.address.ready).collect();
        if !ready.is_empty() {
            return Ok(ready.into_iter().map(|pod| pod.address.endpoint.clone()).collect());
        }
        for pod in &pods {
            if let Some(why) = failure(pod).await {
                return Err(BackendError::Conflict(format!("revision {revision:?} does not start: {why}")));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_EVERY) => {}
            () = cluster.stop.cancelled() => return Err(late(revision)),
            changed = changes.changed() => if changed.is_err() { return Err(late(revision)) },
        }
    }
}

async fn failure(pod: &Aside) -> Option<String> {
    let admin: Option<SocketAddr> = match &pod.address.endpoint {
        Endpoint::Tcp { admin, .. } => Some(*admin),
        Endpoint::Unix { .. } => None,
    };
    match pod.failed.clone() {
        Some(why) => Some(why),
        // It may not listen yet, or end just now.
        None => admin::init_failure(admin?).await.ok().flatten(),
    }
}
