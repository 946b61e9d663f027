//! What all three tell in their status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the newest change of a function stands, as the API says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    Pending,
    Building,
    Ready,
    Failed,
    Terminating,
}

/// The conditions of a function, in the order in which they come true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    /// The newest code has an image.
    Built,
    /// The newest revision's pods have been asked for, as wanted.
    Deployed,
    /// The newest revision is what answers.
    Ready,
}

impl ConditionType {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Built => "Built",
            Self::Deployed => "Deployed",
            Self::Ready => "Ready",
        }
    }
}

/// Sets a condition in `conditions`; the time of its last transition only moves when its status does.
pub fn condition(
    conditions: &mut Vec<Condition>,
    kind: ConditionType,
    status: Option<bool>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) {
    let status = match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let at = conditions.iter().position(|c| c.type_ == kind.as_str());
    let since = at
        .and_then(|i| conditions.get(i))
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    let new = Condition {
        type_: kind.as_str().into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| now.clone()),
    };
    match at.and_then(|i| conditions.get_mut(i)) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Conditions as Kubernetes keeps them: one of each type.
pub(crate) fn conditions(schema: &mut schemars::Schema) {
    if let Some(property) = crate::rules::property(schema, "conditions") {
        property.insert("x-kubernetes-list-type".into(), "map".into());
        property.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    }
}
