//! Functions, triggers and uploads through the API.

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use support::{Supervisor, TOKEN, TestApp, function, problem, zip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn new(name: &str) -> Value {
    json!({"name": name, "runtime": "python3.11"})
}

#[tokio::test]
async fn a_function_is_made_shown_and_deleted() {
    let app = TestApp::start().await;
    let made = app
        .api(
            "POST",
            "functions",
            json!({"name": "f", "runtime": "nodejs20", "timeout_sec": 5, "env": {"A": "b"}}),
        )
        .await;
    assert_eq!(made.status, 201);
    let f = made.json();
    assert_eq!(
        (&f["namespace"], &f["timeout_sec"], &f["env"], &f["phase"]),
        (&json!("default"), &json!(5), &json!({"A": "b"}), &json!("Pending"))
    );
    assert!(
        f["url"].as_str().unwrap().ends_with("/fn/default/f")
            && f["revision"].is_null()
            && f["code_sha256"].is_null()
    );
    assert_eq!(app.api("POST", "functions", new("f")).await.problem(), problem(409, "AlreadyExists", None));
    assert_eq!(app.get("functions/f").await.json(), f);
    let deleted = app.api("DELETE", "functions/f", Value::Null).await;
    assert_eq!((deleted.status, &deleted.json()["phase"]), (202, &json!("Terminating")));
    app.until(async || app.get("functions/f").await.status == 404).await;
    assert_eq!(app.api("POST", "functions", new("f")).await.status, 201, "the name is free again");
}

#[tokio::test]
async fn put_back_what_get_gave_changes_nothing() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let before = app.get("functions/f").await;
    let again = app.api("PUT", "functions/f", before.json()).await;
    let (mut old, mut new) = (before.json(), again.json());
    old["updated_at"].take();
    new["updated_at"].take();
    assert_eq!((again.status, new), (200, old));
    assert_ne!(before.headers["etag"], again.headers["etag"], "it was a write all the same");
}

#[tokio::test]
async fn a_patch_merges_and_null_gives_the_default() {
    let app = TestApp::start().await;
    app.api(
        "PUT",
        "functions/f",
        json!({"runtime": "python3.11", "timeout_sec": 7, "env": {"A": "1", "B": "2"}}),
    )
    .await;
    let merged = app
        .api("PATCH", "functions/f", json!({"env": {"A": null, "C": "3"}, "labels": {"team": "x"}}))
        .await
        .json();
    assert_eq!((&merged["env"], &merged["timeout_sec"]), (&json!({"B": "2", "C": "3"}), &json!(7)));
    assert_eq!(app.api("PATCH", "functions/f", json!({"timeout_sec": null})).await.json()["timeout_sec"], 30);
    assert_eq!(
        app.api("PATCH", "functions/f", json!({"runtime": "nodejs20"})).await.problem(),
        problem(400, "Invalid", Some("runtime"))
    );
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let app = TestApp::start().await;
    app.api("POST", "functions", new("f")).await;
    for (method, path, body, field) in [
        ("POST", "functions", json!({"name": "Bad_Name", "runtime": "python3.11"}), "name"),
        ("POST", "functions", json!({"runtime": "python3.11"}), "name"),
        ("POST", "functions", json!({"name": "g"}), "runtime"),
        ("POST", "functions", json!({"name": "g", "runtime": "python2"}), "runtime"),
        ("POST", "functions", json!({"name": "g", "runtime": "python3.11", "timout_sec": 5}), "timout_sec"),
        ("POST", "functions", json!({"name": "g", "runtime": "python3.11", "retry.on": []}), "retry.on"),
        ("POST", "functions", json!({"name": "g", "runtime": "python3.11", "secrets": ["none"]}), "secrets"),
        ("PUT", "functions/f", json!({"runtime": "python3.11", "name": "g"}), "name"),
        ("PATCH", "functions/f", json!({"timeout_sec": -1}), "timeout_sec"),
        ("POST", "triggers", json!({"name": "t", "type": "htp", "function": "f"}), "type"),
        ("POST", "triggers", json!({"name": "t", "type": "http", "function": "nobody"}), "function"),
        ("POST", "triggers", json!({"name": "t", "type": "http", "function": "f", "enable": true}), "enable"),
        ("POST", "triggers", json!({"name": "t", "type": "http", "function": "f", "enabled": 1}), "enabled"),
    ] {
        assert_eq!(
            app.api(method, path, body.clone()).await.problem(),
            problem(400, "Invalid", Some(field)),
            "{method} {path} {body}"
        );
    }
    for body in ["{", "[]", "\"x\"", ""] {
        let answer =
            app.send(app.request("POST", "functions").body(Full::new(Bytes::from(body))).unwrap()).await;
        assert_eq!(answer.problem(), problem(400, "Invalid", None), "{body:?}");
    }
}

