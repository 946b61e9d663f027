use std::time::Duration;

use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use sless_backend::{DefinitionError, Moment, TriggerRow, TriggerWish};
use sless_core::{FieldError, HostName, Namespace, TriggerKind, TriggerName};
use sless_crds::hosts::{is_below, winner};
use sless_crds::names::{CREATED_AT, HOST_SUFFIXES};
use sless_crds::{Trigger, TriggerSpec};

use tokio::time::Instant;

use super::functions::params;
use super::objects;
use super::refusal::{asked, failed};
use super::{KubernetesDefinitions, namespaces};

/// How often a change is tried when the controller writes at the same time.
const TRIES: usize = 10;
/// Longest wait for the controller to end a trigger whose name is wanted again.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

fn of(definitions: &KubernetesDefinitions, namespace: &Namespace) -> Api<Trigger> {
    Api::namespaced(definitions.cluster.client.clone(), namespace.as_str())
}

/// `None` for a trigger of a type that the API does not offer.
///
/// # Errors
/// The field that is not as we would have written it.
fn row(object: &Trigger) -> Result<Option<TriggerRow>, FieldError> {
    let Some(http) = object.spec.as_http() else { return Ok(None) };
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    let told = status.observed_generation == object.metadata.generation && status.active == Some(false);
    Ok(Some(TriggerRow {
        id: objects::id(&object.metadata),
        namespace: namespace.parse()?,
        name: object.name_any().parse()?,
        wish: TriggerWish {
            kind: TriggerKind::Http,
            enabled: object.spec.enabled,
            function: object
                .spec
                .function_ref
                .parse()
                .map_err(|e: FieldError| FieldError::new("functionRef", e.message))?,
            http: http?,
        },
        version: object.metadata.generation.and_then(|count| u64::try_from(count).ok()).unwrap_or(0),
        trouble: status.message.filter(|text| told && object.spec.enabled && !text.is_empty()),
        created_at: objects::created_at(&object.metadata),
        updated_at: objects::updated_at(&object.metadata),
    }))
}

fn read(object: &Trigger) -> Result<Option<TriggerRow>, DefinitionError> {
    row(object).map_err(|wrong| failed("read a Trigger that somebody has written otherwise", wrong))
}

/// What was written just now.
fn written(object: &Trigger) -> Result<TriggerRow, DefinitionError> {
    read(object)?.ok_or(DefinitionError::Stale)
}

/// Who wins a host is the controller's to say, and may change; who would lose it now is told at once.
fn check_host(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &TriggerName,
    host: &HostName,
) -> Result<(), DefinitionError> {
    let suffixes = namespaces::suffixes(definitions, namespace.as_str());
    if !is_below(host.as_str(), &suffixes) {
        let text = if suffixes.is_empty() {
            format!(
                "triggers of namespace {namespace:?} may have no hosts; an admin of the cluster allows suffixes, by the annotation {HOST_SUFFIXES} of the namespace or for all by HOST_SUFFIXES"
            )
        } else {
            format!(
                "is not below {}, where triggers of namespace {namespace:?} may have hosts",
                suffixes.join(" or ")
            )
        };
        return Err(DefinitionError::HostRefused(text));
    }
    let all = definitions.cluster.triggers.all();
    let others = all.iter().map(|trigger| &**trigger).filter(|trigger| {
        trigger.metadata.namespace.as_deref() != Some(namespace.as_str())
            || trigger.name_any() != name.as_str()
    });
    match winner(host.as_str(), others, |of| may_have(definitions, of, host.as_str())) {
        Some(_) => Err(DefinitionError::HostTaken),
        None => Ok(()),
    }
}

/// Whether triggers of a namespace may have this host at all.
pub(super) fn may_have(definitions: &KubernetesDefinitions, namespace: &str, host: &str) -> bool {
    namespaces::counts(definitions, namespace)
        && is_below(host, &namespaces::suffixes(definitions, namespace))
}

