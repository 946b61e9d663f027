//! What a `ControllerRevision` of ours holds.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sless_core::FieldError;

use crate::{FunctionSpec, Source};

/// The `data` of a `ControllerRevision`: all that a rollback brings back.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionData {
    /// The spec that it was made from.
    pub spec: FunctionSpec,
    /// The source in it.
    pub source: Source,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    runtime: String,
    /// The spec without runtime and source.
    settings: Map<String, Value>,
    source: Source,
}

impl RevisionData {
    /// What is to be kept of `spec`; `None` without code.
    #[must_use]
    pub fn of(spec: &FunctionSpec) -> Option<Self> {
        Some(Self { spec: spec.clone(), source: spec.source.clone()? })
    }

    /// As the object holds it.
    ///
    /// # Errors
    /// Never for a spec that was read.
    pub fn write(&self) -> Result<RawExtension, serde_json::Error> {
        let mut settings = match serde_json::to_value(&self.spec)? {
            Value::Object(settings) => settings,
            _ => Map::new(),
        };
        settings.remove("source");
        settings.remove("runtime");
        let written = Written { runtime: self.spec.runtime.clone(), settings, source: self.source.clone() };
        serde_json::to_value(written).map(RawExtension)
    }

    /// Reads it back.
    ///
    /// # Errors
    /// Names what is not as it was written: somebody else has changed the object.
    pub fn read(object: &ControllerRevision) -> Result<Self, FieldError> {
        let wrong = |error: serde_json::Error| FieldError::new("data", error.to_string());
        let mut written = Written::deserialize(&object.data.0).map_err(wrong)?;
        written.settings.insert("runtime".into(), Value::String(written.runtime));
        let spec: FunctionSpec = serde_json::from_value(Value::Object(written.settings)).map_err(wrong)?;
        Ok(Self {
            spec: FunctionSpec { source: Some(written.source.clone()), ..spec },
            source: written.source,
        })
    }
}

#[cfg(test)]
mod tests {
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
        let object = ControllerRevision { data: data.write().unwrap(), ..Default::default() };
        assert_eq!(object.data.0["settings"], json!({"memoryMb": 64, "env": {"A": "b"}}));
        assert_eq!(RevisionData::read(&object).unwrap(), data);
        assert_eq!(RevisionData::of(&FunctionSpec { source: None, ..spec }), None);
        assert_eq!(RevisionData::read(&ControllerRevision::default()).unwrap_err().field, "data");
    }
}
