//! `/openapi.json`: the table of operations, written as OpenAPI 3.1.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::operation::{Access, Operation, Param, Shape};
use super::schemas;

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn content(shape: Shape) -> Option<Value> {
    let json = |schema: Value| json!({"application/json": {"schema": schema}});
    Some(match shape {
        Shape::Object(name) | Shape::Optional(name) => json(reference(name)),
        Shape::List(name) => json(json!({
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": {"type": "array", "items": reference(name)},
                "next": {"type": ["string", "null"], "description": "the 'cursor' of the next page"},
            },
        })),
        Shape::Log => json!({
            "text/plain": {"schema": {"type": "string"}},
            "application/json": {"schema": {
                "type": "object",
                "required": ["items", "next"],
                "properties": {"items": {"type": "array", "items": reference("LogLine")}, "next": {"type": "null"}},
            }},
            "text/event-stream": {"schema": {"type": "string"}},
        }),
        Shape::Zip => json!({
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {"schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            }},
        }),
        Shape::Metrics => json!({"text/plain": {"schema": {"type": "string"}}}),
        Shape::Any => json!({"*/*": {"schema": {}}}),
        Shape::Nothing => return None,
    })
}

fn response(about: &str, content: Option<Value>) -> Value {
    match content {
        Some(content) => json!({"description": about, "content": content}),
        None => json!({"description": about}),
    }
}

/// What each operation can refuse, by what it is.
fn problems(operation: &Operation) -> Vec<u16> {
    let body = matches!(operation.takes, Shape::Object(_) | Shape::Optional(_) | Shape::Zip);
    let call = operation.takes == Shape::Any;
    let mut problems = match operation.access {
        Access::Open if call => vec![404, 405, 502],
        Access::Open => vec![],
        Access::Token => vec![401],
        Access::Role(_) if call => vec![401, 403, 404, 405, 502],
        Access::Role(_) => vec![401, 403, 404],
    };
    if body || !operation.query.is_empty() {
        problems.push(400);
    }
    if body {
        problems.push(413);
    }
    if !call && operation.method != Method::GET {
        problems.extend([400, 409, 412]);
    }
    if operation.path.starts_with("/metrics/functions/") {
        problems.extend([400, 404, 502]);
    }
    problems.extend([500, 503]);
    problems.sort_unstable();
    problems.dedup();
    problems
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let names = operation.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let mut parameters: Vec<_> = names
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    parameters.extend(operation.query.iter().map(|Param { name, schema, about }| {
        let schema: Value = serde_json::from_str(schema).unwrap_or_default();
        json!({"name": name, "in": "query", "description": about, "schema": schema})
    }));
    if operation.gives.iter().any(|(_, shape)| *shape == Shape::Log) {
        parameters.push(json!({
            "name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
            "description": "of 'text/event-stream': the 'id' of the last event; what came after it is given",
        }));
    }
    let changes = match operation.method {
        Method::GET => false,
        Method::POST => ["/upload", "/rollback"].iter().any(|end| operation.path.ends_with(end)),
        _ => operation.takes != Shape::Any,
    };
    if changes {
        parameters.push(json!({
            "name": "If-Match", "in": "header", "description": "an ETag: write only if it is still that", "schema": {"type": "string"},
        }));
    }
    parameters
}

fn described(operation: &Operation) -> Value {
    let mut responses = Map::new();
    for (status, shape) in &operation.gives {
        responses.insert(status.to_string(), response("done", content(*shape)));
    }
    for status in problems(operation) {
        let reason = StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason());
        let problem = json!({"application/problem+json": {"schema": reference("Problem")}});
        responses
            .entry(status.to_string())
            .or_insert_with(|| response(reason.unwrap_or_default(), Some(problem)));
    }
    if operation.takes == Shape::Any {
        let own = response("whatever the function answers", content(Shape::Any));
        responses.insert("default".to_owned(), own);
    }
    let mut object = Map::from_iter([
        ("summary".to_owned(), operation.about.into()),
        ("parameters".to_owned(), parameters(operation).into()),
        ("responses".to_owned(), responses.into()),
    ]);
    let no_body = matches!(operation.method, Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS);
    if let Some(content) = content(operation.takes).filter(|_| !no_body) {
        let required = !matches!(operation.takes, Shape::Any | Shape::Optional(_));
        object.insert("requestBody".to_owned(), json!({"required": required, "content": content}));
    }
    match operation.access {
        Access::Open => object.insert("security".to_owned(), json!([])),
        Access::Token => None,
        Access::Role(role) => object.insert("x-role".to_owned(), role.as_str().into()),
    };
    Value::Object(object)
}

/// The whole description.
pub(super) fn document(operations: &[Operation]) -> Value {
    let mut paths = Map::new();
    for operation in operations {
        let methods = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Value::Object(methods) = methods {
            methods.insert(operation.method.as_str().to_ascii_lowercase(), described(operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "sless",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A function host. `x-role` is the role that a token needs: viewer, invoker, deployer or admin, each also what those before it may.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// As an answer.
pub(super) fn page(text: bytes::Bytes) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes::invocations::{STATUSES, TRIGGERS};
    use crate::routes::operations;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(name)) = object.get("$ref") {
                    found.insert(name.rsplit('/').next().unwrap().to_owned());
                }
                object.values().for_each(|v| references(v, found));
            }
            Value::Array(list) => list.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_is_there_and_used() {
        let all: Vec<_> = operations::all().into_iter().chain(operations::admin()).collect();
        assert!(all.iter().all(|o| !o.about.is_empty() && !o.gives.is_empty()));
        let document = document(&all);
        let mut used = BTreeSet::new();
        references(&document, &mut used);
        let known: BTreeSet<_> =
            document["components"]["schemas"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(used, known);
    }

    #[test]
    fn a_parameter_has_a_schema() {
        for operation in operations::all() {
            for param in operation.query {
                let schema: Value = serde_json::from_str(param.schema).unwrap();
                assert!(schema["type"].is_string(), "{}", param.name);
                let all = match param.name {
                    "status" => STATUSES,
                    "trigger" => TRIGGERS,
                    _ => continue,
                };
                assert_eq!(schema["enum"], json!(all));
            }
        }
    }
}
