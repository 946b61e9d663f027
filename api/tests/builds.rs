//! Logs of builds: those of the backend, and those that are handed in when a build is over.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use sless_backend::fake::FakeBackend;
use sless_backend::{Backend, LogLine};
use support::{Answer, TestApp, function, problem, zip};

async fn built() -> TestApp {
    let app = TestApp::start().await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    app.upload("f", zip(&[("handler.py", "def handle(e): pass\n")])).await;
    app.until(async || app.get("functions/f/build").await.status == 200).await;
    app
}

fn line(text: &str) -> LogLine {
    LogLine { time: "2026-01-01T00:00:00Z".into(), stream: "stdout".into(), text: text.into() }
}

async fn hand_in(app: &TestApp, path: &str, token: &str, body: String) -> Answer {
    let request = Request::post(format!("/internal/v1/builds/{path}"))
        .header("host", "api")
        .header("authorization", format!("Bearer {token}"));
    app.send_report(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

fn ndjson(texts: &[&str]) -> String {
    texts.iter().map(|text| serde_json::to_string(&line(text)).unwrap() + "\n").collect()
}

#[tokio::test]
async fn a_log_that_was_handed_in_is_given_once_the_backend_has_it_no_longer() {
    let app = built().await;
    let name = app.backend.build(&function("f")).unwrap().name;
    let path = "functions/f/build/logs";
    assert_eq!(app.get(path).await.body, "");
    let kept =
        hand_in(&app, &format!("default/f/{name}"), FakeBackend::CONTROLLER_TOKEN, ndjson(&["a", "b"])).await;
    assert_eq!((kept.status, kept.json()), (200, json!({"refused": 0})));
    assert_eq!(app.get(path).await.body, "a\nb\n");
    assert_eq!(app.get("functions/f/build/logs?follow=true").await.body, "a\nb\n");
    app.backend.write_log(&function("f"), vec![line("fresh")]);
    assert_eq!(app.get(path).await.body, "fresh\n", "the backend's own comes first");
}

#[tokio::test]
async fn only_the_controller_hands_in_logs_and_only_functions_their_records() {
    let app = built().await;
    let of_function = FakeBackend::report_token(&function("f"));
    for (path, token, answer) in [
        ("default/f/b-1", of_function.as_str(), problem(403, "Forbidden", None)),
        ("default/f/b-1", "nobody", problem(401, "Unauthorized", None)),
        ("default/f", FakeBackend::CONTROLLER_TOKEN, problem(404, "NotFound", None)),
        ("default/../b-1", FakeBackend::CONTROLLER_TOKEN, problem(404, "NotFound", None)),
    ] {
        assert_eq!(hand_in(&app, path, token, ndjson(&["a"])).await.problem(), answer, "{path}");
    }
    let request = Request::post("/internal/v1/reports").header("host", "api");
    let request = request.header("authorization", format!("Bearer {}", FakeBackend::CONTROLLER_TOKEN));
    let refused = app.send_report(request.body(Full::default()).unwrap()).await;
    assert_eq!(refused.problem(), problem(403, "Forbidden", None));
    assert_eq!(app.api("POST", "/internal/v1/builds/default/f/b-1", Value::Null).await.status, 404);
}
