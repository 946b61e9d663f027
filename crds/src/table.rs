//! Puts the ranges, defaults and descriptions of `sless-core`'s table of settings into a schema.

use schemars::Schema;
use serde_json::{Value, json};
use sless_core::{Kind, SETTINGS, Setting};

use crate::case::camel;
use crate::rules::{self, Rule};

/// Rules need a bound on what they look at, or the API server refuses them for what they might cost.
const MOST_VARIABLES: u32 = 1024;
const MOST_SECRETS: u32 = 64;
const MOST_LABELS: u32 = 64;

/// As `sless-core` has them: below what Linux takes for one variable, and for all of them.
const VARIABLE_BYTES: u32 = 100 << 10;

const ENV: &[Rule] = &[
    Rule::new(
        "self.all(name, name.matches('^[A-Za-z_.-][A-Za-z0-9_.-]*$'))",
        "names of variables are letters, digits, '_', '.' and '-', and begin with no digit",
    ),
    Rule::new("self.all(name, !name.startsWith('SLESS_'))", "names that begin with SLESS_ are reserved"),
];

const LABELS: &[Rule] = &[Rule::new(
    "self.all(name, name.matches('^[A-Za-z0-9_./-]{1,253}$') && self[name].matches('^[A-Za-z0-9_.-]*$'))",
    "a label's name and value are letters, digits, '-', '_' and '.', the value at most 63",
)];

/// Path of a file without its ending, and the name of a function in it.
const ENTRYPOINT: &str = r"^[\p{L}\p{N}_$@+][\p{L}\p{N}_$@+-]*([/.][\p{L}\p{N}_$@+][\p{L}\p{N}_$@+-]*)*\.[\p{L}_$][\p{L}\p{N}_$]*$";

/// For `#[schemars(transform)]` of the function's spec.
pub(crate) fn settings(schema: &mut Schema) {
    apply(schema, "");
}

/// For that of its `retry`.
pub(crate) fn retry(schema: &mut Schema) {
    apply(schema, "retry.");
}

fn apply(schema: &mut Schema, prefix: &str) {
    for setting in SETTINGS {
        let Some(name) = setting.name.strip_prefix(prefix).filter(|name| !name.contains('.')) else {
            continue;
        };
        if let Some(property) = rules::property(schema, &camel(name)) {
            describe(property, setting);
        }
    }
}

fn describe(property: &mut serde_json::Map<String, Value>, setting: &Setting) {
    property.insert("description".into(), json!(setting.doc));
    property.insert("default".into(), serde_json::from_str(setting.default).unwrap_or_default());
    // What is left out gets the default; an explicit null as well, as in a PATCH of the API.
    property.insert("nullable".into(), json!(true));
    match setting.kind {
        Kind::Entrypoint => {
            property.insert("maxLength".into(), json!(512));
            property.insert("pattern".into(), json!(ENTRYPOINT));
        }
        Kind::Integer { min, max } => {
            property.insert("minimum".into(), json!(min));
            property.insert("maximum".into(), json!(max));
        }
        Kind::Seconds { min, max } => {
            property.insert("minimum".into(), json!(min));
            property.insert("maximum".into(), json!(max));
            rules::add_minimum(property, min);
        }
        Kind::Env => {
            property.insert("maxProperties".into(), json!(MOST_VARIABLES));
            let value = json!({ "type": "string", "maxLength": VARIABLE_BYTES });
            property.insert("additionalProperties".into(), value);
            rules::add(property, ENV);
        }
        Kind::Secrets => {
            property.insert("maxItems".into(), json!(MOST_SECRETS));
            property.insert(
                "items".into(),
                json!({ "type": "string", "maxLength": 63, "pattern": rules::LABEL }),
            );
        }
        Kind::Labels => {
            property.insert("maxProperties".into(), json!(MOST_LABELS));
            property.insert("additionalProperties".into(), json!({ "type": "string", "maxLength": 63 }));
            rules::add(property, LABELS);
        }
        Kind::Statuses => {
            property.insert("maxItems".into(), json!(16));
            let statuses: Vec<Value> = serde_json::from_str(setting.default).unwrap_or_default();
            property.insert("items".into(), json!({ "type": "string", "enum": statuses }));
        }
        Kind::Retry => {}
    }
}
