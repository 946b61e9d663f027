//! The definitions as files.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{Function, FunctionJob, Trigger};

/// A definition, and the name of the file that keeps it.
#[derive(Debug, Clone)]
pub struct Definition {
    pub file: &'static str,
    pub crd: CustomResourceDefinition,
}

impl Definition {
    /// As YAML.
    ///
    /// # Errors
    /// Never for definitions of this crate.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::ser_error::Error> {
        serde_saphyr::to_string(&self.crd)
    }
}

/// All three.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition { file: "functions.yaml", crd: Function::crd() },
        Definition { file: "triggers.yaml", crd: Trigger::crd() },
        Definition { file: "functionjobs.yaml", crd: FunctionJob::crd() },
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_are_those_of_this_code() {
        for definition in definitions() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(definition.file);
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(
                kept == definition.to_yaml().unwrap(),
                "{} is not current; make it anew: cargo run -p sless-crds -- crds/manifests",
                definition.file
            );
        }
    }

    #[test]
    fn schemas_are_structural() {
        for definition in definitions() {
            let text = serde_json::to_string(&definition.crd).unwrap();
            for refused in ["\"$ref\"", "\"additionalProperties\":false", "\"allOf\"", "\"anyOf\""] {
                assert!(!text.contains(refused), "{} has {refused}", definition.file);
            }
        }
    }

    #[test]
    fn what_may_be_left_out_is_not_required() {
        for (definition, spec) in
            definitions().iter().zip([&["runtime"][..], &["functionRef", "type"], &["functionRef"]])
        {
            let crd = serde_json::to_value(&definition.crd).unwrap();
            let of = |part: &str| {
                crd.pointer(&format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}/required"))
                    .cloned()
            };
            assert_eq!(
                (of("spec"), of("status")),
                (Some(serde_json::json!(spec)), None),
                "{}",
                definition.file
            );
        }
    }
}
