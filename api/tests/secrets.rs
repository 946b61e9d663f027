//! Secrets: what goes in never comes out, but to the workers of the functions that name it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

mod support;

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use sless_backend::Secret;
use support::{TestApp, function, problem, zip};

async fn put(app: &TestApp, name: &str, data: Value) -> u16 {
    app.api("PUT", &format!("secrets/{name}"), json!({"data": data})).await.status
}

fn given(app: &TestApp) -> Option<BTreeMap<String, Secret>> {
    app.backend.spec(&function("f")).map(|spec| spec.wanted.secrets)
}

fn values(pairs: &[(&str, &str)]) -> Option<BTreeMap<String, Secret>> {
    Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), Secret::new(*value))).collect())
}

#[tokio::test]
async fn values_are_kept_encrypted_and_never_given_back() {
    let app = TestApp::start().await;
    assert_eq!(put(&app, "db", json!({"PASSWORD": "s3cr3t-value", "A": "b"})).await, 201);
    assert_eq!(put(&app, "db", json!({"PASSWORD": "s3cr3t-value2", "A": "b"})).await, 200);
    let shown = app.get("secrets/db").await;
    let json = shown.json();
    assert_eq!((&json["name"], &json["keys"]), (&json!("db"), &json!(["A", "PASSWORD"])));
    assert!(json.get("data").is_none() && shown.headers.contains_key("etag"));
    assert_eq!(app.get("secrets").await.json(), json!({"items": [json], "next": null}));
    app.server.unwrap().shutdown().await;
    for file in ["sless.db", "sless.db-wal"] {
        let kept = std::fs::read(app.folder.path().join(file)).unwrap_or_default();
        assert!(!kept.windows(12).any(|part| part == b"s3cr3t-value"), "{file}");
    }
}

#[tokio::test]
async fn a_function_gets_the_values_of_today() {
    let app = TestApp::start().await;
    let refused =
        app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11", "secrets": ["db"]})).await;
    assert_eq!(refused.problem(), problem(400, "Invalid", Some("secrets")));
    put(&app, "db", json!({"A": "1", "B": "2"})).await;
    put(&app, "more", json!({"B": "3"})).await;
    let made = app
        .api("POST", "functions", json!({"name": "f", "runtime": "python3.11", "secrets": ["db", "more"]}))
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    app.upload("f", zip(&[("handler.py", "x")])).await;
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    let revision = app.get("functions/f").await.json()["revision"].clone();
    assert_eq!(given(&app), values(&[("A", "1"), ("B", "3")]), "the later one counts");

    // A change reaches it, and is not told as done before it is.
    app.backend.hold();
    put(&app, "db", json!({"A": "new"})).await;
    assert_ne!(app.get("functions/f").await.json()["phase"], "Ready");
    app.until(async || given(&app) == values(&[("A", "new"), ("B", "3")])).await;
    app.backend.release();
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    assert_eq!(app.get("functions/f").await.json()["revision"], revision, "no new revision");

    // The same values again change nothing.
    let before = app.get("functions/f").await.headers["etag"].clone();
    put(&app, "db", json!({"A": "new"})).await;
    assert_eq!(app.get("functions/f").await.headers["etag"], before);

    let app = app.restart().await;
    app.until(async || given(&app) == values(&[("A", "new"), ("B", "3")])).await;
}

#[tokio::test]
async fn what_is_named_stays() {
    let app = TestApp::start().await;
    put(&app, "db", json!({"A": "1"})).await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11", "secrets": ["db"]})).await;
    let kept = app.api("DELETE", "secrets/db", Value::Null).await;
    assert_eq!(kept.problem(), problem(409, "Conflict", None));
    assert!(kept.json()["detail"].as_str().unwrap().contains("\"f\""));
    assert_eq!(app.api("PATCH", "functions/f", json!({"secrets": null})).await.status, 200);
    assert_eq!(app.api("DELETE", "secrets/db", Value::Null).await.status, 204);
    assert_eq!(app.api("DELETE", "secrets/db", Value::Null).await.problem(), problem(404, "NotFound", None));
    let refused = app.api("PATCH", "functions/f", json!({"secrets": ["db"]})).await;
    assert_eq!(refused.problem(), problem(400, "Invalid", Some("secrets")));
}

#[tokio::test]
async fn odd_secrets_are_refused_by_their_field() {
    let app = TestApp::start().await;
    put(&app, "s", json!({"A": "b"})).await;
    for (path, body, field) in [
        ("secrets/s", json!({}), "data"),
        ("secrets/s", json!({"data": {"A=B": "x"}}), "data"),
        ("secrets/s", json!({"data": {"A": 1}}), "data.A"),
        ("secrets/s", json!({"data": {"SLESS_X": "1"}}), "data"),
        ("secrets/s", json!({"values": {}}), "values"),
        ("secrets/s", json!({"name": "t", "data": {}}), "name"),
        ("secrets/S", json!({"data": {}}), "name"),
    ] {
        let answer = app.api("PUT", path, body.clone()).await;
        assert_eq!(answer.problem(), problem(400, "Invalid", Some(field)), "{body}");
    }
    // A write on a condition.
    let now = app.get("secrets/s").await.headers["etag"].to_str().unwrap().to_owned();
    for (tag, status) in [("\"7\"", 412), (now.as_str(), 200)] {
        let body = Full::new(Bytes::from(r#"{"data": {"A": "c"}}"#));
        let answer =
            app.send(app.request("PUT", "secrets/s").header("if-match", tag).body(body).unwrap()).await;
        assert_eq!(answer.status, status, "{tag}");
    }
    let body = Full::new(Bytes::from(r#"{"data": {}}"#));
    let none = app.send(app.request("PUT", "secrets/none").header("if-match", "*").body(body).unwrap()).await;
    assert_eq!(none.problem(), problem(412, "Conflict", None));
}

#[tokio::test]
async fn with_another_key_a_function_says_what_is_wrong_until_the_secret_is_set_anew() {
    let app = TestApp::start().await;
    put(&app, "db", json!({"A": "1"})).await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11", "secrets": ["db"]})).await;
    std::fs::remove_file(app.folder.path().join("secrets.key")).unwrap();
    let app = app.restart().await;
    app.upload("f", zip(&[("handler.py", "x")])).await;
    app.until(async || {
        let f = app.get("functions/f").await.json();
        f["phase"] == "Pending" && f["message"].as_str().is_some_and(|m| m.contains("\"db\""))
    })
    .await;
    assert_eq!(put(&app, "db", json!({"A": "1"})).await, 200);
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    assert_eq!(given(&app), values(&[("A", "1")]));
    assert!(app.get("functions/f").await.json()["message"].is_null());
}
