//! The API where somebody else keeps the definitions and does what they say, as on a cluster.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use sless_api::Platform;
use sless_backend::fake_definitions::FakeDefinitions;
use sless_backend::{Backend, CodeStore, Definitions, Endpoint};
use sless_core::FunctionSettings;
use support::{Supervisor, TestApp, function, problem, zip};

async fn cluster() -> (TestApp, Arc<FakeDefinitions>) {
    let definitions = Arc::new(FakeDefinitions::default());
    let given = definitions.clone();
    let app =
        TestApp::start_on(|backend, code| Platform::Cluster { definitions: given, backend, code }).await;
    (app, definitions)
}

#[tokio::test]
async fn a_write_is_a_definition_and_nothing_is_brought_to_the_backend() {
    let (app, definitions) = cluster().await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    let uploaded = app.upload("f", zip(&[("handler.py", "def handle(e): pass\n")])).await;
    assert_eq!(uploaded.status, 202, "{uploaded:?}");
    let row = definitions.function(&function("f")).await.unwrap().unwrap();
    let revision = definitions.revision(&row, row.wanted.as_deref().unwrap()).await.unwrap().unwrap();
    assert_eq!(uploaded.json()["code_sha256"], revision.code.sha256.to_string());
    assert_eq!(app.code.list(&function("f")).await.unwrap(), [revision.code.sha256]);
    assert_eq!(app.api("DELETE", "functions/f", Value::Null).await.status, 202);
    assert_eq!(app.get("functions/f").await.json()["phase"], "Terminating");
    definitions.finish(&function("f"));
    assert_eq!(app.get("functions/f").await.status, 404);
    assert_eq!(app.backend.status(&function("f")), None, "all of it is the controller's to do");
    assert_eq!(app.code.list(&function("f")).await.unwrap(), [revision.code.sha256], "the code as well");
}

#[tokio::test]
async fn what_others_change_is_seen() {
    let (app, definitions) = cluster().await;
    let echo = Supervisor::echo();
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    app.api("POST", "triggers", json!({"name": "t", "type": "http", "function": "f"})).await;
    app.backend.run(&function("f"), vec![echo.endpoint.clone()]);
    assert_eq!(app.get("/fn/default/f").await.status, 207);
    let (namespace, name) = ("default".parse().unwrap(), "t".parse().unwrap());
    definitions.change_behind(&namespace, &name, |row| row.wish.enabled = false);
    app.until(async || app.get("/fn/default/f").await.status == 404).await;
    definitions.change_behind(&namespace, &name, |row| {
        row.wish.enabled = true;
        row.trouble = Some("the host is another's".to_owned());
    });
    app.until(async || app.get("/fn/default/f").await.status == 207).await;
    let shown = app.get("triggers/t").await.json();
    assert_eq!((&shown["active"], &shown["message"]), (&json!(false), &json!("the host is another's")));
}

#[tokio::test]
async fn only_namespaces_that_are_there_for_it_are_written_to() {
    let (app, definitions) = cluster().await;
    definitions.keep_out_of(&"foreign".parse().unwrap());
    let at = |ns: &str, rest: &str| format!("/v1/namespaces/{ns}/{rest}");
    let body = json!({"name": "f", "runtime": "python3.11"});
    let refused = app.api("POST", &at("foreign", "functions"), body.clone()).await;
    assert_eq!(refused.problem(), problem(409, "Conflict", None));
    let secret = app.api("PUT", &at("foreign", "secrets/s"), json!({"data": {"A": "1"}})).await;
    assert_eq!(secret.problem(), problem(409, "Conflict", None));
    // A token of a namespace makes none; the admin's does.
    let token = app.api("POST", &at("team", "tokens"), json!({"name": "ci", "role": "admin"})).await.json();
    let bound = |ns: &str| {
        Request::post(at(ns, "functions"))
            .header("host", "test")
            .header("authorization", format!("Bearer {}", token["token"].as_str().unwrap()))
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap()
    };
    assert_eq!(app.send(bound("team")).await.status, 201);
}

