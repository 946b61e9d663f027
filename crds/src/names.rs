//! What everything is called: namespaces, objects, labels and annotations. The controller makes them, the API finds them.

use sha2::{Digest as _, Sha256};
use sless_core::{Digest, FunctionName, Namespace};

/// Where builds run.
pub const BUILDS: &str = "sless-builds";
/// Of the API, in the namespace of the installation: where pods deliver their records.
pub const INTERNAL_SERVICE: &str = "sless-api-internal";
/// Its port.
pub const INTERNAL_PORT: u16 = 8081;
/// Of a function's pod: calls, and the admin port.
pub const HTTP_PORT: u16 = 8080;
/// Of a function's pod: metrics, readiness, cancelling.
pub const ADMIN_PORT: u16 = 9090;
/// Who a `ServiceAccount` token of a function's pod, or of the controller, is for.
pub const AUDIENCE: &str = "sless-api";
/// The Secret in the namespace of the installation that the functions' proxy tokens are made from, and its one key.
pub const PROXY_KEY: &str = "sless-proxy-key";
/// A push credential for the registry, in [`BUILDS`] alone; of type `kubernetes.io/dockerconfigjson`.
pub const REGISTRY_AUTH: &str = "sless-registry-auth";

/// A `ConfigMap` in [`BUILDS`] that may be there: variables for installers, such as `PIP_INDEX_URL`, `HTTPS_PROXY` or `PIP_CERT`.
pub const BUILD_ENVIRONMENT: &str = "sless-build-environment";
/// A `ConfigMap` in [`BUILDS`] that may be there: its keys are files below `/var/run/sless/ca` while installers run.
pub const BUILD_CA: &str = "sless-build-ca";

/// Label: the user's namespace.
pub const LABEL_NAMESPACE: &str = "sless.kube5s.ru/namespace";
/// Label: the function.
pub const LABEL_FUNCTION: &str = "sless.kube5s.ru/function";
/// Label: the revision of a pod.
pub const LABEL_REVISION: &str = "sless.kube5s.ru/revision";
/// Label: what part an object plays: [`COMPONENT_FUNCTION`] and the like.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// A function's pods that answer its calls.
pub const COMPONENT_FUNCTION: &str = "function";
/// The one pod of an earlier revision.
pub const COMPONENT_ASIDE: &str = "function-aside";
/// A build's pod.
pub const COMPONENT_BUILD: &str = "build";
/// The API's pods.
pub const COMPONENT_API: &str = "api";
/// The controller's pods.
pub const COMPONENT_CONTROLLER: &str = "controller";
/// Label on all that is ours.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value; also the field manager of what the controller applies.
pub const MANAGER: &str = "sless-controller";
/// Label of a user's namespace: it is sless's to work in. Value `true`.
pub const LABEL_ENABLED: &str = "sless.kube5s.ru/enabled";
/// Label of a Secret in a user's namespace that functions may name. Value `true`.
pub const LABEL_SECRET: &str = "sless.kube5s.ru/secret";
/// Label of a namespace whose pods may read metrics. Value `true`.
pub const LABEL_SCRAPER: &str = "sless.kube5s.ru/scraper";

/// Annotation of a user's namespace: suffixes below which its triggers may have hosts, with commas between.
pub const HOST_SUFFIXES: &str = "sless.kube5s.ru/host-suffixes";
/// Annotation of a user's namespace: what its functions may reach beyond public addresses, as `CIDR` or `CIDR:PORT`, with commas.
pub const EGRESS_ALLOW: &str = "sless.kube5s.ru/egress-allow";
/// Annotation of a user's namespace: the quota of its functions, as `NAME=QUANTITY`, with commas.
pub const QUOTA: &str = "sless.kube5s.ru/quota";
/// Annotation of a Function: when somebody called it last while it was scaled to zero (RFC 3339). The API writes it, at most
/// every few seconds, and what is at zero wakes.
pub const LAST_CALL: &str = "sless.kube5s.ru/last-call";
/// Annotation of a Function: a change of it has a revision that failed tried once more.
pub const RETRY: &str = "sless.kube5s.ru/retry";
/// Annotation of what the API has created: the moment (RFC 3339, microseconds). Kubernetes' own has whole seconds.
pub const CREATED_AT: &str = "sless.kube5s.ru/created-at";
/// Annotation of a `ControllerRevision`: its image, by digest, and the runtime image below it.
pub const IMAGE: &str = "sless.kube5s.ru/image";
/// See [`IMAGE`].
pub const RUNTIME_IMAGE: &str = "sless.kube5s.ru/runtime-image";
/// Annotation of a `ControllerRevision`: key and layer of its dependencies, as JSON.
pub const DEPENDENCIES: &str = "sless.kube5s.ru/dependencies";
/// Annotation of a Function (value a revision, and a moment): an earlier revision that somebody calls gets a pod of its own.
pub const ASIDE: &str = "sless.kube5s.ru/aside";

/// Where what runs for `namespace` lies.
#[must_use]
pub fn workload_namespace(namespace: &Namespace) -> String {
    format!("sless-fn-{namespace}")
}

/// Whose workloads lie in `name`; `None` if nobody's.
#[must_use]
pub fn namespace_of_workloads(name: &str) -> Option<Namespace> {
    name.strip_prefix("sless-fn-")?.parse().ok()
}

/// The name of a function's Deployment, ServiceAccount, NetworkPolicy and Secrets. A prefix, for `default` is an account of
/// Kubernetes' own in every namespace, and for a Service's name begins with a letter.
#[must_use]
pub fn object_name(function: &FunctionName) -> String {
    format!("fn-{function}")
}

/// The function that [`object_name`] was made from.
#[must_use]
pub fn function_of_object(name: &str) -> Option<FunctionName> {
    name.strip_prefix("fn-")?.parse().ok()
}

/// The name of a function's Service, which has to be a DNS label: long ones are cut and made unique again.
#[must_use]
pub fn service_name(function: &FunctionName) -> String {
    const MAX: usize = 63;
    let name = object_name(function);
    if name.len() <= MAX {
        return name;
    }
    let hash = Digest::new(Sha256::digest(name.as_bytes()).into()).to_string();
    let (head, _) = name.split_at(MAX - 9);
    let (hash, _) = hash.split_at(8);
    format!("{head}-{hash}")
}

/// The name of the `ControllerRevision` of a revision.
#[must_use]
pub fn revision_object(function: &FunctionName, revision: &str) -> String {
    format!("{function}-{revision}")
}

/// The key in S3 of an upload.
#[must_use]
pub fn code_key(namespace: &Namespace, function: &FunctionName, sha256: &Digest) -> String {
    format!("{namespace}/{function}/{sha256}.zip")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_name_that_is_a_label() {
        let of = |name: &str| service_name(&name.parse().unwrap());
        assert_eq!(of("hello"), "fn-hello");
        assert_eq!(of("1"), "fn-1");
        let (one, other) = (of(&"a".repeat(63)), of(&format!("{}b", "a".repeat(62))));
        assert!(one.len() == 63 && other.len() == 63 && one != other);
    }

    #[test]
    fn who_reports_is_told_by_namespace_and_account() {
        let namespace: Namespace = "team".parse().unwrap();
        assert_eq!(namespace_of_workloads(&workload_namespace(&namespace)), Some(namespace));
        assert_eq!(namespace_of_workloads("team"), None);
        let function: FunctionName = "default".parse().unwrap();
        assert_eq!(function_of_object(&object_name(&function)), Some(function));
        assert_eq!(function_of_object("default"), None);
    }
}
