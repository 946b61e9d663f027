//! Tokens, roles, namespaces: the rules over every operation that `/openapi.json` lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use support::{Answer, Supervisor, TestApp, problem};

const ROLES: [&str; 4] = ["viewer", "invoker", "deployer", "admin"];

async fn ask(app: &TestApp, method: &str, path: &str, token: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    app.send(request.body(Full::new(Bytes::new())).unwrap()).await
}

async fn token(app: &TestApp, ns: &str, name: &str, role: &str) -> String {
    let made =
        app.api("POST", &format!("/v1/namespaces/{ns}/tokens"), json!({"name": name, "role": role})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["token"].as_str().unwrap().to_owned()
}

/// Who may ask what, for every operation there is: one that is new fails the test until somebody has thought about it.
const TABLE: &[(&str, &str, &str)] = &[
    ("GET", "/health", "open"),
    ("GET", "/ready", "open"),
    ("GET", "/metrics", "open"),
    ("GET", "/metrics/targets", "open"),
    ("GET", "/metrics/functions/{ns}/{name}/{n}", "open"),
    ("GET", "/v1/whoami", "token"),
    ("*", "/fn/{ns}/{name}", "open"),
    ("*", "/fn/{ns}/{name}/{path}", "open"),
    ("*", "/v1/namespaces/{ns}/functions/{name}/invoke", "invoker"),
    ("*", "/v1/namespaces/{ns}/functions/{name}/invoke/{path}", "invoker"),
    ("GET", "/v1/namespaces/{ns}/functions", "viewer"),
    ("POST", "/v1/namespaces/{ns}/functions", "deployer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}", "viewer"),
    ("PUT", "/v1/namespaces/{ns}/functions/{name}", "deployer"),
    ("PATCH", "/v1/namespaces/{ns}/functions/{name}", "deployer"),
    ("DELETE", "/v1/namespaces/{ns}/functions/{name}", "deployer"),
    ("POST", "/v1/namespaces/{ns}/functions/{name}/upload", "deployer"),
    ("POST", "/v1/namespaces/{ns}/functions/{name}/code", "deployer"),
    ("POST", "/v1/namespaces/{ns}/functions/{name}/rollback", "deployer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}/build", "viewer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}/build/logs", "viewer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}/revisions", "viewer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}/invocations", "viewer"),
    ("GET", "/v1/namespaces/{ns}/functions/{name}/logs", "viewer"),
    ("GET", "/v1/namespaces/{ns}/triggers", "viewer"),
    ("POST", "/v1/namespaces/{ns}/triggers", "deployer"),
    ("GET", "/v1/namespaces/{ns}/triggers/{name}", "viewer"),
    ("PUT", "/v1/namespaces/{ns}/triggers/{name}", "deployer"),
    ("PATCH", "/v1/namespaces/{ns}/triggers/{name}", "deployer"),
    ("DELETE", "/v1/namespaces/{ns}/triggers/{name}", "deployer"),
    ("GET", "/v1/namespaces/{ns}/invocations/{id}", "viewer"),
    ("GET", "/v1/namespaces/{ns}/invocations/{id}/logs", "viewer"),
    ("POST", "/v1/namespaces/{ns}/invocations/{id}/replay", "invoker"),
    ("POST", "/v1/namespaces/{ns}/invocations/{id}/cancel", "invoker"),
    ("GET", "/v1/namespaces/{ns}/secrets", "viewer"),
    ("GET", "/v1/namespaces/{ns}/secrets/{name}", "viewer"),
    ("PUT", "/v1/namespaces/{ns}/secrets/{name}", "deployer"),
    ("DELETE", "/v1/namespaces/{ns}/secrets/{name}", "deployer"),
    ("GET", "/v1/namespaces/{ns}/tokens", "admin"),
    ("POST", "/v1/namespaces/{ns}/tokens", "admin"),
    ("GET", "/v1/namespaces/{ns}/tokens/{name}", "admin"),
    ("DELETE", "/v1/namespaces/{ns}/tokens/{name}", "admin"),
];

struct Listed {
    method: String,
    path: String,
    /// `None`: no token, or any.
    role: Option<String>,
    open: bool,
}

async fn operations(app: &TestApp) -> Vec<Listed> {
    let document = ask(app, "GET", "/openapi.json", None).await.json();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            found.push(Listed {
                method: method.to_uppercase(),
                path: path.clone(),
                role: operation["x-role"].as_str().map(str::to_owned),
                open: operation["security"] == json!([]),
            });
        }
    }
    found
}

