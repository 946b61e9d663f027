//! CEL rules in schemas.

use schemars::Schema;
use serde_json::{Map, Value, json};

/// A DNS label, as names are.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

const VALIDATIONS: &str = "x-kubernetes-validations";

/// One rule: an expression that must be true, and what is said when it is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) rule: &'static str,
    pub(crate) message: &'static str,
    /// Below the object that the rule stands at, as in `.runId`; the message then names this field.
    pub(crate) field: Option<&'static str>,
}

impl Rule {
    pub(crate) const fn new(rule: &'static str, message: &'static str) -> Self {
        Self { rule, message, field: None }
    }

    pub(crate) const fn at(self, field: &'static str) -> Self {
        Self { field: Some(field), ..self }
    }

    fn to_json(self) -> Value {
        let mut object = json!({ "rule": self.rule, "message": self.message });
        if let Some(field) = self.field {
            object["fieldPath"] = json!(field);
        }
        object
    }
}

/// Adds rules to the schema that they stand at.
pub(crate) fn add(schema: &mut Map<String, Value>, rules: &[Rule]) {
    let all = schema.entry(VALIDATIONS).or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.extend(rules.iter().map(|rule| rule.to_json()));
    }
}

/// Adds a bound below that is no whole number. The API server compares a whole number with the whole part of `minimum` alone: it takes
/// 0 for a minimum of 0.1.
pub(crate) fn add_minimum(schema: &mut Map<String, Value>, min: f64) {
    if min.fract() != 0.0
        && let Value::Array(all) = schema.entry(VALIDATIONS).or_insert_with(|| json!([]))
    {
        all.push(json!({ "rule": format!("self >= {min}"), "message": format!("must be at least {min}") }));
    }
}

/// Adds rules to a whole object.
pub(crate) fn add_to(schema: &mut Schema, rules: &[Rule]) {
    add(schema.ensure_object(), rules);
}

/// The schema of one property, to be added to.
pub(crate) fn property<'a>(schema: &'a mut Schema, name: &str) -> Option<&'a mut Map<String, Value>> {
    schema.ensure_object().get_mut("properties")?.get_mut(name)?.as_object_mut()
}
