//! A function: its code, and the settings of `sless-core`'s table.

#![expect(unreachable_pub, reason = "KubeSchema makes a public copy of the spec")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sless_core::{FieldError, FunctionSettings, Runtime, SETTINGS, revision_name};

use crate::case::camel;
use crate::rules::{self, Rule};
use crate::status::{self, Phase};
use crate::table;

const RULES: &[Rule] = &[
    Rule::new("self.runtime == oldSelf.runtime", "can't be changed; make a new function").at(".runtime"),
    // Null is the default, and to a rule it is not there.
    Rule::new(
        "(has(self.minReplicas) ? self.minReplicas : 1) <= (has(self.maxReplicas) ? self.maxReplicas : 1)",
        "must not be above maxReplicas",
    )
    .at(".minReplicas"),
];

const SOURCE_RULES: &[Rule] =
    &[Rule::new("self.key.endsWith('/' + self.sha256 + '.zip')", "must be {namespace}/{name}/{sha256}.zip")
        .at(".key")];

/// What runs: a handler of one runtime, and how.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sless.kube5s.ru",
    version = "v1alpha1",
    kind = "Function",
    plural = "functions",
    shortname = "fn",
    category = "sless",
    namespaced,
    status = "FunctionStatus",
    derive = "PartialEq",
    doc = "A handler that runs behind a URL, on a schedule, from a queue or as a job",
    validation = ("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63", "the name must be a DNS label: lower-case letters, digits and '-', at most 63"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".spec.runtime"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = table::settings, transform = function_rules)]
pub struct FunctionSpec {
    /// One of the installation's runtimes, such as `python3.11`; can't be changed later.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9][a-z0-9.-]*$"))]
    pub runtime: String,
    /// The code; without it nothing runs yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub timeout_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub init_timeout_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub idle_timeout_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub build_timeout_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

fn function_rules(schema: &mut schemars::Schema) {
    rules::add_to(schema, RULES);
}

/// Where the code lies in the installation's bucket. `sless push DIR` puts it there and prints this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = source_rules)]
pub struct Source {
    /// `{namespace}/{name}/{sha256}.zip`.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// SHA-256 of the zip's bytes, in hex.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"), length(max = 64))]
    pub sha256: String,
    /// SHA-256 of what is in the zip: sorted paths, execute bits and bytes. With it the same content, zipped anew, is not built again;
    /// a build checks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"), length(max = 64))]
    pub content_sha256: Option<String>,
}

impl Source {
    /// What the code is known by: equal ones are built once.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.content_sha256.as_deref().unwrap_or(&self.sha256)
    }
}

fn source_rules(schema: &mut schemars::Schema) {
    rules::add_to(schema, SOURCE_RULES);
}

/// How asynchronous calls are tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = table::retry)]
pub struct RetrySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub backoff_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    pub max_backoff_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<String>>,
}

