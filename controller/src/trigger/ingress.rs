//! The Ingress of a host: beside the API, to the API, which finds the trigger by its host.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend,
    IngressSpec, IngressTLS, ServiceBackendPort,
};
use sha2::{Digest as _, Sha256};
use sless_crds::names;

use super::LABEL_TRIGGER;
use crate::config::Config;
use crate::objects::meta;

/// The API's Service, and its port.
const API: &str = "sless-api";
const PORT: i32 = 80;
const NAME_MAX: usize = 63;

/// A label, and another one for each trigger: `a-b/c` is not `a/b-c`.
pub(super) fn name(namespace: &str, trigger: &str) -> String {
    let digest = sless_core::Digest::new(Sha256::digest(format!("{namespace}/{trigger}")).into()).to_string();
    let head = format!("trg-{namespace}-{trigger}");
    let head = head.get(..NAME_MAX - 9).unwrap_or(&head).trim_end_matches('-');
    format!("{head}-{}", digest.get(..8).unwrap_or_default())
}

pub(super) fn build(config: &Config, namespace: &str, trigger: &str, host: &str) -> Ingress {
    let mut metadata = meta(&name(namespace, trigger), &config.system_namespace);
    metadata.labels.get_or_insert_default().extend(
        [(names::LABEL_NAMESPACE, namespace), (LABEL_TRIGGER, trigger)]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let service = IngressServiceBackend {
        name: API.to_owned(),
        port: Some(ServiceBackendPort { number: Some(PORT), name: None }),
    };
    let path = HTTPIngressPath {
        path: Some("/".to_owned()),
        path_type: "Prefix".to_owned(),
        backend: IngressBackend { service: Some(service), resource: None },
    };
    Ingress {
        metadata,
        spec: Some(IngressSpec {
            ingress_class_name: config.ingress_class.clone(),
            rules: Some(vec![IngressRule {
                host: Some(host.to_owned()),
                http: Some(HTTPIngressRuleValue { paths: vec![path] }),
            }]),
            tls: config.ingress_tls_secret.as_ref().map(|secret| {
                vec![IngressTLS { hosts: Some(vec![host.to_owned()]), secret_name: Some(secret.clone()) }]
            }),
            ..IngressSpec::default()
        }),
        ..Ingress::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_trigger_has_a_name_of_its_own() {
        let long = "a".repeat(54);
        let names = [
            name("a-b", "c"),
            name("a", "b-c"),
            name(&long, &"b".repeat(63)),
            name(&long, &format!("{}c", "b".repeat(62))),
        ];
        for (i, one) in names.iter().enumerate() {
            assert!(one.len() <= NAME_MAX && one.parse::<sless_core::FunctionName>().is_ok(), "{one}");
            assert!(!names.iter().skip(i + 1).any(|other| other == one), "{one}");
        }
    }

    #[test]
    fn it_leads_to_the_api_with_tls_where_there_is_a_certificate() {
        let config =
            crate::config::tests::config(&[("INGRESS_CLASS", "nginx"), ("INGRESS_TLS_SECRET", "wild")])
                .unwrap();
        let ingress = build(&config, "team", "shop", "shop.example.org");
        assert_eq!(
            serde_json::to_value(&ingress).unwrap()["spec"],
            json!({
                "ingressClassName": "nginx",
                "rules": [{"host": "shop.example.org", "http": {"paths": [{"path": "/", "pathType": "Prefix",
                    "backend": {"service": {"name": "sless-api", "port": {"number": 80}}}}]}}],
                "tls": [{"hosts": ["shop.example.org"], "secretName": "wild"}],
            })
        );
    }
}
