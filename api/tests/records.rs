//! Records: delivered as a supervisor does, read as a client does.

mod support;

use std::io::Write;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use sless_backend::fake::FakeBackend;
use support::{Events, Supervisor, TestApp, function, problem, recorder};

fn id(n: u32) -> String {
    format!("0193a000-0000-7000-8000-{n:012}")
}

fn started(n: u32) -> String {
    let time = format!("2026-01-01T00:00:{n:02}.000Z");
    json!({"v": 1, "invocation_id": id(n), "seq": 0, "type": "started", "time": time, "namespace": "x", "function": "x", "revision": "r1",
        "trigger": "http", "attempt": 1, "method": "PUT", "path": "/a", "pod": "p",
        "request": {"raw_query": "q=1", "headers": [["x", "y"]], "size": 3, "text": "a\u{0}b\u{fffd}", "truncated": false}})
    .to_string()
}

fn log(n: u32, seq: u32, texts: &[&str]) -> String {
    let lines: Vec<_> = texts
        .iter()
        .map(|t| json!({"time": "2026-01-01T00:00:00.500Z", "stream": "stdout", "text": t}))
        .collect();
    json!({"v": 1, "invocation_id": id(n), "seq": seq, "type": "log", "attempt": 1, "lines": lines})
        .to_string()
}

fn finished(n: u32, status: &str) -> String {
    let time = format!("2026-01-01T00:00:{n:02}.250Z");
    json!({"v": 1, "invocation_id": id(n), "seq": 9, "type": "finished", "time": time, "attempt": 1, "status": status, "http_status": 200,
        "duration_ms": 250.0, "queue_ms": 0.02, "init_ms": null, "cpu_ms": 1.1, "max_rss_bytes": 13_107_200,
        "result": {"content_type": "application/json", "size": 2, "text": "{}", "truncated": false},
        "error": if status == "success" { Value::Null } else { json!({"type": "E", "message": "m", "traceback": "t"}) },
        "log_bytes": 3, "log_dropped_bytes": 0})
    .to_string()
}

async fn app() -> (TestApp, Supervisor) {
    let (app, echo) = (TestApp::start().await, Supervisor::echo());
    app.deploy("f", &echo).await;
    (app, echo)
}

#[tokio::test]
async fn a_record_is_shown_as_its_events_told_it() {
    let (app, _echo) = app().await;
    let body =
        [started(1), log(1, 1, &["hi", "there"]), finished(1, "error"), log(1, 2, &["late"])].join("\n");
    let answer = app.report("f", body).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"refused": 0})));
    let record = app.get(&format!("invocations/{}", id(1))).await.json();
    assert_eq!(
        record["request"],
        json!({"method": "PUT", "path": "/a", "raw_query": "q=1", "headers": [["x", "y"]], "size": 3, "text": "a\u{0}b\u{fffd}", "truncated": false})
    );
    assert_eq!(
        (&record["status"], &record["http_status"], &record["duration_ms"], &record["attempt"]),
        (&json!("error"), &json!(200), &json!(250.0), &json!(1))
    );
    assert_eq!((&record["error"]["traceback"], &record["result"]["text"]), (&json!("t"), &json!("{}")));
    assert_eq!(
        (&record["started_at"], &record["finished_at"]),
        (&json!("2026-01-01T00:00:01.000000Z"), &json!("2026-01-01T00:00:01.250000Z"))
    );
    let plain = app.get(&format!("invocations/{}/logs", id(1))).await;
    assert_eq!(
        (plain.headers["content-type"].to_str().unwrap(), plain.body.as_ref()),
        ("text/plain; charset=utf-8", &b"hi\nthere\nlate\n"[..])
    );
    let request = app.request("GET", "functions/f/logs?tail=2").header("accept", "application/json");
    let lines = app.send(request.body(Full::default()).unwrap()).await.json();
    let line = |text: &str| json!({"invocation_id": id(1), "time": "2026-01-01T00:00:00.500Z", "stream": "stdout", "text": text});
    assert_eq!(lines, json!({"items": [line("there"), line("late")], "next": null}));
}

