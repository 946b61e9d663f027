//! The JSON schemas of what is sent and given. Those of a function's settings come from the table that bodies are read by.

use serde_json::{Map, Value, json};
use sless_core::{Kind, SETTINGS, Setting};

use super::invocations::STATUSES;
use super::tokens::MAX_LIFE_SEC;
use crate::auth::Role;
use crate::problem::Code;

fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn moment() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn moment_or_null() -> Value {
    json!({"type": ["string", "null"], "format": "date-time"})
}

fn name() -> Value {
    json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})
}

/// An object with these fields, all of which are there.
fn given(fields: Value) -> Value {
    let names: Vec<String> = fields.as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default();
    json!({"type": "object", "required": names, "properties": fields})
}

/// An object that has no other fields than these.
fn sent(fields: Value, required: &[&str]) -> Value {
    json!({"type": "object", "required": required, "properties": fields, "additionalProperties": false})
}

fn setting(row: &Setting) -> Value {
    let texts = || json!({"type": "object", "additionalProperties": {"type": "string"}});
    let mut schema = match row.kind {
        Kind::Entrypoint => json!({"type": "string"}),
        Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Seconds { min, max } => json!({"type": "number", "minimum": min, "maximum": max}),
        Kind::Env | Kind::Labels => texts(),
        Kind::Secrets => json!({"type": "array", "items": name()}),
        Kind::Statuses => json!({"type": "array", "items": {"type": "string", "enum": STATUSES}}),
        Kind::Retry => {
            let prefix = format!("{}.", row.name);
            let inner =
                SETTINGS.iter().filter_map(|s| Some((s.name.strip_prefix(&prefix)?.to_owned(), setting(s))));
            json!({"type": "object", "properties": inner.collect::<Map<_, _>>(), "additionalProperties": false})
        }
    };
    schema["description"] = row.doc.into();
    schema["default"] = serde_json::from_str(row.default).unwrap_or_default();
    schema
}

fn settings() -> Map<String, Value> {
    SETTINGS.iter().filter(|s| !s.name.contains('.')).map(|s| (s.name.to_owned(), setting(s))).collect()
}

fn with(mut fields: Map<String, Value>, more: Value) -> Value {
    if let Value::Object(more) = more {
        fields.extend(more);
    }
    Value::Object(fields)
}

fn defaulted(settings: Map<String, Value>) -> Map<String, Value> {
    nullable(Value::Object(settings)).as_object().cloned().unwrap_or_default()
}

/// Each field of it may be null too: its default.
fn nullable(mut fields: Value) -> Value {
    if let Value::Object(fields) = &mut fields {
        for field in fields.values_mut() {
            *field = json!({"anyOf": [field.take(), {"type": "null"}]});
        }
    }
    fields
}

fn function() -> Map<String, Value> {
    let input = || json!({"name": name(), "runtime": {"type": "string"}});
    let condition = given(json!({
        "type": {"type": "string", "enum": ["Built", "Ready"]},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string"},
        "message": {"type": "string"},
    }));
    let output = json!({
        "name": name(),
        "runtime": {"type": "string"},
        "namespace": name(),
        "phase": {"type": "string", "enum": ["Pending", "Building", "Ready", "Failed", "Terminating"]},
        "message": or_null("string"),
        "url": {"type": "string"},
        "revision": or_null("string"),
        "code_sha256": or_null("string"),
        "content_sha256": or_null("string"),
        "image": or_null("string"),
        "conditions": {"type": "array", "items": condition},
        "created_at": moment(),
        "updated_at": moment(),
    });
    Map::from_iter([
        ("Function".to_owned(), given(with(settings(), output))),
        ("NewFunction".to_owned(), sent(with(defaulted(settings()), input()), &["name", "runtime"])),
        ("FunctionInput".to_owned(), sent(nullable(with(settings(), input())), &[])),
        ("FunctionPatch".to_owned(), sent(nullable(with(settings(), input())), &[])),
        (
            "Build".to_owned(),
            given(json!({
                "phase": {"type": "string", "enum": ["Pending", "Building", "Ready", "Failed"]},
                "started_at": moment(), "finished_at": moment_or_null(), "message": or_null("string"),
            })),
        ),
        (
            "Revision".to_owned(),
            given(json!({
                "revision": {"type": "string"}, "code_sha256": {"type": "string"}, "content_sha256": {"type": "string"},
                "created_at": moment(), "active": {"type": "boolean"},
            })),
        ),
        ("Rollback".to_owned(), sent(json!({"revision": {"type": "string"}}), &["revision"])),
        ("Uploaded".to_owned(), given(json!({"code_sha256": {"type": "string"}}))),
        ("Source".to_owned(), given(source())),
    ])
}

