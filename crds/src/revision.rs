//! What a `ControllerRevision` of ours holds.

use k8s_openapi::api::apps::v1::ControllerRevision;
use serde::{Deserialize, Serialize};
use sless_core::FieldError;

use crate::{FunctionSpec, Source};

/// The `data` of a `ControllerRevision`: all that a rollback brings back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionData {
    pub runtime: String,
    /// The spec without its source.
    pub settings: FunctionSpec,
    pub source: Source,
}

impl RevisionData {
    /// What is to be kept of `spec`; `None` without code.
    #[must_use]
    pub fn of(spec: &FunctionSpec) -> Option<Self> {
        let source = spec.source.clone()?;
        let settings = FunctionSpec { source: None, ..spec.clone() };
        Some(Self { runtime: spec.runtime.clone(), settings, source })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// Names what is not as it was written: somebody else has changed the object.
    pub fn read(object: &ControllerRevision) -> Result<Self, FieldError> {
        Self::deserialize(&object.data.0).map_err(|e| FieldError::new("data", e.to_string()))
    }

    /// The spec that it was made from.
    #[must_use]
    pub fn spec(&self) -> FunctionSpec {
        FunctionSpec {
            runtime: self.runtime.clone(),
            source: Some(self.source.clone()),
            ..self.settings.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_revision_gives_back_the_spec_it_was_made_from() {
        let spec: FunctionSpec = serde_json::from_value(json!({
            "runtime": "nodejs20", "memoryMb": 64, "env": {"A": "b"},
            "source": {"key": format!("a/f/{}.zip", "0".repeat(64)), "sha256": "0".repeat(64)}
        }))
        .unwrap();
        let data = RevisionData::of(&spec).unwrap();
        let object = ControllerRevision {
            data: RawExtension(serde_json::to_value(&data).unwrap()),
            ..Default::default()
        };
        assert_eq!(RevisionData::read(&object).unwrap().spec(), spec);
        assert_eq!(RevisionData::of(&FunctionSpec { source: None, ..spec }), None);
        assert_eq!(RevisionData::read(&ControllerRevision::default()).unwrap_err().field, "data");
    }
}