#[tokio::test]
async fn a_call_that_runs_is_shown_as_running() {
    let (app, _echo) = app().await;
    app.report("f", started(1)).await;
    let listed = app.get("functions/f/invocations?status=running").await.json();
    assert_eq!(
        (&listed["items"][0]["status"], &listed["items"][0]["finished_at"]),
        (&json!("running"), &Value::Null)
    );
    app.report("f", finished(1, "success")).await;
    assert_eq!(app.get("functions/f/invocations?status=running").await.json()["items"], json!([]));
}

#[tokio::test]
async fn the_history_is_paged_and_narrowed() {
    let (app, _echo) = app().await;
    app.report(
        "f",
        (1..=5)
            .map(|n| format!("{}\n{}", started(n), finished(n, if n == 3 { "error" } else { "success" })))
            .collect::<Vec<_>>()
            .join("\n"),
    )
    .await;
    let ids = async |query: &str| {
        let page = app.get(&format!("functions/f/invocations?{query}")).await.json();
        let ids: Vec<_> =
            page["items"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap().to_owned()).collect();
        (ids, page["next"].as_str().map(str::to_owned))
    };
    let (first, next) = ids("limit=2").await;
    app.report("f", started(9)).await;
    let (second, _) = ids(&format!("limit=2&cursor={}", next.unwrap())).await;
    assert_eq!([first, second].concat(), [id(5), id(4), id(3), id(2)]);
    assert_eq!(ids("status=error").await, (vec![id(3)], None));
    assert_eq!(ids("since=2026-01-01T00:00:04Z&until=2026-01-01T00:00:05Z").await.0, [id(4)]);
    assert_eq!(ids("trigger=cron").await, (vec![], None));
    for (query, field) in [
        ("since=yesterday", "since"),
        ("until=", "until"),
        ("status=sucess", "status"),
        ("trigger=", "trigger"),
        ("limit=0", "limit"),
        ("cursor=nonsense", "cursor"),
    ] {
        assert_eq!(
            app.get(&format!("functions/f/invocations?{query}")).await.problem(),
            problem(400, "Invalid", Some(field))
        );
    }
}

