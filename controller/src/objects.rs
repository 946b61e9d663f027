//! What all objects of the controller have in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use sless_crds::{Function, names};

/// Name, namespace, and the label that says whose it is.
pub(crate) fn meta(name: &str, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some([(names::LABEL_MANAGED_BY.to_owned(), names::MANAGER.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// For objects beside the function. Not a blocking one: the function's deletion must not wait for it.
pub(crate) fn owner(function: &Function) -> Option<OwnerReference> {
    let mut owner = function.controller_owner_ref(&())?;
    owner.block_owner_deletion = None;
    Some(owner)
}
