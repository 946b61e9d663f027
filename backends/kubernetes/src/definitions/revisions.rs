use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use sless_backend::{CodeRef, DefinitionError, FunctionRow, Moment, RevisionRow};
use sless_core::FieldError;
use sless_crds::names::{IMAGE, LABEL_FUNCTION, LABEL_REVISION, revision_object};
use sless_crds::{Function, FunctionSpec, RevisionData, Source};

use super::KubernetesDefinitions;
use super::objects;
use super::refusal::asked;

/// Longest name that a revision can have.
const NAME_MAX: usize = 64;
/// So far the number of a revision tells apart those of one second.
const SECOND: i64 = 1_000_000;

fn of(definitions: &KubernetesDefinitions, row: &FunctionRow) -> Api<ControllerRevision> {
    Api::namespaced(definitions.cluster.client.clone(), row.function.namespace.as_str())
}

fn code(source: &Source) -> Result<CodeRef, FieldError> {
    let digest = |text: &str| text.parse().map_err(|wrong| FieldError::new("source", wrong));
    Ok(CodeRef { sha256: digest(&source.sha256)?, content_sha256: digest(source.identity())? })
}

fn revision(
    name: &str,
    spec: &FunctionSpec,
    source: &Source,
    image: Option<&String>,
    created_at: Moment,
) -> Result<RevisionRow, FieldError> {
    Ok(RevisionRow {
        name: name.to_owned(),
        settings: spec.settings()?,
        code: code(source)?,
        image: image.cloned(),
        created_at,
    })
}

/// `None` for one of another function, also of an earlier one of this name, or of another controller.
fn row(
    function: &FunctionRow,
    owner: &str,
    object: &ControllerRevision,
) -> Result<Option<RevisionRow>, FieldError> {
    let labels = object.labels();
    let ours = labels.get(LABEL_FUNCTION).is_some_and(|name| name == function.function.name.as_str())
        && object.owner_references().iter().any(|reference| reference.uid == owner);
    let Some(name) = labels.get(LABEL_REVISION).filter(|_| ours) else { return Ok(None) };
    let data = RevisionData::read(object)?;
    // Kubernetes' own moment has whole seconds: within one the order is that of their numbers.
    let created = objects::created_at(&object.metadata);
    let created = if created.0 % SECOND == 0 {
        Moment(created.0 + object.revision.unwrap_or(0).clamp(0, SECOND - 1))
    } else {
        created
    };
    let image = object.annotations().get(IMAGE);
    revision(name, &data.spec, &data.source, image, created).map(Some)
}

/// What is wanted now, before the controller has kept it.
fn wanted(object: &Function) -> Result<Option<RevisionRow>, FieldError> {
    let (Some(name), Some(source)) = (object.spec.revision()?, &object.spec.source) else { return Ok(None) };
    revision(&name, &object.spec, source, None, objects::updated_at(&object.metadata)).map(Some)
}

fn told(row: &FunctionRow, read: Result<Option<RevisionRow>, FieldError>) -> Option<RevisionRow> {
    read.unwrap_or_else(|wrong| {
        tracing::warn!(function = %row.function, error = %wrong, "a revision is not as it was kept and is left out");
        None
    })
}

/// What is the same in another zip is the same revision, and the object keeps the zip that it was made from: shown is the one that
/// was uploaded last.
fn with_latest_zip(object: &Function, mut revision: RevisionRow) -> RevisionRow {
    let wanted = object.spec.revision().is_ok_and(|name| name.as_ref() == Some(&revision.name));
    if let Some(code) = object.spec.source.as_ref().filter(|_| wanted).and_then(|source| code(source).ok()) {
        revision.code.sha256 = code.sha256;
    }
    revision
}

/// The function that owns its revisions; `None` if it is gone.
async fn owner(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
) -> Result<Option<Arc<Function>>, DefinitionError> {
    let (namespace, name) = (row.function.namespace.as_str(), row.function.name.as_str());
    let is = |object: &Function| objects::id(&object.metadata) == row.id;
    if let Some(object) = definitions.cluster.functions.get(namespace, name).filter(|object| is(object)) {
        return Ok(Some(object));
    }
    Ok(super::functions::object(definitions, &row.function).await?.filter(is).map(Arc::new))
}

async fn now(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
) -> Result<Option<RevisionRow>, DefinitionError> {
    let object = super::functions::object(definitions, &row.function).await?;
    let same = object.filter(|object| objects::id(&object.metadata) == row.id);
    Ok(same.and_then(|object| told(row, wanted(&object))))
}

pub(super) async fn one(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
    name: &str,
) -> Result<Option<RevisionRow>, DefinitionError> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(digits) {
        return Ok(None);
    }
    let Some(owner) = owner(definitions, row).await? else { return Ok(None) };
    let object = revision_object(&row.function.name, name);
    let uid = owner.uid().unwrap_or_default();
    let read = |object: &ControllerRevision| {
        let revision = told(row, self::row(row, &uid, object));
        revision.map(|revision| with_latest_zip(&owner, revision))
    };
    // What is in one never changes, but for its image, which is seen soon enough.
    let mirrored = definitions.cluster.revisions.get(row.function.namespace.as_str(), &object);
    if let Some(found) = mirrored.and_then(|object| read(&object)) {
        return Ok(Some(found));
    }
    let found = asked("read a ControllerRevision", of(definitions, row).get_opt(&object)).await?;
    if let Some(found) = found.and_then(|object| read(&object)) {
        return Ok(Some(found));
    }
    if row.wanted.as_deref() != Some(name) {
        return Ok(None);
    }
    Ok(now(definitions, row).await?.filter(|revision| revision.name == name))
}

pub(super) async fn all(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
) -> Result<Vec<RevisionRow>, DefinitionError> {
    let Some(owner) = owner(definitions, row).await? else { return Ok(Vec::new()) };
    let selector = format!("{LABEL_FUNCTION}={},{LABEL_REVISION}", row.function.name);
    let objects = of(definitions, row);
    let listed =
        asked("list ControllerRevisions", objects.list(&ListParams::default().labels(&selector))).await?;
    let uid = owner.uid().unwrap_or_default();
    let read = |object: &ControllerRevision| told(row, self::row(row, &uid, object));
    let mut all: Vec<_> =
        listed.items.iter().filter_map(read).map(|revision| with_latest_zip(&owner, revision)).collect();
    let new = row.wanted.as_ref().is_some_and(|wanted| all.iter().all(|revision| revision.name != *wanted));
    if new && let Some(wanted) = now(definitions, row).await? {
        all.retain(|revision| revision.name != wanted.name);
        all.push(wanted);
    }
    all.sort_by_key(|revision| std::cmp::Reverse(revision.created_at));
    Ok(all)
}