#[tokio::test]
async fn a_write_over_another_version_is_refused() {
    let app = TestApp::start().await;
    let tag = app.api("POST", "functions", new("f")).await.headers["etag"].clone();
    let write = async |method: &str, tag: &http::HeaderValue, body: &str| {
        let request = app.request(method, "functions/f").header("if-match", tag);
        app.send(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await
    };
    assert_eq!(write("PATCH", &tag, r#"{"labels":{"a":"b"}}"#).await.status, 200);
    for method in ["PATCH", "PUT", "DELETE"] {
        assert_eq!(
            write(method, &tag, r#"{"runtime":"python3.11"}"#).await.problem(),
            problem(412, "Conflict", None),
            "{method}"
        );
    }
    let wrong = app.request("PATCH", "functions/f").header("if-match", "");
    let wrong = app.send(wrong.body(Full::new(Bytes::from(r#"{"workers": "x"}"#))).unwrap()).await;
    assert_eq!(wrong.problem(), problem(400, "Invalid", Some("workers")), "wrong whatever the version");
    let now = app.get("functions/f").await.headers["etag"].clone();
    assert_eq!(write("DELETE", &now, "").await.status, 202);
}

#[tokio::test]
async fn lists_are_newest_first_and_paged() {
    let app = TestApp::start().await;
    for name in ["c", "z", "a", "m"] {
        app.api("POST", "functions", new(name)).await;
        app.api("POST", "triggers", json!({"name": name, "type": "http", "function": "c"})).await;
    }
    app.api("PATCH", "functions/z", json!({"labels": {"a": "b"}})).await;
    for kind in ["functions", "triggers"] {
        let first = app.get(&format!("{kind}?limit=3")).await.json();
        app.api("POST", kind, json!({"name": format!("new-{}", &kind[..1]), "runtime": "python3.11"})).await;
        let second =
            app.get(&format!("{kind}?limit=3&cursor={}", first["next"].as_str().unwrap())).await.json();
        let names: String = [&first, &second]
            .iter()
            .flat_map(|p| p["items"].as_array().unwrap())
            .map(|i| i["name"].as_str().unwrap())
            .collect();
        assert_eq!((names.as_str(), &second["next"]), ("mazc", &Value::Null), "{kind}");
        for (query, field) in [("cursor=nonsense", "cursor"), ("limit=0", "limit"), ("limit=x", "limit")] {
            assert_eq!(
                app.get(&format!("{kind}?{query}")).await.problem(),
                problem(400, "Invalid", Some(field))
            );
        }
    }
}

#[tokio::test]
async fn phase_tells_of_the_newest_change_as_soon_as_it_is_written() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let before = app.get("functions/f").await.json();
    app.backend.hold();
    let changed = app.api("PATCH", "functions/f", json!({"timeout_sec": 1})).await.json();
    assert_eq!((&changed["phase"], &changed["revision"]), (&json!("Pending"), &before["revision"]));
    app.until(async || app.backend.spec(&function("f")).unwrap().wanted.settings.timeout_sec.get() == 1.0)
        .await;
    assert_eq!(app.get("functions/f").await.json()["phase"], "Pending");
    app.backend.release();
    let after = app.get("functions/f").await.json();
    assert_eq!((&after["phase"], &after["code_sha256"]), (&json!("Ready"), &before["code_sha256"]));
    assert_ne!(after["revision"], before["revision"]);
}

#[tokio::test]
async fn a_label_makes_no_revision_and_the_settings_of_before_make_that_of_before() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let first = app.get("functions/f").await.json()["revision"].clone();
    app.api("PATCH", "functions/f", json!({"labels": {"a": "b"}})).await;
    let ready = async || app.get("functions/f").await.json()["phase"] == "Ready";
    app.until(ready).await;
    assert_eq!(app.get("functions/f").await.json()["revision"], first);
    app.api("PATCH", "functions/f", json!({"env": {"A": "b"}})).await;
    app.until(ready).await;
    assert_ne!(app.get("functions/f").await.json()["revision"], first);
    app.api("PATCH", "functions/f", json!({"env": {"A": null}})).await;
    app.until(ready).await;
    assert_eq!(app.get("functions/f").await.json()["revision"], first);
}

#[tokio::test]
async fn the_same_content_zipped_otherwise_is_the_same_revision() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let before = app.get("functions/f").await.json();
    let other = zip(&[("./handler.py", "def handle(e): pass\n")]);
    let sha = app.upload("f", other).await.json()["code_sha256"].clone();
    assert_ne!(sha, before["code_sha256"]);
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    let after = app.get("functions/f").await.json();
    assert_eq!(
        (&after["revision"], &after["content_sha256"], &after["code_sha256"]),
        (&before["revision"], &before["content_sha256"], &sha)
    );
}

#[tokio::test]
async fn a_revision_that_does_not_load_leaves_the_one_before() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let good = app.get("functions/f").await.json();
    app.api("PATCH", "functions/f", json!({"entrypoint": "handler.broken"})).await;
    app.until(async || app.get("functions/f").await.json()["phase"] == "Failed").await;
    let bad = app.get("functions/f").await.json();
    assert_eq!((&bad["revision"], &bad["code_sha256"]), (&good["revision"], &good["code_sha256"]));
    assert!(bad["message"].as_str().is_some_and(|m| !m.is_empty()));
    let app = app.restart().await;
    app.until(async || app.backend.spec(&function("f")).is_some()).await;
    let spec = app.backend.spec(&function("f")).unwrap();
    assert_eq!(
        spec.serving.unwrap().name,
        good["revision"].as_str().unwrap(),
        "what answered comes back after a restart"
    );
    assert_ne!(spec.wanted.name, good["revision"].as_str().unwrap());
}

#[tokio::test]
async fn a_zip_that_is_no_good_is_refused_and_changes_nothing() {
    let app = TestApp::start().await;
    app.api("POST", "functions", new("f")).await;
    for (body, says) in [
        (zip(&[("main.py", "x = 1\n")]), "handler.py"),
        (b"not a zip".to_vec(), "zip"),
        (Vec::new(), ""),
        (zip(&[]), "empty"),
    ] {
        let answer = app.upload("f", body).await;
        assert_eq!(answer.problem(), problem(400, "Invalid", None));
        assert!(answer.json()["detail"].as_str().unwrap().contains(says), "{answer:?}");
    }
    let f = app.get("functions/f").await.json();
    assert_eq!((&f["phase"], &f["code_sha256"]), (&json!("Pending"), &Value::Null));
    assert_eq!(
        app.upload("nobody", zip(&[("handler.py", "")])).await.problem(),
        problem(404, "NotFound", None)
    );
}

#[tokio::test]
async fn an_upload_may_be_a_form_and_may_not_be_too_large() {
    let app = TestApp::start().await;
    app.api("POST", "functions", new("f")).await;
    let zipped = zip(&[("handler.py", "def handle(e): pass\n")]);
    let mut form = b"--m\r\ncontent-disposition: form-data; name=\"note\"\r\n\r\nx\r\n--m\r\ncontent-disposition: form-data; name=\"file\"; filename=\"c.zip\"\r\n\r\n".to_vec();
    form.extend_from_slice(&zipped);
    form.extend_from_slice(b"\r\n--m--\r\n");
    let request =
        app.request("POST", "functions/f/upload").header("content-type", "multipart/form-data; boundary=m");
    let answer = app.send(request.body(Full::new(form.into())).unwrap()).await;
    assert_eq!((answer.status, answer.json()), (202, app.upload("f", zipped).await.json()));
    let large = format!(
        "POST /v1/namespaces/default/functions/f/upload HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    );
    for head in [
        format!("{large}content-length: {}\r\n\r\n", (1 << 20) + 1),
        format!("{large}transfer-encoding: chunked\r\n\r\n100001\r\n{}", " ".repeat(0x0010_0001)),
    ] {
        let mut stream = app.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 413");
    }
}

#[tokio::test]
async fn everything_is_wished_for_again_after_a_restart() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    app.api("POST", "functions", new("empty")).await;
    let before = app.get("functions/f").await.json();
    let app = app.restart().await;
    app.backend.serve(&function("f"), vec![echo.endpoint.clone()]);
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    let after = app.get("functions/f").await.json();
    assert_eq!((&after["revision"], &after["created_at"]), (&before["revision"], &before["created_at"]));
    assert_eq!(app.api("GET", "/fn/default/f", Value::Null).await.status, 207);
    assert_eq!(app.get("functions/empty").await.json()["phase"], "Pending");
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let app = TestApp::start().await;
    for path in
        ["/v1/whoami", "/v1/namespaces/default/functions", "/v1/namespaces/default/functions/f/invoke"]
    {
        for value in [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic test-token")] {
            let mut request = Request::get(path).header("host", "x");
            if let Some(value) = value {
                request = request.header("authorization", value);
            }
            let answer = app.send(request.body(Full::default()).unwrap()).await;
            assert_eq!(answer.problem(), problem(401, "Unauthorized", None), "{path} {value:?}");
            assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        }
    }
    assert_eq!(
        app.get("/v1/whoami").await.json(),
        json!({"namespace": null, "subject": "API_TOKEN", "role": "admin"})
    );
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let app = TestApp::start().await;
    for path in [
        "/",
        "/v1/nothing",
        "/v1/namespaces/default/functions/a%ffb",
        "/v1/namespaces/kube-system/functions",
        "/fn/",
        "/fn/default",
        "/fn/default/nobody/x",
        "/v1/namespaces/default/functions/nobody/invoke",
        "/v1/namespaces/default/invocations/x",
    ] {
        assert_eq!(app.get(path).await.problem(), problem(404, "NotFound", None), "{path}");
    }
    assert_eq!(
        app.api("DELETE", "functions", Value::Null).await.problem(),
        problem(405, "MethodNotAllowed", None)
    );
}

#[tokio::test]
async fn health_and_metrics_are_open() {
    let app = TestApp::start().await;
    let metrics_of = Supervisor::start(|request| async move {
        assert_eq!(
            (request.uri().path(), request.headers()["x-sless-proxy-token"].as_bytes()),
            ("/metrics", &b"proxy-token"[..])
        );
        http::Response::new(support::text("sless_invocations_total 1\n"))
    });
    app.deploy("f", &metrics_of).await;
    for path in ["/health", "/ready", "/metrics", "/metrics/targets"] {
        let answer = app.send(Request::get(path).header("host", "x").body(Full::default()).unwrap()).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let text = String::from_utf8(app.get("/metrics").await.body.to_vec()).unwrap();
    for name in [
        "sless_api_requests_total{code=\"2xx\",part=\"api\"}",
        "sless_build_info{",
        "process_resident_memory_bytes",
        "sless_api_ingest_events_total{",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    let targets = app.get("/metrics/targets").await.json();
    let path = targets[0]["labels"]["__metrics_path__"].as_str().unwrap();
    assert_eq!(
        (path, app.get(path).await.body.as_ref()),
        ("/metrics/functions/default/f/0", &b"sless_invocations_total 1\n"[..])
    );
    assert_eq!(app.get("/metrics/functions/default/f/1").await.problem(), problem(404, "NotFound", None));
}

#[tokio::test]
async fn a_rollback_brings_back_code_and_settings_and_is_no_new_revision() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    let ready = async || app.get("functions/f").await.json()["phase"] == "Ready";
    let first = app.get("functions/f").await.json();
    app.api("PATCH", "functions/f", json!({"env": {"A": "b"}, "labels": {"a": "b"}})).await;
    app.upload("f", zip(&[("handler.py", "def handle(e): return 2\n")])).await;
    app.until(ready).await;
    let second = app.get("functions/f").await.json();
    let listed = async |query: &str| {
        let page = app.get(&format!("functions/f/revisions?{query}")).await.json();
        let items = page["items"].as_array().unwrap().iter();
        let names: Vec<_> = items.map(|r| (r["revision"].clone(), r["active"] == true)).collect();
        (names, page["next"].as_str().map(str::to_owned))
    };
    let (all, next) = listed("").await;
    assert_eq!(
        (all.len(), next, &all[0], &all[2]),
        (3, None, &(second["revision"].clone(), true), &(first["revision"].clone(), false))
    );
    let (page, next) = listed("limit=2").await;
    assert_eq!(
        (&page[..], &listed(&format!("limit=2&cursor={}", next.unwrap())).await.0[..]),
        (&all[..2], &all[2..])
    );

    let back = app.api("POST", "functions/f/rollback", json!({"revision": first["revision"]})).await;
    assert_eq!(
        (back.status, &back.json()["env"], &back.json()["labels"]),
        (202, &json!({}), &json!({"a": "b"}))
    );
    app.until(ready).await;
    let now = app.get("functions/f").await.json();
    assert_eq!((&now["revision"], &now["code_sha256"]), (&first["revision"], &first["code_sha256"]));
    assert_eq!(
        listed("").await.0.iter().map(|(_, active)| *active).collect::<Vec<_>>(),
        [false, false, true]
    );
    for (body, field) in [
        (json!({"revision": "none"}), Some("revision")),
        (json!({}), Some("revision")),
        (json!({"rev": "x"}), Some("rev")),
    ] {
        let refused = app.api("POST", "functions/f/rollback", body).await;
        assert_eq!(refused.problem(), problem(400, "Invalid", field));
    }
    let stale = app.request("POST", "functions/f/rollback").header("if-match", "\"1\"");
    let body = Bytes::from(json!({"revision": first["revision"]}).to_string());
    assert_eq!(
        app.send(stale.body(Full::new(body)).unwrap()).await.problem(),
        problem(412, "Conflict", None)
    );
}

#[tokio::test]
async fn the_last_build_is_shown() {
    let app = TestApp::start().await;
    app.api("POST", "functions", new("f")).await;
    for path in
        ["functions/f/build", "functions/f/build/logs", "functions/none/build", "functions/none/revisions"]
    {
        assert_eq!(app.get(path).await.problem(), problem(404, "NotFound", None), "{path}");
    }
    app.upload("f", zip(&[("handler.py", "def handle(e): pass\n")])).await;
    app.until(async || app.get("functions/f/build").await.status == 200).await;
    let build = app.get("functions/f/build").await.json();
    assert_eq!((&build["phase"], &build["message"]), (&json!("Ready"), &Value::Null));
    assert!(build["started_at"].is_string() && build["finished_at"].is_string());
    for path in ["functions/f/build/logs", "functions/f/build/logs?follow=true"] {
        let request = app.request("GET", path).header("accept", "application/json").body(Full::default());
        assert_eq!(app.send(request.unwrap()).await.json(), json!({"items": [], "next": null}), "{path}");
    }
}

#[tokio::test]
async fn a_revision_whose_secret_is_gone_is_not_gone_back_to() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    app.api("PUT", "secrets/s", json!({"data": {"KEY": "value"}})).await;
    let ready = async || app.get("functions/f").await.json()["phase"] == "Ready";
    app.api("PATCH", "functions/f", json!({"secrets": ["s"]})).await;
    app.until(ready).await;
    let named = app.get("functions/f").await.json()["revision"].clone();
    app.api("PATCH", "functions/f", json!({"secrets": []})).await;
    app.until(ready).await;
    assert_eq!(app.api("DELETE", "secrets/s", Value::Null).await.status, 204);
    let refused = app.api("POST", "functions/f/rollback", json!({"revision": named})).await;
    assert_eq!(refused.problem(), problem(400, "Invalid", Some("revision")));
    assert!(refused.json()["detail"].as_str().unwrap().contains("\"s\""), "{refused:?}");
}
