use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace as Object;
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use sless_backend::DefinitionError;
use sless_core::Namespace;
use sless_crds::hosts::allowed_suffixes;
use sless_crds::names::{LABEL_ENABLED, LABEL_MANAGED_BY, LABEL_NAMESPACE, workload_namespace};

use super::KubernetesDefinitions;
use super::functions::params;
use super::refusal::asked;

fn is_enabled(object: &Object) -> bool {
    object.labels().get(LABEL_ENABLED).is_some_and(|value| value == "true")
}

fn is_going(object: &Object) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Why nothing may be written into it; `None` if it may.
fn refusal(object: &Object) -> Option<String> {
    let name = object.name_any();
    if is_going(object) {
        return Some(format!("namespace {name:?} is being deleted"));
    }
    let text = format!(
        "namespace {name:?} was there before sless and is not given to it; whoever may change it can: kubectl label namespace {name} {LABEL_ENABLED}=true"
    );
    (!is_enabled(object)).then_some(text)
}

/// Of the namespace for what runs: the same name may be in use for something else.
fn workload_refusal(namespace: &Namespace, object: &Object) -> Option<String> {
    let name = object.name_any();
    let labels = object.labels();
    let ours = labels.get(LABEL_NAMESPACE).is_some_and(|of| of == namespace.as_str())
        && labels.contains_key(LABEL_MANAGED_BY);
    let text = format!(
        "namespace {name:?}, where the functions of {namespace:?} would run, was there before sless and is not its own; delete it or use another namespace"
    );
    (!ours).then_some(text)
}

pub(super) async fn enter(
    definitions: &KubernetesDefinitions,
    namespace: &Namespace,
    make: bool,
) -> Result<(), DefinitionError> {
    let mirror = &definitions.cluster.namespaces;
    let workloads = workload_namespace(namespace);
    if let Some(text) = mirror.get_global(&workloads).and_then(|object| workload_refusal(namespace, &object))
    {
        return Err(DefinitionError::NamespaceRefused(text));
    }
    // Mostly all is well, and then nobody need be asked.
    if mirror.get_global(namespace.as_str()).is_some_and(|object| refusal(&object).is_none()) {
        return Ok(());
    }
    let objects = Api::<Object>::all(definitions.cluster.client.clone());
    if let Some(object) = asked("read a Namespace", objects.get_opt(namespace.as_str())).await? {
        return refusal(&object).map_or(Ok(()), |text| Err(DefinitionError::NamespaceRefused(text)));
    }
    if !make {
        let text = format!("there is no namespace {namespace:?}; an admin token's first write makes it");
        return Err(DefinitionError::NamespaceRefused(text));
    }
    let labels = BTreeMap::from([(LABEL_ENABLED.to_owned(), "true".to_owned())]);
    let metadata = ObjectMeta {
        name: Some(namespace.as_str().to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let object = Object { metadata, ..Object::default() };
    let made = match asked("make a Namespace", objects.create(&params(), &object)).await {
        // Somebody else was quicker, and may have made it for something else.
        Err(DefinitionError::Exists) => asked("read a Namespace", objects.get(namespace.as_str())).await?,
        other => other?,
    };
    if let Some(text) = refusal(&made) {
        return Err(DefinitionError::NamespaceRefused(text));
    }
    mirror.until(|mirror| mirror.get_global(namespace.as_str()).is_some()).await;
    Ok(())
}

/// Whether what is defined in it counts.
pub(super) fn counts(definitions: &KubernetesDefinitions, namespace: &str) -> bool {
    definitions.cluster.namespaces.get_global(namespace).is_some_and(|object| is_enabled(&object))
}

/// Suffixes below which its triggers may have hosts.
pub(super) fn suffixes(definitions: &KubernetesDefinitions, namespace: &str) -> Vec<String> {
    let object = definitions.cluster.namespaces.get_global(namespace);
    let none = BTreeMap::new();
    let annotations =
        object.as_ref().and_then(|object| object.metadata.annotations.as_ref()).unwrap_or(&none);
    allowed_suffixes(annotations, &definitions.cluster.settings.host_suffixes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, labels: serde_json::Value) -> Object {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    #[test]
    fn a_namespace_is_ours_only_with_its_label() {
        assert_eq!(refusal(&object("team", json!({LABEL_ENABLED: "true"}))), None);
        for labels in [json!({}), json!({LABEL_ENABLED: "false"})] {
            assert!(
                refusal(&object("team", labels))
                    .unwrap()
                    .contains("kubectl label namespace team sless.kube5s.ru/enabled=true")
            );
        }
        let mut going = object("team", json!({LABEL_ENABLED: "true"}));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(refusal(&going).unwrap().contains("being deleted"));
    }

    #[test]
    fn what_runs_lies_in_a_namespace_that_we_have_made() {
        let team = "team".parse().unwrap();
        let ours = json!({LABEL_NAMESPACE: "team", LABEL_MANAGED_BY: "sless-controller"});
        assert_eq!(workload_refusal(&team, &object("sless-fn-team", ours)), None);
        for labels in [json!({}), json!({LABEL_NAMESPACE: "other", LABEL_MANAGED_BY: "x"})] {
            assert!(
                workload_refusal(&team, &object("sless-fn-team", labels)).unwrap().contains("sless-fn-team")
            );
        }
    }
}
