use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use sless_backend::{DefinitionError, FunctionChange, FunctionRef, FunctionRow, Moment};
use sless_core::{FieldError, FunctionSettings, Namespace, Runtime};
use sless_crds::names::{CREATED_AT, LABEL_SECRET, RETRY, code_key};
use sless_crds::{Function, FunctionSpec, Source};

use super::KubernetesDefinitions;
use super::objects::{self, API};
use super::refusal::{asked, failed};
use crate::status::{function_ref, generation, retries};

/// How often a change is tried when the controller writes at the same time.
const TRIES: usize = 10;

fn of(definitions: &KubernetesDefinitions, namespace: &Namespace) -> Api<Function> {
    Api::namespaced(definitions.cluster.client.clone(), namespace.as_str())
}

/// # Errors
/// The field that is not as we would have written it.
pub(super) fn row(object: &Function) -> Result<FunctionRow, FieldError> {
    let function = function_ref(object.metadata.namespace.as_deref(), &object.name_any());
    let settings = object.spec.settings()?;
    let counted = generation(object.metadata.generation, object.annotations().get(RETRY));
    Ok(FunctionRow {
        id: objects::id(&object.metadata),
        function: function.ok_or_else(|| FieldError::new("metadata.name", "is no name of a function"))?,
        runtime: object.spec.runtime.parse()?,
        settings,
        version: counted,
        generation: counted,
        wanted: object.spec.revision()?,
        active: object.status.as_ref().and_then(|status| status.revision.clone()),
        deleting: object.metadata.deletion_timestamp.is_some(),
        created_at: objects::created_at(&object.metadata),
        updated_at: objects::updated_at(&object.metadata),
    })
}

fn read(object: &Function) -> Result<FunctionRow, DefinitionError> {
    row(object).map_err(|wrong| failed("read a Function that somebody has written otherwise", wrong))
}

pub(super) async fn object(
    definitions: &KubernetesDefinitions,
    function: &FunctionRef,
) -> Result<Option<Function>, DefinitionError> {
    asked("read a Function", of(definitions, &function.namespace).get_opt(function.name.as_str())).await
}

/// The object that was read as `row`, as it is now.
async fn same(definitions: &KubernetesDefinitions, row: &FunctionRow) -> Result<Function, DefinitionError> {
    let object = self::object(definitions, &row.function).await?.ok_or(DefinitionError::Stale)?;
    let now = read(&object)?;
    if (now.id, now.version) == (row.id, row.version) { Ok(object) } else { Err(DefinitionError::Stale) }
}

/// Functions that name a secret which isn't there would have pods that can't start.
async fn check_secrets(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    settings: &FunctionSettings,
) -> Result<(), DefinitionError> {
    let secrets = super::secrets::of(definitions, namespace);
    for name in &settings.secrets {
        let found = asked("look for a Secret", secrets.get_metadata_opt(name.as_str())).await?;
        let ours = |labels: &std::collections::BTreeMap<String, String>| {
            labels.get(LABEL_SECRET).is_some_and(|value| value == "true")
        };
        if found.is_none_or(|object| !ours(object.labels())) {
            return Err(DefinitionError::NoSecret(name.as_str().to_owned()));
        }
    }
    Ok(())
}

pub(super) async fn insert(
    definitions: &KubernetesDefinitions,
    function: &FunctionRef,
    runtime: &Runtime,
    settings: &FunctionSettings,
) -> Result<FunctionRow, DefinitionError> {
    check_secrets(definitions, &function.namespace, settings).await?;
    let spec = FunctionSpec::new(runtime.as_str().to_owned(), None, settings);
    let spec = spec.map_err(|error| failed("write a Function", error))?;
    let mut object = Function::new(function.name.as_str(), spec);
    object.metadata = ObjectMeta {
        annotations: Some([(CREATED_AT.to_owned(), Moment::now().rfc3339())].into()),
        ..object.metadata
    };
    let functions = of(definitions, &function.namespace);
    let made = asked("make a Function", functions.create(&params(), &object)).await?;
    definitions.cluster.functions.until_seen(&made).await;
    read(&made)
}

pub(super) fn params() -> PostParams {
    PostParams { field_manager: Some(API.to_owned()), ..PostParams::default() }
}

pub(super) async fn one(
    definitions: &KubernetesDefinitions,
    function: &FunctionRef,
) -> Result<Option<FunctionRow>, DefinitionError> {
    object(definitions, function).await?.as_ref().map(read).transpose()
}

/// All of a namespace; those that can't be read are told of in the log.
pub(super) async fn all(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
) -> Result<Vec<Function>, DefinitionError> {
    let functions = of(definitions, namespace);
    Ok(asked("list Functions", functions.list(&ListParams::default())).await?.items)
}