fn source() -> Value {
    let key = "of the zip in the store of uploaded code";
    let content = "of sorted path, execute bit and bytes of what is in the zip";
    json!({
        "key": {"type": "string", "description": key},
        "sha256": {"type": "string"},
        "content_sha256": {"type": "string", "description": content},
    })
}

fn texts(about: &str, pattern: &str, default: &Value) -> Value {
    let item = json!({"type": "string", "pattern": pattern});
    json!({"type": "array", "items": item, "maxItems": 100, "description": about, "default": default})
}

/// What a trigger is called with, and what stands for all of it.
const METHOD: &str = "^(?!CONNECT$)[A-Z-]{1,20}$";
const METHOD_OR_ANY: &str = "^([*]|(?!CONNECT$)[A-Z-]{1,20})$";
const HEADER: &str = "^[-A-Za-z0-9!#$%&'*+.^_`|~]{1,100}$";
const ORIGIN: &str = "^([*]|[a-z0-9+.-]+://[-a-z0-9.:_~%\\[\\]]{1,200})$";

fn cors(nullable: bool) -> Value {
    let max_age = json!({
        "type": "integer", "minimum": 0, "maximum": 86_400, "default": 600,
        "description": "how long a browser may remember what it was told",
    });
    let fields = json!({
        "origins": texts("as browsers send them, or '*'", ORIGIN, &Value::Null),
        "methods": texts("'*': those that the trigger takes", METHOD_OR_ANY, &json!(["*"])),
        "headers": texts("'*': those that are asked for", HEADER, &json!(["*"])),
        "max_age_sec": max_age,
    });
    let mut fields = fields;
    if let Some(origins) = fields["origins"].as_object_mut() {
        origins.remove("default");
        origins.insert("minItems".to_owned(), 1.into());
    }
    let object = if nullable { sent(self::nullable(fields), &[]) } else { sent(fields, &["origins"]) };
    json!({"anyOf": [object, {"type": "null"}], "description": "what browsers are told about calls from pages of other origins"})
}

fn trigger() -> Map<String, Value> {
    let host = || {
        json!({
            "type": ["string", "null"], "maxLength": 253,
            "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?[.])+[a-z]([-a-z0-9]{0,61}[a-z0-9])?$",
            "description": "a full host name of its own: all calls of it go to the function",
        })
    };
    let all = |cors: Value| {
        json!({
            "name": name(),
            "type": {"type": "string", "enum": ["http"]},
            "enabled": {"type": "boolean", "default": true},
            "function": name(),
            "host": host(),
            "methods": texts("what it may be called with; empty: anything", METHOD, &json!([])),
            "cors": cors,
        })
    };
    let input = || all(cors(false));
    let output = json!({
        "namespace": name(),
        "active": {"type": "boolean"},
        "url": or_null("string"),
        "last_fired_at": moment_or_null(),
        "next_fire_at": moment_or_null(),
        "message": or_null("string"),
        "created_at": moment(),
        "updated_at": moment(),
    });
    let fields = input().as_object().cloned().unwrap_or_default();
    Map::from_iter([
        ("Trigger".to_owned(), given(with(fields, output))),
        ("NewTrigger".to_owned(), sent(input(), &["name", "type", "function"])),
        ("TriggerInput".to_owned(), sent(input(), &["type", "function"])),
        ("TriggerPatch".to_owned(), sent(nullable(all(cors(true))), &[])),
    ])
}

