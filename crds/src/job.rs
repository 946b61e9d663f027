//! A job: a function that is run once for each raise of its `runId`.

#![expect(unreachable_pub, reason = "KubeSchema makes a public copy of the spec")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rules::{self, Rule};
use crate::status;

const RULES: &[Rule] = &[
    Rule::new("self.functionRef == oldSelf.functionRef", "can't be changed; make a new job")
        .at(".functionRef"),
    Rule::new("self.runId >= oldSelf.runId", "can't be lowered; raise it to run once more").at(".runId"),
];

/// Which function, with what, and how often so far.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sless.kube5s.ru",
    version = "v1alpha1",
    kind = "FunctionJob",
    plural = "functionjobs",
    shortname = "fj",
    category = "sless",
    namespaced,
    status = "FunctionJobStatus",
    derive = "PartialEq",
    doc = "One run of a function for each raise of its runId",
    validation = ("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63", "the name must be a DNS label: lower-case letters, digits and '-', at most 63"),
    printcolumn(name = "Function", type_ = "string", json_path = ".spec.functionRef"),
    printcolumn(name = "Run", type_ = "integer", json_path = ".spec.runId"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = job_rules)]
pub struct FunctionJobSpec {
    /// The function's name, in the same namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub function_ref: String,
    /// The body of its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any")]
    pub payload: Option<Value>,
    /// 0 does not run it; each raise runs it once more.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub run_id: i64,
    /// Limit of a run; the function's own when it is left out.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    #[schemars(range(min = 0.1, max = 86_400.0))]
    pub timeout_sec: Option<f64>,
    /// How often a run that failed is tried again.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
}

fn any(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

fn job_rules(schema: &mut schemars::Schema) {
    rules::add_to(schema, RULES);
    if let Some(timeout) = rules::property(schema, "timeoutSec") {
        rules::add_minimum(timeout, 0.1);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JobPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

/// What is true of a job's last run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = status::conditions)]
pub struct FunctionJobStatus {
    /// Of the spec that this tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invocation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any")]
    pub result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
