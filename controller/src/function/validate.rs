//! What a function's object asks for, checked. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Secret};
use kube::ResourceExt;
use sless_backend::FunctionRef;
use sless_core::{Digest, FunctionName, FunctionSettings, Namespace, Runtime};
use sless_crds::{Function, names};

use crate::config::Config;
use crate::context::RuntimeImage;
use crate::egress::{self, Allowed};
use crate::quota::{self, Quota};

/// What the checks rest on.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) config: &'a Config,
    pub(super) runtimes: &'a BTreeMap<Runtime, RuntimeImage>,
    pub(super) function: &'a Function,
    pub(super) namespace: Option<&'a KubeNamespace>,
    /// Those of the namespace that functions may name.
    pub(super) secrets: &'a [Arc<Secret>],
}

/// A function that can be made.
#[derive(Debug, Clone)]
pub(super) struct Valid {
    pub(super) of: FunctionRef,
    pub(super) settings: FunctionSettings,
    pub(super) image: RuntimeImage,
    /// `None` without code.
    pub(super) revision: Option<String>,
    pub(super) egress: Vec<Allowed>,
    pub(super) quota: Quota,
}

/// What has to change first, in one word and in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Invalid {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Invalid {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl Given<'_> {
    pub(super) fn validate(&self) -> Result<Valid, Invalid> {
        let function = self.function;
        let namespace = function.namespace().unwrap_or_default();
        let invalid = |e: sless_core::FieldError| Invalid::new("InvalidSpec", e.to_string());
        let of = FunctionRef {
            namespace: namespace.parse::<Namespace>().map_err(|e| {
                Invalid::new("InvalidNamespace", format!("the namespace {namespace:?} {}", e.message))
            })?,
            name: function.name_any().parse::<FunctionName>().map_err(invalid)?,
        };
        let annotations = self.enabled(&namespace)?.annotations();
        let settings = function.spec.settings().map_err(invalid)?;
        let revision = function.spec.revision().map_err(invalid)?;
        let runtime: Runtime = function.spec.runtime.parse().map_err(invalid)?;
        let image = self.runtimes.get(&runtime).ok_or_else(|| {
            let there: Vec<_> = self.runtimes.keys().map(Runtime::as_str).collect();
            let message =
                format!("there is no runtime {:?}; there are {}", function.spec.runtime, there.join(", "));
            Invalid::new("UnknownRuntime", message)
        })?;
        if let Some(source) = &function.spec.source {
            let sha256: Digest = source
                .sha256
                .parse()
                .map_err(|problem| Invalid::new("InvalidSource", format!("source.sha256: {problem}")))?;
            let key = names::code_key(&of.namespace, &of.name, &sha256);
            if source.key != key {
                // Else a function could be made of another tenant's code.
                return Err(Invalid::new(
                    "InvalidSource",
                    format!("source.key must be {key:?} and is {:?}", source.key),
                ));
            }
        }
        let note = |name: &str| annotations.get(name).map_or("", String::as_str);
        let annotation = |name: &str, problem: String| {
            Invalid::new("InvalidAnnotation", format!("the annotation {name} of the namespace: {problem}"))
        };
        Ok(Valid {
            settings,
            image: image.clone(),
            revision,
            egress: egress::parse(note(names::EGRESS_ALLOW))
                .map_err(|e| annotation(names::EGRESS_ALLOW, e))?,
            quota: match note(names::QUOTA) {
                "" => self.config.default_quota.clone(),
                text => quota::parse(text).map_err(|e| annotation(names::QUOTA, e))?,
            },
            of,
        })
    }

    fn enabled(&self, namespace: &str) -> Result<&KubeNamespace, Invalid> {
        self.namespace.filter(|object| object.labels().get(names::LABEL_ENABLED).is_some_and(|value| value == "true")).ok_or_else(
            || {
                let label = names::LABEL_ENABLED;
                let message = format!("the namespace has not been given to sless: kubectl label namespace {namespace} {label}=true");
                Invalid::new("NamespaceNotEnabled", message)
            },
        )
    }

    /// The keys of the secrets that these settings name, a later one's before an earlier one's.
    ///
    /// # Errors
    /// The names of those that aren't there.
    pub(super) fn variables(
        &self,
        settings: &FunctionSettings,
    ) -> Result<BTreeMap<String, ByteString>, Invalid> {
        let mut variables = BTreeMap::new();
        let mut missing = Vec::new();
        for name in &settings.secrets {
            match self.secrets.iter().find(|secret| secret.name_any() == name.as_str()) {
                Some(secret) => variables.extend(secret.data.clone().unwrap_or_default()),
                None => missing.push(name.as_str()),
            }
        }
        if missing.is_empty() {
            return Ok(variables);
        }
        let label = names::LABEL_SECRET;
        let message =
            format!("there is no Secret {} with the label {label}=true in the namespace", missing.join(", "));
        Err(Invalid::new("SecretMissing", message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn check(function: &Function, namespace: serde_json::Value) -> Result<Valid, &'static str> {
        let config = crate::config::tests::config(&[]).unwrap();
        let image = RuntimeImage { pull: "i@sha256:1".into(), push: "i@sha256:1".into() };
        let runtimes = [("python3.11".parse().unwrap(), image)].into();
        let namespace: Option<KubeNamespace> = serde_json::from_value(namespace).unwrap();
        let given = Given {
            config: &config,
            runtimes: &runtimes,
            function,
            namespace: namespace.as_ref(),
            secrets: &[],
        };
        let valid = given.validate().map_err(|invalid| invalid.reason)?;
        given.variables(&valid.settings).map_err(|invalid| invalid.reason)?;
        Ok(valid)
    }

    #[test]
    fn each_mistake_has_a_reason() {
        let enabled = json!({"metadata": {"name": "team", "labels": {"sless.kube5s.ru/enabled": "true"}}});
        let function = || fixtures::function("team", "hello", 1);
        let valid = check(&function(), enabled.clone()).unwrap();
        assert_eq!(valid.revision, function().spec.revision().unwrap());
        assert_eq!(
            check(&function(), json!({"metadata": {"name": "team"}})).unwrap_err(),
            "NamespaceNotEnabled"
        );
        assert_eq!(check(&function(), json!(null)).unwrap_err(), "NamespaceNotEnabled");
        let with = |change: &dyn Fn(&mut Function)| {
            let mut function = function();
            change(&mut function);
            check(&function, enabled.clone()).unwrap_err()
        };
        assert_eq!(with(&|f| f.spec.runtime = "cobol".into()), "UnknownRuntime");
        assert_eq!(with(&|f| f.spec.memory_mb = Some(1)), "InvalidSpec");
        assert_eq!(with(&|f| f.spec.secrets = Some(vec!["db".into()])), "SecretMissing");
        assert_eq!(with(&|f| f.metadata.namespace = Some("kube-system".into())), "InvalidNamespace");
        for key in ["other/hello/{}.zip", "team/other/{}.zip", "team/hello/../hello/{}.zip", "{}.zip"] {
            let wrong = with(&|f| {
                let source = f.spec.source.as_mut().unwrap();
                source.key = key.replace("{}", &source.sha256);
            });
            assert_eq!(wrong, "InvalidSource", "{key}");
        }
    }

    #[test]
    fn an_admins_annotations_are_read() {
        let namespace = |egress: &str| {
            json!({"metadata": {"name": "team", "labels": {"sless.kube5s.ru/enabled": "true"},
                "annotations": {"sless.kube5s.ru/egress-allow": egress, "sless.kube5s.ru/quota": "pods=3"}}})
        };
        let function = fixtures::function("team", "hello", 1);
        let valid = check(&function, namespace("10.0.0.0/8:5432")).unwrap();
        assert_eq!((valid.egress.len(), valid.quota["pods"].0.as_str()), (1, "3"));
        assert_eq!(check(&function, namespace("everything")).unwrap_err(), "InvalidAnnotation");
    }
}
