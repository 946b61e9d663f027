use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as Object;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use sless_backend::{DefinitionError, FunctionRef, Moment, Secret, SecretRow};
use sless_core::{FieldError, Namespace, SecretName};
use sless_crds::names::{CREATED_AT, LABEL_SECRET};

use super::functions::{self, params};
use super::refusal::{asked, failed};
use super::{KubernetesDefinitions, objects};

type Values = BTreeMap<String, ByteString>;

pub(super) fn of(definitions: &KubernetesDefinitions, namespace: &Namespace) -> Api<Object> {
    Api::namespaced(definitions.cluster.client.clone(), namespace.as_str())
}

fn is_ours(object: &Object) -> bool {
    object.labels().get(LABEL_SECRET).is_some_and(|value| value == "true")
}

fn row(object: &Object) -> Result<SecretRow, FieldError> {
    let version = object.resource_version().and_then(|version| version.parse().ok());
    Ok(SecretRow {
        id: objects::id(&object.metadata),
        namespace: object.namespace().unwrap_or_default().parse()?,
        name: object.name_any().parse()?,
        keys: object.data.iter().flat_map(BTreeMap::keys).cloned().collect(),
        // Nobody writes into it but whoever changes it, so that every write is a version.
        version: version.ok_or_else(|| FieldError::new("metadata.resourceVersion", "is no number"))?,
        created_at: objects::created_at(&object.metadata),
        updated_at: objects::updated_at(&object.metadata),
    })
}

fn read(object: &Object) -> Result<SecretRow, DefinitionError> {
    row(object).map_err(|wrong| failed("read a Secret that somebody has written otherwise", wrong))
}

fn data(values: &BTreeMap<String, Secret>) -> Values {
    values.iter().map(|(key, value)| (key.clone(), ByteString(value.reveal().as_bytes().to_vec()))).collect()
}

pub(super) async fn insert(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &SecretName,
    values: &BTreeMap<String, Secret>,
) -> Result<SecretRow, DefinitionError> {
    let secrets = of(definitions, namespace);
    let metadata = ObjectMeta {
        name: Some(name.as_str().to_owned()),
        labels: Some([(LABEL_SECRET.to_owned(), "true".to_owned())].into()),
        annotations: Some([(CREATED_AT.to_owned(), Moment::now().rfc3339())].into()),
        ..ObjectMeta::default()
    };
    let object =
        Object { metadata, data: Some(data(values)), type_: Some("Opaque".to_owned()), ..Object::default() };
    match asked("make a Secret", secrets.create(&params(), &object)).await {
        Err(DefinitionError::Exists) => {
            let there = asked("look for a Secret", secrets.get_metadata_opt(name.as_str())).await?;
            let foreign = there
                .is_some_and(|object| object.labels().get(LABEL_SECRET).is_none_or(|value| value != "true"));
            Err(if foreign { foreign_secret(namespace, name) } else { DefinitionError::Exists })
        }
        other => read(&other?),
    }
}

fn foreign_secret(namespace: &Namespace, name: &SecretName) -> DefinitionError {
    DefinitionError::NamespaceRefused(format!(
        "namespace {namespace:?} has a Secret {name:?} that was not made for functions; whoever may change it can: kubectl -n {namespace} label secret {name} {LABEL_SECRET}=true"
    ))
}

async fn object(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &SecretName,
) -> Result<Option<Object>, DefinitionError> {
    let found = asked("read a Secret", of(definitions, namespace).get_opt(name.as_str())).await?;
    Ok(found.filter(is_ours))
}

pub(super) async fn one(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    name: &SecretName,
) -> Result<Option<SecretRow>, DefinitionError> {
    object(definitions, namespace, name).await?.as_ref().map(read).transpose()
}

pub(super) async fn page(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<SecretRow>, DefinitionError> {
    let secrets = of(definitions, namespace);
    let ours = ListParams::default().labels(&format!("{LABEL_SECRET}=true"));
    let listed = asked("list Secrets", secrets.list(&ours)).await?;
    // A Secret of a name that no function can name, such as `a.b`, is none of ours.
    let rows = listed.items.iter().filter_map(|object| row(object).ok());
    Ok(super::newest(rows.collect(), |row| row.id, below, limit))
}

/// The object that was read as `row`, unless it is another by now.
async fn same(definitions: &KubernetesDefinitions, row: &SecretRow) -> Result<Object, DefinitionError> {
    let found = object(definitions, &row.namespace, &row.name).await?.ok_or(DefinitionError::Stale)?;
    let now = read(&found)?;
    if (now.id, now.version) == (row.id, row.version) { Ok(found) } else { Err(DefinitionError::Stale) }
}

/// The functions that name it.
async fn naming(
    definitions: &KubernetesDefinitions,
    row: &SecretRow,
) -> Result<Vec<FunctionRef>, DefinitionError> {
    let all = functions::all(definitions, &row.namespace).await?;
    let naming = all.into_iter().filter(|object| {
        object.spec.secrets.as_deref().unwrap_or_default().iter().any(|name| name == row.name.as_str())
    });
    let named = naming.filter_map(|object| object.name_any().parse().ok());
    Ok(named.map(|name| FunctionRef { namespace: row.namespace.clone(), name }).collect())
}

pub(super) async fn change(
    definitions: &KubernetesDefinitions,
    row: &SecretRow,
    values: &BTreeMap<String, Secret>,
) -> Result<(SecretRow, Vec<FunctionRef>), DefinitionError> {
    let mut object = same(definitions, row).await?;
    let data = data(values);
    // The same values again need no new workers.
    if object.data.as_ref().unwrap_or(&Values::new()) == &data {
        return Ok((read(&object)?, Vec::new()));
    }
    object.data = Some(data);
    object.metadata.managed_fields = None;
    let secrets = of(definitions, &row.namespace);
    let written = match asked("change a Secret", secrets.replace(row.name.as_str(), &params(), &object)).await
    {
        Err(DefinitionError::Gone) => return Err(DefinitionError::Stale),
        other => other?,
    };
    let told = naming(definitions, row).await?;
    for function in &told {
        functions::retry(definitions, function).await?;
    }
    Ok((read(&written)?, told))
}

pub(super) async fn remove(
    definitions: &KubernetesDefinitions,
    row: &SecretRow,
) -> Result<Option<FunctionRef>, DefinitionError> {
    let object = same(definitions, row).await?;
    if let Some(function) = naming(definitions, row).await?.into_iter().next() {
        return Ok(Some(function));
    }
    let conditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    let params = DeleteParams { preconditions: Some(conditions), ..DeleteParams::default() };
    let secrets = of(definitions, &row.namespace);
    match asked("delete a Secret", secrets.delete(row.name.as_str(), &params)).await {
        Err(DefinitionError::Gone) => Err(DefinitionError::Stale),
        other => other.map(|_| None),
    }
}
