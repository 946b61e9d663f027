//! What an http trigger says: methods, browsers of other origins, a host of its own; and writes of several at the same time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use support::{Answer, Supervisor, TestApp, exchange, problem};

async fn call(app: &TestApp, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "test");
    }
    app.send(request.body(Full::<Bytes>::default()).unwrap()).await
}

async fn app() -> (TestApp, Supervisor) {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("echo", &echo).await;
    (app, echo)
}

fn text<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_trigger_is_shown_with_all_of_its_fields_and_can_be_put_back() {
    let (app, _echo) = app().await;
    let made = app.get("triggers/echo").await.json();
    assert_eq!((&made["host"], &made["methods"], &made["cors"]), (&Value::Null, &json!([]), &Value::Null));
    let wish = json!({"host": "shop.example.org", "methods": ["GET", "POST"], "cors": {"origins": ["*"], "max_age_sec": 7}});
    let changed = app.api("PATCH", "triggers/echo", wish).await;
    let shown = changed.json();
    assert_eq!(
        shown["cors"],
        json!({"origins": ["*"], "methods": ["*"], "headers": ["*"], "max_age_sec": 7})
    );
    let port = app.server.as_ref().unwrap().local_addr().port();
    assert_eq!(shown["url"], format!("http://shop.example.org:{port}"));
    let back = app.api("PUT", "triggers/echo", shown.clone()).await;
    let mut put = back.json();
    put["updated_at"] = shown["updated_at"].clone();
    assert_eq!((back.status, put), (200, shown));
    let patched =
        app.api("PATCH", "triggers/echo", json!({"cors": {"max_age_sec": null}, "host": null})).await.json();
    assert_eq!((&patched["cors"]["max_age_sec"], &patched["host"]), (&json!(600), &Value::Null));
    assert_eq!(app.api("PATCH", "triggers/echo", json!({"cors": null})).await.json()["cors"], Value::Null);
    let app = app.restart().await;
    assert_eq!(app.get("triggers/echo").await.json()["methods"], json!(["GET", "POST"]));
}

#[tokio::test]
async fn what_is_wrong_with_a_trigger_is_named() {
    let (app, _echo) = app().await;
    for (body, field) in [
        (json!({"methods": ["get"]}), "methods"),
        (json!({"host": "localhost"}), "host"),
        (json!({"cors": {"origins": []}}), "cors.origins"),
        (json!({"cors": {"origins": ["*"], "max_age_sec": -1}}), "cors.max_age_sec"),
        (json!({"cors": {"origins": ["*"], "x": 1}}), "cors.x"),
        (json!({"type": "mail"}), "type"),
        (json!({"enabled": "yes"}), "enabled"),
        (json!({"hosts": []}), "hosts"),
    ] {
        let answer = app.api("PATCH", "triggers/echo", body.clone()).await;
        assert_eq!(answer.problem(), problem(400, "Invalid", Some(field)), "{body}");
    }
}

#[tokio::test]
async fn another_method_is_405_with_those_that_are_taken() {
    let (app, _echo) = app().await;
    app.api("PATCH", "triggers/echo", json!({"methods": ["POST", "PUT"]})).await;
    for (method, status) in [("POST", 207), ("PUT", 207), ("GET", 405), ("HEAD", 405), ("OPTIONS", 405)] {
        let answer = call(&app, method, "/fn/default/echo/x", &[]).await;
        assert_eq!(answer.status, status, "{method}");
        if status == 405 {
            assert_eq!(text(&answer, "allow"), Some("POST, PUT"));
            assert!(method == "HEAD" || answer.problem() == problem(405, "MethodNotAllowed", None));
        }
    }
    // Each trigger lets in what it takes; with a token any method goes.
    app.api(
        "POST",
        "triggers",
        json!({"name": "more", "type": "http", "function": "echo", "methods": ["GET"]}),
    )
    .await;
    assert_eq!(call(&app, "GET", "/fn/default/echo", &[]).await.status, 207);
    assert_eq!(app.api("DELETE", "functions/echo/invoke", Value::Null).await.status, 207);
    app.api("PATCH", "triggers/more", json!({"enabled": false})).await;
    assert_eq!(call(&app, "GET", "/fn/default/echo", &[]).await.status, 405);
}

