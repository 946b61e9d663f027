//! EndpointSlices of functions' Services, in the port's words.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use sless_backend::{Endpoint, FunctionRef};
use sless_crds::names::{ADMIN_PORT, HTTP_PORT, LABEL_FUNCTION, LABEL_REVISION, namespace_of_workloads};

/// A pod's supervisor, whether it can take a call or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) endpoint: Endpoint,
    pub(crate) ready: bool,
}

/// Whose an object among the workloads is. By the namespace it lies in and not by what its labels say of that: a slice that somebody
/// makes elsewhere must not draw a function's calls.
pub(crate) fn owner(namespace: Option<&str>, function: Option<&String>) -> Option<FunctionRef> {
    Some(FunctionRef { namespace: namespace_of_workloads(namespace?)?, name: function?.parse().ok()? })
}

pub(crate) fn owner_of_slice(slice: &EndpointSlice) -> Option<FunctionRef> {
    owner(slice.metadata.namespace.as_deref(), slice.labels().get(LABEL_FUNCTION))
}

fn endpoint(ip: IpAddr, http: u16, admin: u16) -> Endpoint {
    Endpoint::Tcp { addr: SocketAddr::new(ip, http), admin: SocketAddr::new(ip, admin) }
}

/// The addresses in a slice.
pub(crate) fn addresses(slice: &EndpointSlice) -> Vec<Address> {
    let port = |name: &str, usual: u16| {
        let ports = slice.ports.as_deref().unwrap_or_default().iter();
        let named = ports.filter(|port| port.name.as_deref() == Some(name)).find_map(|port| port.port);
        named.and_then(|port| u16::try_from(port).ok()).unwrap_or(usual)
    };
    let (http, admin) = (port("http", HTTP_PORT), port("admin", ADMIN_PORT));
    let one = |entry: &k8s_openapi::api::discovery::v1::Endpoint| {
        // All addresses of one entry are the same pod's; the API says that the first one is to be used.
        let ip = entry.addresses.first()?.parse().ok()?;
        let conditions = entry.conditions.clone().unwrap_or_default();
        // "Unknown" is to be taken for ready, says the API; it goes first when a pod begins to end.
        let ready = conditions.ready.unwrap_or(true) && !conditions.terminating.unwrap_or(false);
        Some(Address { endpoint: endpoint(ip, http, admin), ready })
    };
    // Without endpoints the API server sends null for them.
    slice.endpoints.iter().flatten().filter_map(one).collect()
}

/// The pod of an earlier revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aside {
    pub(crate) function: FunctionRef,
    pub(crate) revision: String,
    pub(crate) address: Address,
    /// Why it will not become ready, if that is known.
    pub(crate) failed: Option<String>,
}

/// `None` for one without an address yet.
pub(crate) fn aside(pod: &Pod) -> Option<Aside> {
    let function = owner(pod.metadata.namespace.as_deref(), pod.labels().get(LABEL_FUNCTION))?;
    let revision = pod.labels().get(LABEL_REVISION)?.clone();
    let status = pod.status.as_ref()?;
    let ip = status.pod_ip.as_ref()?.parse().ok()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        && pod.metadata.deletion_timestamp.is_none();
    Some(Aside {
        function,
        revision,
        address: Address { endpoint: endpoint(ip, HTTP_PORT, ADMIN_PORT), ready },
        failed: failed(pod),
    })
}

/// What its containers say of themselves when they end again and again.
fn failed(pod: &Pod) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_deref().unwrap_or_default();
    containers.iter().find_map(|container| {
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref())?;
        let waits = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let crashes = waits.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"));
        crashes.then(|| format!("its supervisor ended with code {}", last.exit_code))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(namespace: &str, endpoints: Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": "fn-f-abc", "labels": {LABEL_FUNCTION: "f", "sless.kube5s.ru/namespace": "team"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 18080}, {"name": "admin", "port": 9090}], "endpoints": endpoints
        }))
        .unwrap()
    }

    #[test]
    fn ready_pods_take_calls_and_ending_ones_are_still_there() {
        let found = addresses(&slice(
            "sless-fn-team",
            json!([
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.4"]},
                {"addresses": ["name.example"]}
            ]),
        ));
        assert_eq!(found.iter().map(|a| a.ready).collect::<Vec<_>>(), [true, false, false, true]);
        let first = endpoint("10.0.0.1".parse().unwrap(), 18080, 9090);
        assert_eq!(found.first().map(|a| &a.endpoint), Some(&first));
        let null: EndpointSlice =
            serde_json::from_value(json!({"metadata": {}, "addressType": "IPv4", "endpoints": null}))
                .unwrap();
        assert!(addresses(&null).is_empty());
    }

    #[test]
    fn a_slice_in_another_namespace_is_nobodys() {
        assert_eq!(owner_of_slice(&slice("sless-fn-team", json!([]))).unwrap().to_string(), "team/f");
        for elsewhere in ["team", "default", "sless-fn-", "sless-builds"] {
            assert_eq!(owner_of_slice(&slice(elsewhere, json!([]))), None);
        }
    }

    #[test]
    fn the_pod_of_an_earlier_revision_is_known_by_its_labels() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "sless-fn-team", "labels": {LABEL_FUNCTION: "f", LABEL_REVISION: "abc"}},
            "status": {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "function", "image": "", "imageID": "", "ready": false, "restartCount": 2,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 78}}}]}
        }))
        .unwrap();
        let found = aside(&pod).unwrap();
        assert_eq!((found.revision.as_str(), found.address.ready), ("abc", true));
        assert!(found.failed.unwrap().contains("78"));
        pod.status.as_mut().unwrap().pod_ip = None;
        assert_eq!(aside(&pod), None);
    }
}