#[tokio::test]
async fn code_is_kept_for_a_function_that_is_not_there_yet() {
    let (app, definitions) = cluster().await;
    let send = async |path: &str, zip: Vec<u8>| {
        app.send(app.request("POST", path).body(Full::new(zip.into())).unwrap()).await
    };
    // All in a folder of its own, which the handler's file tells.
    let packed = zip(&[("app/src/main.py", "def run(e): pass\n"), ("app/other.py", "")]);
    let path = "functions/later/code?runtime=python3.11&entrypoint=src/main.run";
    let kept = send(path, packed.clone()).await;
    assert_eq!(kept.status, 201, "{kept:?}");
    let source = kept.json();
    let sha256 = source["sha256"].as_str().unwrap();
    assert_eq!(source["key"], format!("default/later/{sha256}.zip"));
    assert_eq!(app.code.list(&function("later")).await.unwrap()[0].to_string(), sha256);
    assert_eq!(definitions.function(&function("later")).await.unwrap(), None);
    assert_eq!(send("functions/later/code", b"junk".to_vec()).await.problem(), problem(400, "Invalid", None));
    // The same as an upload of it says.
    let body = json!({"name": "later", "runtime": "python3.11", "entrypoint": "src/main.run"});
    app.api("POST", "functions", body).await;
    app.upload("later", packed).await;
    let row = definitions.function(&function("later")).await.unwrap().unwrap();
    let revision = &definitions.revisions(&row).await.unwrap()[0];
    assert_eq!(source["content_sha256"], revision.code.content_sha256.to_string());
}

#[tokio::test]
async fn while_the_definitions_are_away_it_is_not_ready_and_calls_go_on() {
    let (app, definitions) = cluster().await;
    let echo = Supervisor::echo();
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    app.api("POST", "triggers", json!({"name": "t", "type": "http", "function": "f"})).await;
    app.backend.run(&function("f"), vec![echo.endpoint.clone()]);
    definitions.be_away(true);
    definitions
        .change_behind(&"default".parse().unwrap(), &"t".parse().unwrap(), |row| row.wish.enabled = false);
    assert_eq!(app.get("/ready").await.problem(), problem(503, "Unavailable", None));
    assert_eq!(app.get("/fn/default/f").await.status, 207);
    definitions.be_away(false);
    assert_eq!(app.get("/ready").await.status, 200);
    app.until(async || app.get("/fn/default/f").await.status == 404).await;
}

#[tokio::test]
async fn a_function_that_sleeps_is_shown_as_one_that_will_answer() {
    let (app, _) = cluster().await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    app.upload("f", zip(&[("handler.py", "def handle(e): pass\n")])).await;
    app.backend.run(&function("f"), Vec::new());
    let shown = app.get("functions/f").await.json();
    let ready = shown["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(
        (&shown["phase"], &ready["status"], &ready["reason"]),
        (&json!("Ready"), &json!("True"), &json!("Asleep"))
    );
}

#[tokio::test]
async fn the_api_starts_while_the_cluster_is_away_and_reads_the_routes_later() {
    let definitions = Arc::new(FakeDefinitions::default());
    let (runtime, settings) = ("python3.11".parse().unwrap(), FunctionSettings::default());
    definitions.insert_function(&function("f"), &runtime, &settings).await.unwrap();
    definitions.be_away(true);
    let given = definitions.clone();
    let app =
        TestApp::start_on(|backend, code| Platform::Cluster { definitions: given, backend, code }).await;
    assert_eq!((app.get("/ready").await.status, app.get("functions/f/invoke").await.status), (503, 404));
    definitions.be_away(false);
    app.until(async || app.get("functions/f/invoke").await.status == 503).await;
}

#[tokio::test]
async fn pods_are_scraped_where_they_listen() {
    let (app, _) = cluster().await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    let pod =
        Endpoint::Tcp { addr: "10.1.2.3:8080".parse().unwrap(), admin: "10.1.2.3:9090".parse().unwrap() };
    app.backend.run(&function("f"), vec![pod]);
    let targets = app.get("/metrics/targets").await.json();
    let labels = json!({"__metrics_path__": "/metrics", "instance": "default/f/0"});
    assert_eq!(targets, json!([{"targets": ["10.1.2.3:9090"], "labels": labels}]));
}