/// What is true of a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = status::conditions)]
pub struct FunctionStatus {
    /// Of the spec that this tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it is not ready; after a failed build the last lines of its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The revision that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Of the zip that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_sha256: Option<String>,
    /// Of what is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_sha256: Option<String>,
    /// What its pods run, by digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The last build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildStatus>,
    /// The value of the annotation `sless.kube5s.ru/retry` that was answered last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A build of a function's code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildStatus {
    /// Of its Job in the namespace `sless-builds`; the API keeps its log by it.
    pub name: String,
    /// `Building`, `Ready` or `Failed`.
    pub phase: Phase,
    pub started_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Why it failed, with the last lines of its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl FunctionSpec {
    /// The settings in it; what is missing has its default.
    ///
    /// # Errors
    /// The first one that is not as the table says, by its name here.
    pub fn settings(&self) -> Result<FunctionSettings, FieldError> {
        let Ok(Value::Object(spec)) = serde_json::to_value(self) else {
            return Err(FieldError::new("spec", "has no JSON form"));
        };
        FunctionSettings::from_object(&snake(&spec, ""))
            .map_err(|e| FieldError::new(camel(&e.field), e.message))
    }

    /// The revision that it asks for; `None` without code.
    ///
    /// # Errors
    /// The first field that is not as it has to be, by its name here.
    pub fn revision(&self) -> Result<Option<String>, FieldError> {
        let settings = self.settings()?;
        let runtime: Runtime = self.runtime.parse()?;
        let Some(source) = &self.source else { return Ok(None) };
        let content = source.identity().parse().map_err(|wrong| FieldError::new("source", wrong))?;
        Ok(Some(revision_name(&runtime, &settings, &content)))
    }

    /// A spec with these settings, each of them written out.
    ///
    /// # Errors
    /// Never for settings of this version of the table.
    pub fn new(
        runtime: String,
        source: Option<Source>,
        settings: &FunctionSettings,
    ) -> Result<Self, serde_json::Error> {
        let mut spec = camels(&settings.to_object());
        spec.insert("runtime".into(), Value::String(runtime));
        if let Some(source) = source {
            spec.insert("source".into(), serde_json::to_value(source)?);
        }
        serde_json::from_value(Value::Object(spec))
    }
}

/// The table's rows below `prefix`, under the names that they have in the API.
fn snake(spec: &Map<String, Value>, prefix: &str) -> Map<String, Value> {
    let rows = SETTINGS
        .iter()
        .filter_map(|setting| setting.name.strip_prefix(prefix))
        .filter(|name| !name.contains('.'));
    rows.filter_map(|name| {
        let value = spec.get(&camel(name))?;
        let value = match (name, value) {
            ("retry", Value::Object(retry)) => Value::Object(snake(retry, "retry.")),
            _ => value.clone(),
        };
        Some((name.to_owned(), value))
    })
    .collect()
}

fn camels(settings: &Map<String, Value>) -> Map<String, Value> {
    let name = |(name, value): (&String, &Value)| match (name.as_str(), value) {
        ("retry", Value::Object(retry)) => (name.clone(), Value::Object(camels(retry))),
        _ => (camel(name), value.clone()),
    };
    settings.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_survive_both_ways() {
        let object = json!({
            "entrypoint": "src/app.main", "timeout_sec": 0.5, "memory_mb": 64, "env": {"some_key": "a_b"}, "secrets": ["db"],
            "min_replicas": 0, "max_replicas": 3, "retry": {"max_attempts": 5, "backoff_sec": 0.25, "on": ["timeout"]}, "labels": {"team_a": "x"}
        });
        let Value::Object(object) = object else { unreachable!() };
        let settings = FunctionSettings::from_object(&object).unwrap();
        let spec = FunctionSpec::new("python3.11".into(), None, &settings).unwrap();
        assert_eq!(spec.retry.as_ref().unwrap().max_attempts, Some(5));
        assert_eq!(spec.env.as_ref().unwrap()["some_key"], "a_b");
        assert_eq!(spec.settings().unwrap(), settings);
    }

    #[test]
    fn what_is_left_out_has_the_tables_default() {
        let spec: FunctionSpec = serde_json::from_value(json!({"runtime": "nodejs20"})).unwrap();
        assert_eq!(spec.settings().unwrap(), FunctionSettings::default());
    }

    #[test]
    fn errors_name_the_field_as_it_is_written_here() {
        let spec: FunctionSpec =
            serde_json::from_value(json!({"runtime": "nodejs20", "retry": {"maxAttempts": 0}})).unwrap();
        assert_eq!(spec.settings().unwrap_err().field, "retry.maxAttempts");
    }

    #[test]
    fn every_setting_is_a_field() {
        let spec = FunctionSpec::new("x".into(), None, &FunctionSettings::default()).unwrap();
        let Value::Object(spec) = serde_json::to_value(spec).unwrap() else { unreachable!() };
        for setting in SETTINGS.iter().filter(|s| !s.name.contains('.')) {
            assert!(spec.contains_key(&camel(setting.name)), "{}", setting.name);
        }
    }
}