/// One that is being deleted is not there any more for who has deleted it: its end is waited for.
async fn is_taken(triggers: &Api<Trigger>, name: &TriggerName) -> Result<bool, DefinitionError> {
    let began = Instant::now();
    loop {
        let found = asked("look for a Trigger", triggers.get_metadata_opt(name.as_str())).await?;
        let Some(found) = found else { return Ok(false) };
        if found.metadata.deletion_timestamp.is_none() || began.elapsed() > GONE_WITHIN {
            return Ok(true);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

pub(super) async fn insert(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &TriggerName,
    wish: &TriggerWish,
) -> Result<TriggerRow, DefinitionError> {
    let mut object = Trigger::new(name.as_str(), TriggerSpec::http(&wish.function, wish.enabled, &wish.http));
    object.metadata = ObjectMeta {
        annotations: Some([(CREATED_AT.to_owned(), Moment::now().rfc3339())].into()),
        ..object.metadata
    };
    let triggers = of(definitions, namespace);
    // A name that is taken says more than a host that is: it is mostly the same trigger's.
    if is_taken(&triggers, name).await? {
        return Err(DefinitionError::Exists);
    }
    if let Some(host) = &wish.http.host {
        check_host(definitions, namespace, name, host)?;
    }
    let made = asked("make a Trigger", triggers.create(&params(), &object)).await?;
    definitions.cluster.triggers.until_seen(&made).await;
    written(&made)
}

pub(super) async fn one(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &TriggerName,
) -> Result<Option<TriggerRow>, DefinitionError> {
    let found = asked("read a Trigger", of(definitions, namespace).get_opt(name.as_str())).await?;
    // One that is being deleted lets nobody in any more, and is only waited for.
    let found = found.filter(|object| object.metadata.deletion_timestamp.is_none());
    Ok(found.as_ref().map(read).transpose()?.flatten())
}

pub(super) async fn page(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<TriggerRow>, DefinitionError> {
    let triggers = of(definitions, namespace);
    let listed = asked("list Triggers", triggers.list(&ListParams::default())).await?;
    let there = listed.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
    let rows = there.filter_map(|object| row(object).unwrap_or_else(|wrong| {
        tracing::warn!(namespace = %namespace, name = %object.name_any(), error = %wrong, "a Trigger is not as it must be and is left out of a list");
        None
    }));
    Ok(super::newest(rows.collect(), |row| row.id, below, limit))
}

/// The object that was read as `row`, as it is now.
async fn same(definitions: &KubernetesDefinitions, row: &TriggerRow) -> Result<Trigger, DefinitionError> {
    let found = asked("read a Trigger", of(definitions, &row.namespace).get_opt(row.name.as_str())).await?;
    let object =
        found.filter(|object| object.metadata.deletion_timestamp.is_none()).ok_or(DefinitionError::Stale)?;
    let now = written(&object)?;
    if (now.id, now.version) == (row.id, row.version) { Ok(object) } else { Err(DefinitionError::Stale) }
}

pub(super) async fn change(
    definitions: &KubernetesDefinitions,
    row: &TriggerRow,
    wish: &TriggerWish,
) -> Result<TriggerRow, DefinitionError> {
    // One that it has keeps it, whatever was forbidden since: else it could not even be switched off.
    if let Some(host) = wish.http.host.as_ref().filter(|host| row.wish.http.host.as_ref() != Some(host)) {
        check_host(definitions, &row.namespace, &row.name, host)?;
    }
    let triggers = of(definitions, &row.namespace);
    for _ in 0..TRIES {
        let mut object = same(definitions, row).await?;
        object.spec = TriggerSpec::http(&wish.function, wish.enabled, &wish.http);
        object.metadata.managed_fields = None;
        match asked("change a Trigger", triggers.replace(row.name.as_str(), &params(), &object)).await {
            Err(DefinitionError::Stale) => {}
            Err(DefinitionError::Gone) => return Err(DefinitionError::Stale),
            other => {
                let changed = other?;
                definitions.cluster.triggers.until_seen(&changed).await;
                return written(&changed);
            }
        }
    }
    Err(DefinitionError::Stale)
}

pub(super) async fn remove(
    definitions: &KubernetesDefinitions,
    row: &TriggerRow,
) -> Result<(), DefinitionError> {
    let triggers = of(definitions, &row.namespace);
    for _ in 0..TRIES {
        let object = same(definitions, row).await?;
        let conditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        let params = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
        match asked("delete a Trigger", triggers.delete(row.name.as_str(), &params)).await {
            Err(DefinitionError::Stale) => {}
            Err(DefinitionError::Gone) => return Err(DefinitionError::Stale),
            other => {
                other?;
                let (namespace, name, uid) = (row.namespace.as_str(), row.name.as_str(), object.uid());
                let going = |seen: &Trigger| seen.uid() != uid || seen.metadata.deletion_timestamp.is_some();
                definitions
                    .cluster
                    .triggers
                    .until(|m| m.get(namespace, name).is_none_or(|seen| going(&seen)))
                    .await;
                return Ok(());
            }
        }
    }
    Err(DefinitionError::Stale)
}