fn secret_and_token() -> Map<String, Value> {
    let role = || json!({"type": "string", "enum": Role::ALL});
    let token = json!({
        "namespace": name(), "name": name(), "role": role(), "created_at": moment(), "expires_at": moment_or_null(),
    });
    let fields = token.as_object().cloned().unwrap_or_default();
    Map::from_iter([
        (
            "Secret".to_owned(),
            given(json!({
                "namespace": name(), "name": name(), "keys": {"type": "array", "items": {"type": "string"}},
                "created_at": moment(), "updated_at": moment(),
            })),
        ),
        (
            "SecretInput".to_owned(),
            sent(
                json!({
                    "name": name(),
                    "data": {"type": "object", "additionalProperties": {"type": "string"}, "writeOnly": true},
                }),
                &["data"],
            ),
        ),
        ("Token".to_owned(), given(token)),
        ("NewToken".to_owned(), given(with(fields, json!({"token": {"type": "string"}})))),
        (
            "TokenInput".to_owned(),
            sent(
                json!({"name": name(), "role": role(), "expires_in_sec": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_LIFE_SEC}}),
                &["name", "role"],
            ),
        ),
        (
            "Caller".to_owned(),
            given(json!({"namespace": or_null("string"), "subject": {"type": "string"}, "role": role()})),
        ),
    ])
}

fn records() -> Map<String, Value> {
    let invocation = json!({
        "id": {"type": "string", "format": "uuid"},
        "function": name(),
        "revision": or_null("string"),
        "trigger": or_null("string"),
        "attempt": {"type": "integer"},
        "replay_of": {"type": ["string", "null"], "format": "uuid"},
        "status": {"type": "string", "enum": STATUSES},
        "http_status": or_null("integer"),
        "started_at": moment(),
        "finished_at": moment_or_null(),
        "duration_ms": or_null("number"),
        "queue_ms": or_null("number"),
        "init_ms": or_null("number"),
        "cpu_ms": or_null("number"),
        "max_rss_bytes": or_null("integer"),
        "log_bytes": or_null("integer"),
        "log_dropped_bytes": or_null("integer"),
    });
    let fields = invocation.as_object().cloned().unwrap_or_default();
    let detail = json!({
        "request": or_null("object"),
        "result": or_null("object"),
        "error": or_null("object"),
        "earlier_attempts": {"type": "array", "items": {"type": "object"}},
    });
    let mut line = given(json!({"time": moment(), "stream": {"type": "string"}, "text": {"type": "string"}}));
    line["properties"]["phase"] = json!({"type": "string"});
    line["properties"]["invocation_id"] = json!({"type": "string", "format": "uuid"});
    Map::from_iter([
        ("Invocation".to_owned(), given(invocation)),
        ("Record".to_owned(), given(with(fields, detail))),
        ("LogLine".to_owned(), line),
        ("Replay".to_owned(), sent(json!({"revision": or_null("string")}), &[])),
        ("Accepted".to_owned(), given(json!({"invocation_id": {"type": "string", "format": "uuid"}}))),
    ])
}

fn system() -> Map<String, Value> {
    let problem = json!({
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": Code::ALL},
    });
    let mut problem = given(problem);
    problem["properties"]["field"] =
        json!({"type": "string", "description": "the field of the request that is at fault"});
    Map::from_iter([
        ("Problem".to_owned(), problem),
        ("Health".to_owned(), given(json!({"status": {"type": "string"}}))),
        (
            "Targets".to_owned(),
            json!({"type": "array", "items": given(json!({
                "targets": {"type": "array", "items": {"type": "string"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            }))}),
        ),
    ])
}

/// All of them, by name.
pub(super) fn all() -> Map<String, Value> {
    [function(), trigger(), secret_and_token(), records(), system()].into_iter().flatten().collect()
}