/// The code of an answer that is a problem. What answers HEAD has no body, so its status stands for it.
fn code(answer: &Answer) -> String {
    if answer.body.is_empty() {
        return answer.status.to_string();
    }
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    json["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn every_operation_asks_for_the_token_the_namespace_and_the_role_that_the_description_says() {
    let app = TestApp::start().await;
    app.api("POST", "functions", json!({"name": "x", "runtime": "python3.11"})).await;
    let mut own = Vec::new();
    for role in ROLES {
        own.push(token(&app, "default", role, role).await);
    }
    let foreign = token(&app, "other", "admin", "admin").await;
    let mut guarded = 0;
    for Listed { method, path, role, open } in operations(&app).await {
        let path = path.replace("{ns}", "default").replace("{name}", "x").replace("{path}", "p");
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000").replace("{n}", "0");
        let place = format!("{method} {path}");
        let nobody = ask(&app, &method, &path, None).await;
        if open {
            assert!(nobody.status != 401 && nobody.status != 403, "{place}: {nobody:?}");
            continue;
        }
        guarded += 1;
        for bad in [nobody, ask(&app, &method, &path, Some("wrong")).await] {
            assert_eq!(bad.status, 401, "{place}: {bad:?}");
            assert!(bad.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"), "{place}");
        }
        let Some(role) = role else { continue };
        assert!(path.starts_with("/v1/namespaces/default/"), "{place}");
        let elsewhere = ask(&app, &method, &path, Some(&foreign)).await;
        assert_eq!(elsewhere.status, 404, "{place}: {elsewhere:?}");
        assert!(method == "HEAD" || code(&elsewhere) == "NotFound", "{place}");
        let needed = ROLES.iter().position(|r| *r == role).unwrap();
        for lower in &own[..needed] {
            let refused = ask(&app, &method, &path, Some(lower)).await;
            assert_eq!(refused.status, 403, "{place}: {refused:?}");
            assert!(method == "HEAD" || code(&refused) == "Forbidden", "{place}");
        }
        // Whatever becomes of it: it is not refused for who asks. (What removes something must not remove the tokens of this test.)
        if method != "DELETE" {
            let taken = ask(&app, &method, &path, Some(&own[needed])).await;
            assert!(![401, 403].contains(&taken.status), "{place}: {taken:?}");
        }
    }
    assert!(guarded >= 35, "{guarded} operations");
}

#[tokio::test]
async fn every_operation_stands_in_the_table_with_who_may_ask_it() {
    let app = TestApp::start().await;
    let expected = |method: &str, path: &str| {
        let mut rows = TABLE.iter().filter(|(m, p, _)| (*m == method || *m == "*") && *p == path);
        rows.next().map(|(_, _, who)| *who)
    };
    let all = operations(&app).await;
    for Listed { method, path, role, open } in &all {
        let who = match (role, open) {
            (Some(role), false) => role.as_str(),
            (None, false) => "token",
            (_, true) => "open",
        };
        assert_eq!(expected(method, path), Some(who), "{method} {path} is not in the table, or otherwise");
    }
    for (method, path, _) in TABLE {
        let there = all.iter().any(|one| (*method == "*" || one.method == *method) && one.path == *path);
        assert!(there, "{method} {path} is in the table, but not in the description");
    }
}

#[tokio::test]
async fn what_is_in_one_namespace_can_not_be_reached_through_another() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("x", &echo).await;
    app.api("PUT", "secrets/x", json!({"data": {"A": "1"}})).await;
    app.api("POST", "tokens", json!({"name": "x", "role": "viewer"})).await;
    let id = "01930000-0000-7000-8000-000000000001";
    let started = format!(
        r#"{{"v":1,"invocation_id":"{id}","seq":0,"type":"started","time":"2026-01-01T00:00:00.000Z","revision":"r","pod":"p","attempt":1,"trigger":"http","method":"GET","path":"/","request":{{"raw_query":"","headers":[],"size":0,"text":"","truncated":false}}}}"#
    );
    assert_eq!(app.report("x", started).await.status, 200);
    let foreign = token(&app, "other", "admin", "admin").await;
    let mut asked = 0;
    for Listed { method, path, role, .. } in operations(&app).await {
        // Of one thing, by its name; what makes one makes one of the namespace's own.
        if role.is_none() || !path.contains("{name}") && !path.contains("{id}") || method == "PUT" {
            continue;
        }
        let path =
            path.replace("{ns}", "other").replace("{name}", "x").replace("{path}", "p").replace("{id}", id);
        let answer = ask(&app, &method, &path, Some(&foreign)).await;
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
        asked += 1;
    }
    assert!(asked > 30, "{asked}");
    for path in ["functions/x", "triggers/x", "secrets/x", "tokens/x", &format!("invocations/{id}")] {
        assert_eq!(app.get(path).await.status, 200, "{path} is there, and not for others");
    }
}

#[tokio::test]
async fn what_the_description_lists_is_there_and_nothing_else_is() {
    let app = TestApp::start().await;
    let all = operations(&app).await;
    for Listed { method, path, .. } in &all {
        let path = path.replace("{ns}", "default").replace("{name}", "x").replace("{path}", "p");
        let path = path.replace("{id}", "x").replace("{n}", "0");
        let answer = app.api(method, &path, Value::Null).await;
        let address = answer.body.windows(12).any(|part| part == b"such address");
        assert!(!address && answer.status < 500 || answer.status == 503, "{method} {path}: {answer:?}");
    }
    // A method that is not listed for an address is refused, with those that are.
    for (method, path) in [("POST", "secrets/x"), ("PUT", "tokens/x"), ("DELETE", "functions")] {
        let answer = app.api(method, path, json!({})).await;
        assert_eq!(answer.problem(), problem(405, "MethodNotAllowed", None), "{method} {path}");
        assert!(answer.headers["allow"].to_str().unwrap().contains("GET"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_token_is_shown_once_and_ends_when_it_should() {
    let app = TestApp::start().await;
    let body = json!({"name": "ci", "role": "deployer"});
    let made = app.api("POST", "tokens", body.clone()).await;
    assert_eq!((made.status, made.headers["cache-control"].to_str().unwrap()), (201, "no-store"));
    let text = made.json()["token"].as_str().unwrap().to_owned();
    assert!(text.len() >= 43);
    assert_eq!(app.api("POST", "tokens", body).await.problem(), problem(409, "AlreadyExists", None));
    for path in ["tokens", "tokens/ci"] {
        let shown = app.get(path).await;
        assert!(shown.status == 200 && !String::from_utf8_lossy(&shown.body).contains(&text), "{path}");
    }
    let kept = std::fs::read(app.folder.path().join("sless.db-wal")).unwrap_or_default();
    assert!(!kept.windows(text.len()).any(|part| part == text.as_bytes()), "only its hash is kept");
    let me = ask(&app, "GET", "/v1/whoami", Some(&text)).await.json();
    assert_eq!(me, json!({"namespace": "default", "subject": "ci", "role": "deployer"}));

    let short =
        app.api("POST", "tokens", json!({"name": "s", "role": "viewer", "expires_in_sec": 1.0})).await.json();
    assert!(short["expires_at"].is_string(), "{short}");
    let short = short["token"].as_str().unwrap().to_owned();
    assert_eq!(ask(&app, "GET", "/v1/whoami", Some(&short)).await.status, 200);
    app.until(async || ask(&app, "GET", "/v1/whoami", Some(&short)).await.status == 401).await;
    // It is still listed, and frees its name.
    let old = app.get("tokens/s").await;
    assert_eq!((old.status, old.json()["role"].as_str()), (200, Some("viewer")));
    let next = app.api("POST", "tokens", json!({"name": "s", "role": "invoker"})).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert_ne!(next.headers["etag"], old.headers["etag"]);
    assert_eq!(ask(&app, "GET", "/v1/whoami", Some(&short)).await.status, 401);

    assert_eq!(app.api("DELETE", "tokens/ci", Value::Null).await.status, 204);
    assert_eq!(ask(&app, "GET", "/v1/whoami", Some(&text)).await.status, 401);
    assert_eq!(app.api("DELETE", "tokens/ci", Value::Null).await.status, 404);
}

#[tokio::test]
async fn an_answer_has_the_id_of_its_request() {
    let app = TestApp::start().await;
    let own = ask(&app, "GET", "/v1/whoami", None).await;
    assert_eq!(own.headers["x-request-id"].len(), 36);
    let given = app.request("GET", "/v1/whoami").header("x-request-id", "of-the-caller");
    let given = app.send(given.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!((given.status, given.headers["x-request-id"].to_str().unwrap()), (200, "of-the-caller"));
}

#[tokio::test]
async fn tokens_are_there_again_after_a_restart() {
    let app = TestApp::start().await;
    let viewer = token(&app, "default", "v", "viewer").await;
    let app = app.restart().await;
    assert_eq!(ask(&app, "GET", "/v1/namespaces/default/functions", Some(&viewer)).await.status, 200);
    app.server.unwrap().shutdown().await;
}

#[tokio::test]
async fn odd_tokens_are_refused_by_their_field() {
    let app = TestApp::start().await;
    for (body, field) in [
        (json!({"role": "viewer"}), "name"),
        (json!({"name": "A", "role": "viewer"}), "name"),
        (json!({"name": "t"}), "role"),
        (json!({"name": "t", "role": "king"}), "role"),
        (json!({"name": "t", "role": "viewer", "ttl": 1}), "ttl"),
        (json!({"name": "t", "role": "viewer", "expires_in_sec": 0}), "expires_in_sec"),
        (json!({"name": "t", "role": "viewer", "expires_in_sec": "1"}), "expires_in_sec"),
        (json!({"name": "t", "role": "viewer", "expires_in_sec": 1e30}), "expires_in_sec"),
    ] {
        assert_eq!(app.api("POST", "tokens", body).await.problem(), problem(400, "Invalid", Some(field)));
    }
    assert_eq!(app.get("tokens").await.json()["items"], json!([]));
}
