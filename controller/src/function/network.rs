//! Who may speak with a function's pods, and with whom they may.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sless_crds::names;

use super::objects::Workload;
use crate::egress;

/// Label that Kubernetes gives every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Of all pods of the function, the one aside too.
pub(super) fn policy(workload: &Workload<'_>) -> NetworkPolicy {
    let system = workload.config.system_namespace.as_str();
    let api = || peer(system, names::COMPONENT_API);
    let scrapers = NetworkPolicyPeer {
        namespace_selector: Some(selector(&[(names::LABEL_SCRAPER, "true")])),
        ..NetworkPolicyPeer::default()
    };
    let ingress = [
        (vec![api()], &[names::HTTP_PORT, names::ADMIN_PORT][..]),
        (vec![peer(system, names::COMPONENT_CONTROLLER), scrapers], &[names::ADMIN_PORT][..]),
    ]
    .map(|(from, open)| NetworkPolicyIngressRule {
        from: Some(from),
        ports: Some(open.iter().map(|open| port("TCP", *open)).collect()),
    });
    let mut outward = vec![
        NetworkPolicyEgressRule {
            to: Some(vec![NetworkPolicyPeer {
                namespace_selector: Some(selector(&[(NAMESPACE_NAME, "kube-system")])),
                pod_selector: Some(selector(&[("k8s-app", "kube-dns")])),
                ip_block: None,
            }]),
            ports: Some(vec![port("UDP", 53), port("TCP", 53)]),
        },
        NetworkPolicyEgressRule {
            to: Some(vec![api()]),
            ports: Some(vec![port("TCP", names::INTERNAL_PORT)]),
        },
        NetworkPolicyEgressRule {
            to: Some(egress::public().into_iter().map(|(cidr, except)| block(&cidr, except)).collect()),
            ports: None,
        },
    ];
    outward.extend(workload.egress.iter().map(|allowed| NetworkPolicyEgressRule {
        to: Some(vec![block(&allowed.cidr.to_string(), Vec::new())]),
        ports: allowed.port.map(|number| vec![port("TCP", number), port("UDP", number)]),
    }));
    NetworkPolicy {
        metadata: workload.meta(&workload.object()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(workload.labels()),
                ..LabelSelector::default()
            }),
            ingress: Some(ingress.into()),
            egress: Some(outward),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
        }),
    }
}

fn selector(labels: &[(&str, &str)]) -> LabelSelector {
    let labels: BTreeMap<_, _> = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

/// Pods of the installation.
fn peer(system: &str, component: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(selector(&[(NAMESPACE_NAME, system)])),
        pod_selector: Some(selector(&[(names::LABEL_COMPONENT, component)])),
        ip_block: None,
    }
}

fn block(cidr: &str, except: Vec<String>) -> NetworkPolicyPeer {
    let except = (!except.is_empty()).then_some(except);
    NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr: cidr.to_owned(), except }),
        ..NetworkPolicyPeer::default()
    }
}

fn port(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(port.into())),
        end_port: None,
    }
}