#[tokio::test]
async fn browsers_are_answered_as_the_cors_block_says() {
    let (app, echo) = app().await;
    let question = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "content-type"),
    ];
    let plain = call(&app, "OPTIONS", "/fn/default/echo", &question).await;
    assert_eq!(
        (plain.status, text(&plain, "access-control-allow-origin")),
        (207, None),
        "it is the function's to answer"
    );
    app.api("PATCH", "triggers/echo", json!({"cors": {"origins": ["https://a.example"], "max_age_sec": 5}}))
        .await;
    echo.kill();
    let told = call(&app, "OPTIONS", "/fn/default/echo", &question).await;
    assert_eq!(told.status, 204, "without the function");
    assert_eq!(text(&told, "access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(text(&told, "access-control-allow-methods"), Some("PUT"));
    assert_eq!(text(&told, "access-control-allow-headers"), Some("content-type"));
    assert_eq!(text(&told, "access-control-max-age"), Some("5"));
    let other =
        call(&app, "OPTIONS", "/fn/default/echo", &[("origin", "https://b.example"), question[1]]).await;
    assert_eq!((other.status, text(&other, "access-control-allow-origin")), (204, None));
    let lost = call(&app, "GET", "/fn/default/echo", &question[..1]).await;
    assert_eq!(
        (lost.status, text(&lost, "access-control-allow-origin")),
        (502, Some("https://a.example")),
        "a page may read why"
    );
    let again = Supervisor::echo();
    app.backend.serve(&support::function("echo"), vec![again.endpoint.clone()]);
    let got = call(&app, "GET", "/fn/default/echo", &question[..1]).await;
    assert_eq!((got.status, text(&got, "access-control-allow-origin")), (207, Some("https://a.example")));
    assert_eq!((text(&got, "vary"), got.headers.get_all("set-cookie").iter().count()), (Some("origin"), 2));
}

#[tokio::test]
async fn a_host_of_its_own_leads_to_the_function_whatever_the_path() {
    let (app, _echo) = app().await;
    let nobody = call(&app, "GET", "/a/b", &[("host", "shop.example.org")]).await;
    assert_eq!(nobody.problem(), problem(404, "NotFound", None));
    app.api("PATCH", "triggers/echo", json!({"host": "shop.example.org", "methods": ["GET"]})).await;
    for host in ["shop.example.org", "SHOP.example.org:8080", "shop.example.org."] {
        let answer = call(&app, "GET", "/a%2Fb//c?x=%20&x", &[("host", host)]).await;
        assert_eq!((answer.status, &answer.json()["uri"]), (207, &json!("/a%2Fb//c?x=%20&x")), "{host}");
    }
    assert_eq!(call(&app, "GET", "http://shop.example.org/y", &[("host", "other")]).await.status, 207);
    assert_eq!(call(&app, "POST", "/", &[("host", "shop.example.org")]).await.status, 405);
    assert_eq!(call(&app, "GET", "/a", &[("host", "evil.shop.example.org")]).await.status, 404);
    // What is the host's own is never a trigger's.
    for (path, status) in [
        ("/v1/whoami", 401),
        ("/health", 200),
        ("/openapi.json", 200),
        ("/fn/default/none", 404),
        ("/fn/default/echo", 207),
    ] {
        assert_eq!(call(&app, "GET", path, &[("host", "shop.example.org")]).await.status, status, "{path}");
    }
    let taken = json!({"name": "t", "type": "http", "function": "echo", "host": "shop.example.org"});
    assert_eq!(app.api("POST", "triggers", taken).await.problem(), problem(409, "Conflict", Some("host")));
    app.api("PATCH", "triggers/echo", json!({"enabled": false})).await;
    assert_eq!(call(&app, "GET", "/a/b", &[("host", "shop.example.org")]).await.status, 404);
}

/// Writes `n` at once under one `ETag`; how many were done and how many were refused with 412.
async fn race(app: &TestApp, n: usize, method: &str, path: &str, tag: &str, body: &Value) -> (usize, usize) {
    let mut writes = tokio::task::JoinSet::new();
    for _ in 0..n {
        let request = app.request(method, path).header("if-match", tag);
        let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
        writes.spawn(exchange(TokioIo::new(app.connect().await), request));
    }
    let answers = writes.join_all().await;
    let count = |statuses: &[u16]| answers.iter().filter(|a| statuses.contains(&a.status)).count();
    // Who comes late to something that is gone finds nothing.
    assert_eq!(count(&[200, 202, 204, 404, 412]), n, "{answers:?}");
    (count(&[200, 202, 204]), n - count(&[200, 202, 204]))
}

#[tokio::test]
async fn of_writes_under_one_etag_one_is_done() {
    let (app, _echo) = app().await;
    app.api("PUT", "secrets/s", json!({"data": {"A": "0"}})).await;
    app.api("POST", "tokens", json!({"name": "t", "role": "viewer"})).await;
    let tag = async |path: &str| app.get(path).await.headers["etag"].to_str().unwrap().to_owned();
    let function = app.get("functions/echo").await.json();
    for (method, path, body) in [
        ("PATCH", "functions/echo", json!({"timeout_sec": 7})),
        ("PUT", "functions/echo", function),
        ("PATCH", "triggers/echo", json!({"enabled": true})),
        ("PUT", "triggers/echo", json!({"type": "http", "function": "echo"})),
        ("PUT", "secrets/s", json!({"data": {"A": "1"}})),
        ("DELETE", "triggers/echo", Value::Null),
        ("DELETE", "secrets/s", Value::Null),
        ("DELETE", "tokens/t", Value::Null),
    ] {
        let before = tag(path).await;
        assert_eq!(race(&app, 8, method, path, &before, &body).await, (1, 7), "{method} {path}");
    }
    // A deletion that was decided on an older state is not done, however quickly it follows.
    app.api("POST", "triggers", json!({"name": "echo", "type": "http", "function": "echo"})).await;
    for _ in 0..20 {
        let before = tag("triggers/echo").await;
        let remove =
            app.request("DELETE", "triggers/echo").header("if-match", &before).body(Full::default()).unwrap();
        let change = app.api("PATCH", "triggers/echo", json!({"enabled": true}));
        let (removed, changed) = tokio::join!(app.send(remove), change);
        match (removed.status, changed.status) {
            (202, 404) => {
                app.api("POST", "triggers", json!({"name": "echo", "type": "http", "function": "echo"}))
                    .await;
            }
            (412, 200) => assert_eq!(app.get("triggers/echo").await.status, 200),
            // The change was done first in one order of the two: the removal must not have been done after it.
            other => panic!("{other:?}"),
        }
    }
}
