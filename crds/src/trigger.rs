//! A trigger: what calls a function by itself.

#![expect(unreachable_pub, reason = "KubeSchema makes a public copy of the spec")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rules::{self, Rule};
use crate::status;

const RULES: &[Rule] = &[
    Rule::new("self.type == oldSelf.type", "can't be changed; make a new trigger").at(".type"),
    Rule::new(
        "self.type == 'http' || !(has(self.host) || has(self.methods) || has(self.cors))",
        "host, methods and cors are of triggers of type http",
    ),
    Rule::new(
        "self.type == 'cron' || !(has(self.schedule) || has(self.timezone) || has(self.prewarmSeconds) || has(self.overlap) || has(self.catchUp) || has(self.runner))",
        "schedule, timezone, prewarmSeconds, overlap, catchUp and runner are of triggers of type cron",
    ),
    Rule::new(
        "self.type == 'rabbitmq' || !(has(self.connection) || has(self.queue) || has(self.passive) || has(self.prefetch) || has(self.maxAttempts) || has(self.backoffSec) || has(self.deadLetter))",
        "connection, queue, passive, prefetch, maxAttempts, backoffSec and deadLetter are of triggers of type rabbitmq",
    ),
    Rule::new("self.type == 'cron' || !has(self.headers)", "headers are of triggers of type cron"),
    Rule::new(
        "self.type != 'cron' || has(self.schedule)",
        "a trigger of type cron needs a schedule, as in '*/5 * * * *'",
    ),
    Rule::new(
        "self.type != 'rabbitmq' || (has(self.connection) && has(self.queue))",
        "a trigger of type rabbitmq needs a connection and a queue",
    ),
];

/// What calls a function by itself, and how.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sless.kube5s.ru",
    version = "v1alpha1",
    kind = "Trigger",
    plural = "triggers",
    shortname = "trg",
    category = "sless",
    namespaced,
    status = "TriggerStatus",
    derive = "PartialEq",
    doc = "What calls a function by itself: requests, a schedule, or a queue",
    validation = ("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63", "the name must be a DNS label: lower-case letters, digits and '-', at most 63"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Function", type_ = "string", json_path = ".spec.functionRef"),
    printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled"),
    printcolumn(name = "Active", type_ = "boolean", json_path = ".status.active"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url"),
    printcolumn(name = "Next", type_ = "date", json_path = ".status.nextFireAt"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = trigger_rules)]
pub struct TriggerSpec {
    /// Can't be changed later.
    #[serde(rename = "type")]
    pub kind: TriggerType,
    /// The function's name, in the same namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub function_ref: String,
    /// false stops it in place.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Of http: a host name of its own, below one of the namespace's suffixes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    )]
    pub host: Option<String>,
    /// Of http: the methods it takes; another is answered with 405. All, when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// Of http: other origins that browsers may call it from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,

    /// Of cron: minute, hour, day of the month, month, day of the week.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,
    /// Of cron: an IANA time zone; UTC when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub timezone: Option<String>,
    /// Of cron: the body of its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any")]
    pub payload: Option<Value>,
    /// Of cron: the headers of its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Of cron: for so many seconds before a fire there is a warm worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub prewarm_seconds: Option<u32>,
    /// Of cron: what becomes of a fire while the call before it still runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// Of cron: what becomes of the fires that were missed while nothing ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    /// Of cron: who fires it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<Runner>,

    /// Of rabbitmq: where its AMQP URL is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionRef>,
    /// Of rabbitmq.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub queue: Option<String>,
    /// Of rabbitmq: the queue must be there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive: Option<bool>,
    /// Of rabbitmq: messages in hand at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub prefetch: Option<u32>,
    /// Of rabbitmq: how often a message is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_attempts: Option<u32>,
    /// Of rabbitmq: the pause before the second attempt.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::number::whole")]
    #[schemars(range(min = 0, max = 86_400))]
    pub backoff_sec: Option<f64>,
    /// Of rabbitmq: the queue for messages that were given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub dead_letter: Option<String>,
}

const fn yes() -> bool {
    true
}

fn any(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

fn trigger_rules(schema: &mut schemars::Schema) {
    rules::add_to(schema, RULES);
    // A rule can't see a field that may hold anything, so what payload belongs to is said in the schema's own words.
    let others = serde_json::json!({ "required": ["payload"], "properties": { "type": { "enum": ["http", "rabbitmq"] } } });
    schema.ensure_object().insert("not".into(), others);
    if let Some(methods) = rules::property(schema, "methods") {
        methods.insert("maxItems".into(), 100.into());
        methods.insert(
            "items".into(),
            serde_json::json!({ "type": "string", "pattern": "^[A-Z-]+$", "maxLength": 20 }),
        );
    }
}

/// Lists of texts as `sless-core` takes them.
fn cors_rules(schema: &mut schemars::Schema) {
    const ORIGIN: &str = r"^(\*|[a-z0-9+.-]+://[!$-)+.0->\[\]-~-]+)$";
    const METHOD: &str = r"^(\*|[A-Z-]+)$";
    const HEADER: &str = r"^[0-9A-Za-z!#$%&'*+.^_`|~-]+$";
    for (name, longest, pattern) in
        [("origins", 300, ORIGIN), ("methods", 20, METHOD), ("headers", 100, HEADER)]
    {
        if let Some(list) = rules::property(schema, name) {
            list.insert("maxItems".into(), 100.into());
            let items = serde_json::json!({ "type": "string", "minLength": 1, "maxLength": longest, "pattern": pattern });
            list.insert("items".into(), items);
        }
    }
    if let Some(origins) = rules::property(schema, "origins") {
        origins.insert("minItems".into(), 1.into());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TriggerType {
    Http,
    Cron,
    Rabbitmq,
}

/// Cross-origin requests, as <https://fetch.spec.whatwg.org/#http-cors-protocol> has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = cors_rules)]
pub struct Cors {
    pub origins: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_age_sec: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    Allow,
    Forbid,
    Replace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    None,
    Last,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    /// The installation's own, which the API runs.
    Scheduler,
    /// A CronJob of Kubernetes, with its rules.
    Cronjob,
}

/// A key of a secret of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectionRef {
    #[schemars(length(min = 1, max = 63))]
    pub secret: String,
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What is true of a trigger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = status::conditions)]
pub struct TriggerStatus {
    /// Of the spec that this tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether it calls its function now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_fired_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_fire_at: Option<Time>,
    /// Why it is not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