pub(super) async fn page(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<FunctionRow>, DefinitionError> {
    let rows = all(definitions, namespace).await?.into_iter().filter_map(|object| match row(&object) {
        Ok(row) => Some(row),
        Err(wrong) => {
            tracing::warn!(namespace = %namespace, name = %object.name_any(), error = %wrong, "a Function is not as it must be and is left out of a list");
            None
        }
    });
    Ok(super::newest(rows.collect(), |row| row.id, below, limit))
}

/// The spec that `change` makes of `before`.
fn changed(
    row: &FunctionRow,
    before: &FunctionSpec,
    change: &FunctionChange,
) -> Result<FunctionSpec, DefinitionError> {
    let source = match &change.wanted {
        None => before.source.clone(),
        Some(revision) => Some(Source {
            key: code_key(&row.function.namespace, &row.function.name, &revision.code.sha256),
            sha256: revision.code.sha256.to_string(),
            // Where nobody has said what is in the zip, the zip itself stands for it.
            content_sha256: (revision.code.content_sha256 != revision.code.sha256)
                .then(|| revision.code.content_sha256.to_string()),
        }),
    };
    let spec = FunctionSpec::new(before.runtime.clone(), source, &change.settings);
    spec.map_err(|error| failed("write a Function", error))
}

pub(super) async fn change(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
    change: &FunctionChange,
) -> Result<FunctionRow, DefinitionError> {
    check_secrets(definitions, &row.function.namespace, &change.settings).await?;
    let functions = of(definitions, &row.function.namespace);
    for _ in 0..TRIES {
        let mut object = same(definitions, row).await?;
        let spec = changed(row, &object.spec, change)?;
        // What is wanted already may have failed: the wish to try it again has to be a change of its own.
        let again =
            change.wanted.as_ref().is_some_and(|revision| row.wanted.as_ref() == Some(&revision.name));
        if !again && spec == object.spec {
            return Ok(row.clone());
        }
        if again {
            count_retry(&mut object);
        }
        object.spec = spec;
        object.metadata.managed_fields = None;
        let written =
            asked("change a Function", functions.replace(&object.name_any(), &params(), &object)).await;
        match written {
            Err(DefinitionError::Stale) => {}
            Err(DefinitionError::Gone) => return Err(DefinitionError::Stale),
            other => {
                let written = other?;
                definitions.cluster.functions.until_seen(&written).await;
                return read(&written);
            }
        }
    }
    Err(DefinitionError::Stale)
}

fn count_retry(object: &mut Function) {
    let next = retries(object.annotations().get(RETRY)).saturating_add(1);
    object.annotations_mut().insert(RETRY.to_owned(), next.to_string());
}

/// Has a function be looked at anew because of something that its spec does not say.
pub(super) async fn retry(
    definitions: &KubernetesDefinitions,
    function: &FunctionRef,
) -> Result<(), DefinitionError> {
    let functions = of(definitions, &function.namespace);
    for _ in 0..TRIES {
        let Some(mut object) = object(definitions, function).await? else { return Ok(()) };
        count_retry(&mut object);
        object.metadata.managed_fields = None;
        let written =
            asked("change a Function", functions.replace(&object.name_any(), &params(), &object)).await;
        match written {
            Err(DefinitionError::Stale) => {}
            Err(DefinitionError::Gone) => return Ok(()),
            other => {
                definitions.cluster.functions.until_seen(&other?).await;
                return Ok(());
            }
        }
    }
    Err(DefinitionError::Stale)
}

pub(super) async fn delete(
    definitions: &KubernetesDefinitions,
    row: &FunctionRow,
) -> Result<FunctionRow, DefinitionError> {
    let functions = of(definitions, &row.function.namespace);
    for _ in 0..TRIES {
        let object = same(definitions, row).await?;
        let conditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        let params = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
        let deleted = asked("delete a Function", functions.delete(row.function.name.as_str(), &params)).await;
        match deleted {
            Err(DefinitionError::Stale) => {}
            Err(DefinitionError::Gone) => return Err(DefinitionError::Stale),
            other => {
                other?;
                let (namespace, name) = (row.function.namespace.as_str(), row.function.name.as_str());
                let uid = object.uid();
                let going = |seen: &Function| seen.uid() != uid || seen.metadata.deletion_timestamp.is_some();
                definitions
                    .cluster
                    .functions
                    .until(|m| m.get(namespace, name).is_none_or(|seen| going(&seen)))
                    .await;
                return Ok(FunctionRow { deleting: true, ..row.clone() });
            }
        }
    }
    Err(DefinitionError::Stale)
}