#[tokio::test]
async fn delivered_again_it_is_stored_once_and_bad_lines_block_nothing() {
    let (app, _echo) = app().await;
    let body = [started(1), "nonsense".into(), log(1, 1, &["hi"]), finished(1, "success")].join("\n");
    for _ in 0..3 {
        assert_eq!(app.report("f", body.clone()).await.json(), json!({"refused": 1}));
    }
    assert_eq!(app.get("functions/f/invocations").await.json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(app.get(&format!("invocations/{}/logs", id(1))).await.body, "hi\n");
}

/// The file is a stored batch: fields that are not there yet, some that are not there any more, a kind of event that is not known.
#[tokio::test]
async fn the_records_of_an_older_supervisor_are_taken() {
    let (app, _echo) = app().await;
    let batch = include_str!("data/older-supervisor.ndjson");
    assert_eq!(app.report("f", batch).await.json(), json!({"refused": 1}));
    let record =
        async |n: u32| app.get(&format!("invocations/0193a000-0000-7000-8000-0000000000a{n}")).await.json();
    let first = record(1).await;
    assert_eq!(
        (&first["status"], &first["method"], &first["queue_ms"], &first["duration_ms"], &first["error"]),
        (&json!("success"), &Value::Null, &Value::Null, &json!(0.0), &Value::Null)
    );
    assert_eq!(
        (&first["started_at"], &first["finished_at"]),
        (&json!("2026-01-01T00:00:01.000000Z"), &json!("2026-01-01T00:00:01.250000Z"))
    );
    let log = app.get("invocations/0193a000-0000-7000-8000-0000000000a1/logs").await;
    assert_eq!(log.body, "nul \0, not UTF-8 \u{fffd}\nanother\n");
    let second = record(2).await;
    assert_eq!((&second["status"], &second["http_status"]), (&json!("error"), &json!(500)));
    assert_eq!((&second["error"]["message"], &second["request"]["method"]), (&json!("m"), &json!("PUT")));
    let third = record(3).await;
    assert_eq!(
        (&third["started_at"], &third["finished_at"]),
        (&json!("2026-01-01T00:00:03.000000Z"), &Value::Null)
    );
    let listed = app.get("functions/f/invocations").await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_batch_may_be_packed_and_a_broken_one_is_refused_whole() {
    let (app, _echo) = app().await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all([started(1), finished(1, "success")].join("\n").as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let send = async |body: Vec<u8>, encoding: &str| {
        let token = FakeBackend::report_token(&function("f"));
        let request = Request::post("/internal/v1/reports")
            .header("host", "x")
            .header("authorization", format!("Bearer {token}"));
        app.send_report(
            request.header("content-encoding", encoding).body(Full::new(Bytes::from(body))).unwrap(),
        )
        .await
    };
    assert_eq!(
        send(packed[..packed.len() - 9].to_vec(), "gzip").await.problem(),
        problem(400, "Invalid", None)
    );
    assert_eq!(send(packed.clone(), "br").await.problem(), problem(400, "Invalid", None));
    assert_eq!(send(packed, "gzip").await.status, 200);
    assert_eq!(app.get(&format!("invocations/{}", id(1))).await.json()["status"], "success");
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bomb.write_all(&vec![b'\n'; 65 << 20]).unwrap();
    assert_eq!(send(bomb.finish().unwrap(), "gzip").await.problem(), problem(413, "TooLarge", None));
}

#[tokio::test]
async fn only_the_function_itself_delivers_and_never_on_the_public_address() {
    let (app, _echo) = app().await;
    for token in [None, Some("wrong"), Some(support::TOKEN)] {
        let mut request = Request::post("/internal/v1/reports").header("host", "x");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = app.send_report(request.body(Full::new(started(1).into())).unwrap()).await;
        assert_eq!(answer.problem(), problem(401, "Unauthorized", None));
    }
    let token = FakeBackend::report_token(&function("f"));
    let request = Request::post("/internal/v1/reports")
        .header("host", "x")
        .header("authorization", format!("Bearer {token}"));
    assert_eq!(
        app.send(request.body(Full::new(started(1).into())).unwrap()).await.problem(),
        problem(404, "NotFound", None)
    );
    assert_eq!(app.get(&format!("invocations/{}", id(1))).await.status, 404);
    app.report("f", started(1)).await;
    assert_eq!(app.get("/v1/namespaces/other/functions/f/invocations").await.status, 404);
    assert_eq!(app.get(&format!("/v1/namespaces/other/invocations/{}", id(1))).await.status, 404);
}

#[tokio::test]
async fn the_etag_of_a_record_changes_when_it_does() {
    let (app, _echo) = app().await;
    let path = format!("invocations/{}", id(1));
    app.report("f", started(1)).await;
    let running = app.get(&path).await.headers["etag"].clone();
    assert_eq!(app.get(&path).await.headers["etag"], running);
    app.report("f", finished(1, "success")).await;
    assert_ne!(app.get(&path).await.headers["etag"], running);
}

#[tokio::test]
async fn records_outlive_a_restart_and_their_function() {
    let (app, _echo) = app().await;
    app.report("f", [started(1), finished(1, "success")].join("\n")).await;
    app.api("DELETE", "functions/f", Value::Null).await;
    app.until(async || app.get("functions/f").await.status == 404).await;
    let app = app.restart().await;
    assert_eq!(app.get(&format!("invocations/{}", id(1))).await.json()["status"], "success");
}

#[tokio::test]
async fn an_invocations_log_is_followed_until_it_ends() {
    let (app, _echo) = app().await;
    app.report("f", [started(1), log(1, 1, &["one"])].join("\n")).await;
    let mut events = Events::open(&app, &format!("invocations/{}/logs?follow=true", id(1))).await;
    assert_eq!(events.text().await.as_deref(), Some("one"));
    app.report("f", log(1, 2, &["two", "three"])).await;
    assert_eq!(
        (events.text().await.as_deref(), events.text().await.as_deref()),
        (Some("two"), Some("three"))
    );
    app.report("f", [log(1, 3, &["four"]), finished(1, "success")].join("\n")).await;
    assert_eq!((events.text().await.as_deref(), events.text().await), (Some("four"), None));
    // Whoever was cut off comes back with the last event that it has had.
    let path = format!("invocations/{}/logs?follow=true", id(1));
    let mut first = Events::open(&app, &path).await;
    assert_eq!(first.text().await.as_deref(), Some("one"));
    let mut rest = Events::again(&app, &path, first.last.as_deref()).await;
    for text in ["two", "three", "four"] {
        assert_eq!(rest.text().await.as_deref(), Some(text));
    }
    assert_eq!(rest.text().await, None);
    let no_more = app.request("GET", &path).header("accept", "text/event-stream");
    let no_more = no_more.header("last-event-id", rest.last.unwrap()).body(Full::default()).unwrap();
    assert_eq!(app.send(no_more).await.status, 204, "or a browser would ask for ever");
    let whole = app.get(&path).await;
    assert_eq!(whole.body, "one\ntwo\nthree\nfour\n");
    let refused = app.get(&format!("invocations/{}/logs?follow=1", id(1))).await;
    assert_eq!(refused.problem(), problem(400, "Invalid", Some("follow")));
}

#[tokio::test]
async fn a_functions_log_is_followed_from_now_on_until_it_is_deleted() {
    let (app, _echo) = app().await;
    app.report("f", [started(1), log(1, 1, &["old", "older"])].join("\n")).await;
    let mut now = Events::open(&app, "functions/f/logs?follow=true").await;
    let mut tail = Events::open(&app, "functions/f/logs?follow=true&tail=1").await;
    assert_eq!(tail.text().await.as_deref(), Some("older"));
    app.report("f", [started(2), log(2, 1, &["new"])].join("\n")).await;
    for events in [&mut now, &mut tail] {
        let line = events.next().await.unwrap();
        assert_eq!((&line["text"], &line["invocation_id"]), (&json!("new"), &json!(id(2))));
    }
    app.report("f", log(2, 2, &["next", "after"])).await;
    let mut back = Events::again(&app, "functions/f/logs?follow=true", now.last.as_deref()).await;
    assert_eq!(back.text().await.as_deref(), Some("next"));
    let mut back = Events::again(&app, "functions/f/logs?follow=true", back.last.as_deref()).await;
    assert_eq!(back.text().await.as_deref(), Some("after"));
    for events in [&mut now, &mut tail] {
        assert_eq!(
            (events.text().await.unwrap(), events.text().await.unwrap()),
            ("next".into(), "after".into())
        );
    }
    app.api("DELETE", "functions/f", Value::Null).await;
    assert_eq!((now.text().await, tail.text().await, back.text().await), (None, None, None));
}

#[tokio::test]
async fn a_function_that_takes_the_name_of_another_has_a_history_and_etags_of_its_own() {
    let (app, _echo) = app().await;
    app.report("f", [started(1), log(1, 1, &["old"]), finished(1, "success")].join("\n")).await;
    let before = app.get("functions/f").await;
    app.api("DELETE", "functions/f", Value::Null).await;
    app.until(async || app.get("functions/f").await.status == 404).await;
    let again = app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    assert_eq!(again.status, 201);
    assert_eq!(app.get("functions/f/invocations").await.json()["items"], json!([]));
    assert_eq!(app.get("functions/f/invocations?status=success").await.json()["items"], json!([]));
    assert_eq!(app.get("functions/f/logs").await.body, "");
    assert_eq!(app.get("functions/f/revisions").await.json()["items"], json!([]));
    let kept = app.get(&format!("invocations/{}", id(1))).await;
    assert_eq!(kept.json()["status"], "success", "it is there until retention takes it");
    // A write that was meant for the first one does not hit the second.
    assert_ne!(again.headers["etag"], before.headers["etag"]);
    let late = app.request("DELETE", "functions/f").header("if-match", &before.headers["etag"]);
    let late = app.send(late.body(Full::default()).unwrap()).await;
    assert_eq!(late.problem(), problem(412, "Conflict", None));
}

#[tokio::test]
async fn a_host_that_stops_cuts_what_is_followed_for_more_would_have_come() {
    let (mut app, _echo) = app().await;
    app.report("f", [started(1), log(1, 1, &["one"])].join("\n")).await;
    let mut all = Vec::new();
    for path in ["functions/f/logs?follow=true".to_owned(), format!("invocations/{}/logs?follow=true", id(1))]
    {
        all.push(Events::open(&app, &path).await);
    }
    app.server.take().unwrap().shutdown().await;
    for mut events in all {
        assert!(events.was_cut().await);
    }
}

#[tokio::test]
async fn a_replay_is_the_same_request_and_waits_until_it_is_taken() {
    let (app, (recorder, seen)) = (TestApp::start().await, recorder(""));
    app.deploy("f", &recorder).await;
    app.report("f", [started(1), finished(1, "success")].join("\n")).await;
    let path = format!("invocations/{}/replay", id(1));
    let answer = app.api("POST", &path, Value::Null).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let again = answer.json()["invocation_id"].as_str().unwrap().to_owned();
    let record = app.get(&format!("invocations/{again}")).await.json();
    assert_eq!(
        (&record["status"], &record["replay_of"], &record["trigger"], &record["request"]["text"]),
        (&json!("queued"), &json!(id(1)), &json!("http"), &json!("a\u{0}b\u{fffd}"))
    );
    let queued = app.get("functions/f/invocations?status=queued").await.json();
    assert_eq!(queued["items"].as_array().unwrap().len(), 1);
    app.until(async || !seen.lock().unwrap().is_empty()).await;
    assert_eq!(
        seen.lock().unwrap()[0],
        json!({"method": "PUT", "uri": "/a?q=1", "body": "a\u{0}b\u{fffd}".as_bytes(), "x": "y", "id": again, "trigger": "http", "token": "proxy-token"})
    );
    let events = [started(2), finished(2, "success")].join("\n").replace(&id(2), &again);
    app.report("f", events).await;
    let record = app.get(&format!("invocations/{again}")).await.json();
    assert_eq!((&record["status"], &record["replay_of"]), (&json!("success"), &json!(id(1))));
    assert_eq!(app.get(&format!("invocations/{}", id(1))).await.json()["replay_of"], Value::Null);

    let cut = started(3).replace(r#""truncated":false"#, r#""truncated":true"#);
    app.report("f", [cut, finished(3, "success")].join("\n")).await;
    let refused = app.api("POST", &format!("invocations/{}/replay", id(3)), Value::Null).await;
    assert_eq!(refused.problem(), problem(409, "Conflict", None));
    let refused = app.api("POST", &path, json!({"revision": "none"})).await;
    assert_eq!(refused.problem(), problem(400, "Invalid", Some("revision")));
}

#[tokio::test]
async fn a_replay_goes_to_the_revision_that_is_named() {
    let (app, (now, seen_now), (before, seen_before)) = (TestApp::start().await, recorder(""), recorder(""));
    app.deploy("f", &now).await;
    let first = app.get("functions/f").await.json()["revision"].as_str().unwrap().to_owned();
    app.api("PATCH", "functions/f", json!({"env": {"A": "b"}})).await;
    app.until(async || app.get("functions/f").await.json()["phase"] == "Ready").await;
    app.report("f", [started(1), finished(1, "success")].join("\n")).await;
    let replay = async || {
        let path = format!("invocations/{}/replay", id(1));
        let answer = app.api("POST", &path, json!({"revision": first})).await;
        assert_eq!(answer.status, 202);
        format!("invocations/{}", answer.json()["invocation_id"].as_str().unwrap())
    };
    let refused = replay().await;
    app.until(async || app.get(&refused).await.json()["status"] == "lost").await;
    assert_eq!(app.get(&refused).await.json()["error"]["type"], "NotTaken", "it does not load");
    app.backend.serve_revision(&function("f"), &first, vec![before.endpoint.clone()]);
    replay().await;
    app.until(async || !seen_before.lock().unwrap().is_empty()).await;
    assert!(seen_now.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_runs_or_waits_is_cancelled_and_what_has_ended_is_not() {
    const RUNS: &str = "0193a000-0000-7000-8000-000000000001";
    let (app, (recorder, seen)) = (TestApp::start().await, recorder(RUNS));
    app.deploy("f", &recorder).await;
    app.report("f", [started(1), started(2), finished(2, "success"), started(3)].join("\n")).await;
    let cancel = async |id: &str| app.api("POST", &format!("invocations/{id}/cancel"), Value::Null).await;
    assert_eq!(cancel(&id(1)).await.status, 202);
    let asked = seen.lock().unwrap()[0].clone();
    assert_eq!(
        (&asked["method"], &asked["uri"], &asked["token"]),
        (&json!("DELETE"), &json!(format!("/invocations/{RUNS}")), &json!("proxy-token"))
    );
    for ended in [id(2), id(3)] {
        assert_eq!(cancel(&ended).await.problem(), problem(409, "Conflict", None), "{ended}");
    }
    assert_eq!(cancel(&id(9)).await.problem(), problem(404, "NotFound", None));

    recorder.kill();
    let waits = app.api("POST", &format!("invocations/{}/replay", id(2)), Value::Null).await.json();
    let waits = waits["invocation_id"].as_str().unwrap();
    // In between it may be on its way to a supervisor that does not answer.
    app.until(async || cancel(waits).await.status == 202).await;
    app.until(async || app.get(&format!("invocations/{waits}")).await.json()["status"] == "cancelled").await;
}

#[tokio::test]
async fn what_can_not_run_any_more_is_lost_until_its_end_is_told() {
    let (app, _echo) = app().await;
    let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now()).to_rfc3339();
    app.report("f", [started(1), started(2).replace("2026-01-01T00:00:02.000Z", &now)].join("\n")).await;
    let app = app.restart().await;
    let status = async |n: u32| app.get(&format!("invocations/{}", id(n))).await.json()["status"].clone();
    app.until(async || status(1).await == "lost").await;
    assert_eq!(status(2).await, "running", "its limit is not over");
    let record = app.get(&format!("invocations/{}", id(1))).await.json();
    assert!(record["finished_at"].is_string() && record["error"]["type"] == "Lost", "{record}");
    app.report("f", finished(1, "success")).await;
    assert_eq!(status(1).await, "success");
}

#[tokio::test]
async fn a_call_that_waits_for_its_function_to_wake_can_be_cancelled() {
    let (app, (recorder, seen)) = (TestApp::start().await, recorder(""));
    app.deploy("f", &recorder).await;
    app.report("f", [started(1), finished(1, "success")].join("\n")).await;
    app.backend.serve(&function("f"), Vec::new());
    app.backend.sleep(&function("f"));
    let replay = async || {
        let waits = app.api("POST", &format!("invocations/{}/replay", id(1)), Value::Null).await.json();
        waits["invocation_id"].as_str().unwrap().to_owned()
    };
    let cancelled = replay().await;
    app.until(async || app.backend.woken(&function("f")) > 0).await;
    assert_eq!(app.api("POST", &format!("invocations/{cancelled}/cancel"), Value::Null).await.status, 202);
    app.until(async || app.get(&format!("invocations/{cancelled}")).await.json()["status"] == "cancelled")
        .await;
    let sent = replay().await;
    app.backend.serve(&function("f"), vec![recorder.endpoint.clone()]);
    app.until(async || !seen.lock().unwrap().is_empty()).await;
    assert_eq!(seen.lock().unwrap()[0]["id"], json!(sent), "the other one is not sent any more");
}
