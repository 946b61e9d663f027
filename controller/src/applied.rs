//! Server-side apply, but only of what is not there already: a controller that has nothing to do writes nothing.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sless_crds::names;

use crate::quota;

/// Annotation of what the controller applies: a digest of it, so that fields that are no longer wanted are noticed too.
const APPLIED: &str = "sless.kube5s.ru/applied";

/// Field manager, taking over fields that others have changed.
pub(crate) fn manager() -> PatchParams {
    PatchParams::apply(names::MANAGER).force()
}

/// Makes `desired` so, unless `live` is as it says. Gives what was written.
///
/// # Errors
/// What the API server says.
pub(crate) async fn ensure<K>(client: &Client, live: Option<&K>, desired: K) -> Result<Option<K>, kube::Error>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::namespaced(client.clone(), desired.namespace().as_deref().unwrap_or("default"));
    ensure_with(&api, live, desired).await
}

/// The same through an `Api`, which knows where the object lives.
pub(crate) async fn ensure_with<K>(
    api: &Api<K>,
    live: Option<&K>,
    mut desired: K,
) -> Result<Option<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let digest = digest(&desired);
    desired.annotations_mut().insert(APPLIED.to_owned(), digest);
    let wanted = json(&desired);
    if live.is_some_and(|live| live.meta().deletion_timestamp.is_none() && covers(&json(live), &wanted)) {
        return Ok(None);
    }
    let name = desired.name_any();
    let applied = api.patch(&name, &manager(), &Patch::Apply(&desired)).await?;
    if covers(&json(&applied), &wanted) {
        return Ok(Some(applied));
    }
    // Somebody else's additions to a list, a container for example, outlive an apply; they do not outlive this.
    desired.meta_mut().resource_version = applied.resource_version();
    desired.meta_mut().uid = applied.uid();
    api.replace(
        &name,
        &PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() },
        &desired,
    )
    .await
    .map(Some)
}

fn json<K: Serialize>(object: &K) -> Value {
    // An object of Kubernetes has text keys and finite numbers, so always a JSON form.
    serde_json::to_value(object).unwrap_or_default()
}

fn digest<K: Serialize>(object: &K) -> String {
    let digest = sless_core::Digest::new(Sha256::digest(json(object).to_string()).into()).to_string();
    digest.get(..16).unwrap_or_default().to_owned()
}

/// Whether `live` has all that `wanted` says. It may have more keys (defaults, status, others' annotations), but no more elements in a list.
pub(crate) fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| match live.get(key) {
                Some(live) => covers(live, wanted),
                None => is_empty(wanted),
            })
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        (Value::String(live), Value::String(wanted)) => {
            live == wanted
                || matches!((quota::number(live), quota::number(wanted)), (Some(live), Some(wanted)) if (live - wanted).abs() < 1e-9)
        }
        (live, wanted) => live == wanted,
    }
}

/// The API server leaves out what is empty.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_server_are_no_drift_and_edits_are() {
        let wanted = json!({"spec": {"replicas": 1, "list": [{"name": "a", "memory": "1024Mi"}], "none": [], "any": {}}});
        let live = |spec: Value| json!({"spec": spec, "status": {"x": 1}});
        let ours =
            json!({"replicas": 1, "list": [{"name": "a", "memory": "1Gi", "pull": "Always"}], "more": true});
        assert!(covers(&live(ours.clone()), &wanted));
        for (key, value) in [
            ("replicas", json!(2)),
            ("replicas", json!("1")),
            ("list", json!([])),
            ("list", json!([{"name": "a", "memory": "1Gi"}, {"name": "b"}])),
            ("list", json!([{"name": "a", "memory": "2Gi"}])),
        ] {
            let mut edited = ours.clone();
            edited[key] = value.clone();
            assert!(!covers(&live(edited), &wanted), "{key} {value}");
        }
    }
}
