//! One controller acts at a time: who holds the Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

use crate::error::{chain, is_absent, is_conflict};
use crate::{jitter, objects};

const NAME: &str = "sless-controller";
/// Others take it when it has not been renewed for so long.
const LASTS: Duration = Duration::from_secs(15);
/// Whoever could not renew it for so long stops, well before others may begin.
const GIVE_UP: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(3);
const ASK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(4);

/// The Lease, and who asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Leadership {
    api: Api<Lease>,
    namespace: String,
    identity: String,
}

/// When a Lease was seen to change last: by the clock here, since those of others may be wrong.
#[derive(Debug)]
struct Seen {
    version: Option<String>,
    at: Instant,
}

impl Leadership {
    pub(crate) fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
        }
    }

    /// Returns once this process leads.
    pub(crate) async fn acquire(&self) {
        let mut seen: Option<Seen> = None;
        loop {
            match tokio::time::timeout(PATIENCE, self.try_acquire(&mut seen)).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(error = %chain(&error), "ask for the Lease {NAME}"),
                Err(_) => tracing::warn!("ask for the Lease {NAME}: no answer within {PATIENCE:?}"),
            }
            tokio::time::sleep(jitter::around(ASK)).await;
        }
    }

    async fn try_acquire(&self, seen: &mut Option<Seen>) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(NAME).await? else {
            let lease = Lease { metadata: objects::meta(NAME, &self.namespace), spec: Some(self.spec(None)) };
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            let version = lease.metadata.resource_version.clone();
            let unchanged = seen.as_ref().filter(|seen| seen.version == version).map(|seen| seen.at);
            let lasts = spec
                .lease_duration_seconds
                .and_then(|s| u64::try_from(s).ok())
                .map_or(LASTS, Duration::from_secs);
            if unchanged.is_none_or(|at| at.elapsed() <= lasts) {
                if unchanged.is_none() {
                    *seen = Some(Seen { version, at: Instant::now() });
                }
                return Ok(false);
            }
        }
        lease.spec = Some(self.spec(spec.lease_transitions));
        taken(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    /// Renews it; returns when it is lost, and then this process must not act any more.
    pub(crate) async fn hold(&self) -> String {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW).await;
            match tokio::time::timeout(PATIENCE, self.renew()).await {
                Ok(Ok(Ok(()))) => renewed = Instant::now(),
                Ok(Ok(Err(holder))) => return format!("{holder:?} has it now"),
                Ok(Err(error)) => tracing::warn!(error = %chain(&error), "renew the Lease {NAME}"),
                Err(_) => tracing::warn!("renew the Lease {NAME}: no answer within {PATIENCE:?}"),
            }
            if renewed.elapsed() > GIVE_UP {
                return format!("it could not be renewed for {GIVE_UP:?}");
            }
        }
    }

    /// The inner error: who holds it instead.
    async fn renew(&self) -> Result<Result<(), String>, kube::Error> {
        let mut lease = self.api.get(NAME).await?;
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity {
            return Ok(Err(holder));
        }
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        self.api.replace(NAME, &PostParams::default(), &lease).await.map(|_| Ok(()))
    }

    /// Gives it to whoever waits; for an end in good order.
    pub(crate) async fn release(&self) {
        let release = async {
            let mut lease = self.api.get(NAME).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_ref() == Some(&self.identity) {
                spec.holder_identity = None;
                self.api.replace(NAME, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(PATIENCE, release).await {
            Ok(Err(error)) if !is_absent(&error) => {
                tracing::warn!(error = %chain(&error), "release the Lease {NAME}")
            }
            _ => {}
        }
    }

    fn spec(&self, transitions: Option<i32>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions.map_or(0, |count| count.saturating_add(1))),
            ..LeaseSpec::default()
        }
    }
}

fn taken(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        // Another one was faster.
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
