//! Calls through `/fn` and `invoke`, to supervisors that the test plays.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sless_backend::Backend;
use support::{Supervisor, TestApp, exchange, function, problem, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

fn header<'a>(told: &'a Value, name: &str) -> Vec<&'a str> {
    told["headers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|h| h[0] == name)
        .map(|h| h[1].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_call_is_passed_on_as_it_was_sent() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("echo", &echo).await;
    let request = Request::patch("/fn/default/echo//a//b%2Fc/?x=1&x=2&z=%2B%20+")
        .header("host", "example.org")
        .header("x-y", "z");
    let request = request
        .header("x-sless-trigger", "cron")
        .header("x-forwarded-for", "6.6.6.6")
        .header("authorization", "Basic x");
    let answer = app.send(request.body(Full::new("12345".into())).unwrap()).await;
    let told = answer.json();
    assert_eq!(answer.status, 207);
    assert_eq!(answer.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(
        (&told["method"], &told["uri"], &told["size"]),
        (&json!("PATCH"), &json!("//a//b%2Fc/?x=1&x=2&z=%2B%20+"), &json!(5))
    );
    for (name, value) in [
        ("x-y", "z"),
        ("host", "example.org"),
        ("x-sless-trigger", "http"),
        ("x-sless-proxy-token", "proxy-token"),
        ("x-sless-client-ip", "127.0.0.1"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "example.org"),
        ("authorization", "Basic x"),
    ] {
        assert_eq!(header(&told, name), [value], "{name}");
    }
    for (path, uri) in
        [("/fn/default/echo", "/"), ("/fn/default/echo?a", "/?a"), ("/fn/default/echo/health", "/health")]
    {
        assert_eq!(
            app.send(Request::get(path).header("host", "x").body(Full::default()).unwrap()).await.json()["uri"],
            uri
        );
    }
}

#[tokio::test]
async fn invoke_needs_no_trigger_and_hides_the_token() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("echo", &echo).await;
    app.api("DELETE", "triggers/echo", Value::Null).await;
    assert_eq!(app.get("/fn/default/echo").await.problem(), problem(404, "NotFound", None));
    let told = app.get("functions/echo/invoke/a/b%2Fc?x=1").await.json();
    assert_eq!(
        (&told["uri"], header(&told, "authorization"), header(&told, "x-sless-trigger")),
        (&json!("/a/b%2Fc?x=1"), vec![], vec!["invoke"])
    );
}

#[tokio::test]
async fn a_trigger_is_switched_off_and_on() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("echo", &echo).await;
    for (enabled, status) in [(false, 404), (true, 207)] {
        let answer = app.api("PATCH", "triggers/echo", json!({"enabled": enabled})).await.json();
        assert_eq!((&answer["enabled"], &answer["active"]), (&json!(enabled), &json!(enabled)));
        assert_eq!(app.get("/fn/default/echo").await.status, status);
    }
    app.api("DELETE", "functions/echo", Value::Null).await;
    assert_eq!(app.get("/fn/default/echo").await.status, 404);
    app.until(async || app.get("functions/echo").await.status == 404).await;
    let left = app.get("triggers/echo").await.json();
    assert!(left["active"] == false && left["message"].as_str().unwrap().contains("echo"), "{left}");
    // It can still be changed; what is named must be there.
    assert_eq!(app.api("PATCH", "triggers/echo", json!({"methods": ["GET"]})).await.status, 200);
    let named = app.api("PATCH", "triggers/echo", json!({"function": "echo"})).await;
    assert_eq!(named.problem(), problem(400, "Invalid", Some("function")));
}

#[tokio::test]
async fn a_function_that_can_not_answer_yet_is_not_ready() {
    let app = TestApp::start().await;
    app.api("POST", "functions", json!({"name": "f", "runtime": "python3.11"})).await;
    app.api("POST", "triggers", json!({"name": "t", "type": "http", "function": "f"})).await;
    for path in ["/fn/default/f", "functions/f/invoke"] {
        let answer = app.get(path).await;
        assert_eq!(answer.problem(), problem(503, "NotReady", None));
        assert_eq!(answer.headers["retry-after"], "1");
    }
}

#[tokio::test]
async fn a_call_that_was_refused_before_it_was_taken_goes_to_another() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    let refusing = Supervisor::start(|_| async {
        Response::builder().status(503).header("x-sless-status", "rejected").body(text("{}")).unwrap()
    });
    let dead = Supervisor::echo();
    dead.kill();
    app.deploy("f", &echo).await;
    let endpoints = [&dead, &refusing, &echo].map(|s| s.endpoint.clone());
    app.backend.serve(&function("f"), endpoints.to_vec());
    let answer = app.api("POST", "/fn/default/f", json!({"a": "b"})).await;
    assert_eq!((answer.status, &answer.json()["size"]), (207, &json!(9)));
    app.backend.serve(&function("f"), vec![dead.endpoint.clone()]);
    assert_eq!(app.api("POST", "/fn/default/f", json!({})).await.problem(), problem(502, "BadGateway", None));
    app.backend.serve(&function("f"), vec![refusing.endpoint.clone()]);
    assert_eq!(app.api("POST", "/fn/default/f", json!({})).await.status, 503, "nobody else: its own answer");
}

#[tokio::test]
async fn a_call_that_may_have_begun_is_never_repeated() {
    let app = TestApp::start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let dying = Supervisor::start(move |_| {
        // The connection ends without an answer, on a connection that had been used before.
        let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                return Response::new(text("fine"));
            }
            std::future::pending().await
        }
    });
    app.deploy("f", &dying).await;
    assert_eq!(app.get("/fn/default/f").await.status, 200);
    let call = async { app.get("/fn/default/f").await };
    let kill = async {
        app.until(async || calls.load(Ordering::SeqCst) == 2).await;
        dying.kill();
    };
    let (answer, ()) = tokio::join!(call, kill);
    assert_eq!(answer.problem(), problem(502, "BadGateway", None));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_fails_no_call() {
    let app = TestApp::start().await;
    let closing = Supervisor::start(|_| async {
        Response::builder().header("connection", "close").body(text("x")).unwrap()
    });
    app.deploy("f", &closing).await;
    for _ in 0..50 {
        assert_eq!(app.get("/fn/default/f").await.status, 200);
    }
}

#[tokio::test]
async fn an_answer_streams_and_one_that_breaks_off_is_cut() {
    let app = TestApp::start().await;
    let (to_body, chunks) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let chunks = Arc::new(std::sync::Mutex::new(Some(chunks)));
    let streaming = Supervisor::start(move |_| {
        let chunks = chunks.lock().unwrap().take().unwrap();
        async move { Response::new(StreamBody::new(ReceiverStream::new(chunks))) }
    });
    app.deploy("f", &streaming).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(app.connect().await))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::get("/fn/default/f").header("host", "x").body(Full::<Bytes>::default()).unwrap();
    let (response, ()) = tokio::join!(sender.send_request(request), async {
        to_body.send(Ok(Frame::data("first".into()))).await.unwrap();
    });
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first", "it came before the end");
    to_body.send(Err(std::io::Error::other("broken"))).await.unwrap();
    let rest = body.frame().await;
    assert!(matches!(rest, Some(Err(_))), "{rest:?}");
}

#[tokio::test]
async fn trailers_reach_a_caller_that_asked_for_them() {
    let app = TestApp::start().await;
    let trailing = Supervisor::start(|request| async move {
        assert_eq!(request.headers().get("te").is_some(), request.uri().path() == "/asked");
        let trailers =
            http::HeaderMap::from_iter([("x-sless-status".parse().unwrap(), "success".parse().unwrap())]);
        let frames = [Ok::<_, std::io::Error>(Frame::data(Bytes::from("x"))), Ok(Frame::trailers(trailers))];
        Response::builder()
            .header("trailer", "x-sless-status")
            .body(StreamBody::new(tokio_stream::iter(frames)))
            .unwrap()
    });
    app.deploy("f", &trailing).await;
    for (te, path, expected) in [("te: trailers\r\n", "/asked", true), ("", "/", false)] {
        let mut stream = app.connect().await;
        stream
            .write_all(
                format!("GET /fn/default/f{path} HTTP/1.1\r\nhost: x\r\n{te}connection: close\r\n\r\n")
                    .as_bytes(),
            )
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.ends_with("0\r\nx-sless-status: success\r\n\r\n"), expected, "{answer}");
    }
}

#[tokio::test]
async fn a_request_of_two_lengths_is_refused_and_its_connection_closed() {
    let app = TestApp::start().await;
    let echo = Supervisor::echo();
    app.deploy("f", &echo).await;
    for lengths in [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ncontent-length: 5",
        "content-length: +4",
        "transfer-encoding: xchunked",
        "x: a\r\n b",
    ] {
        let mut stream = app.connect().await;
        let inner = "GET /v1/whoami HTTP/1.1\r\nhost: a\r\nx: 1\r\n\r\n";
        let text =
            format!("POST /fn/default/f HTTP/1.1\r\nhost: x\r\n{lengths}\r\n\r\n2a\r\n{inner}\r\n0\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.matches("HTTP/1.1").count() == 1,
            "{lengths}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_large_body_is_streamed_both_ways() {
    let app = TestApp::start().await;
    let mirror = Supervisor::start(|request| async move { Response::new(request.into_body()) });
    app.deploy("f", &mirror).await;
    let blob: Vec<u8> = (0..5_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let answer = app
        .send(
            Request::post("/fn/default/f").header("host", "x").body(Full::new(blob.clone().into())).unwrap(),
        )
        .await;
    assert!(answer.status == 200 && answer.body == blob);
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_taken_arrives() {
    let app = TestApp::start().await;
    let refusing =
        Supervisor::start(|_| async { Response::builder().status(413).body(text("too large")).unwrap() });
    app.deploy("f", &refusing).await;
    for path in ["/fn/default/f", "/fn/default/nobody"] {
        let (mut read, mut write) = app.connect().await.into_split();
        let sender = tokio::spawn(async move {
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 30 << 20);
            let mut sent = write.write_all(head.as_bytes()).await;
            for _ in 0..30 {
                if sent.is_ok() {
                    sent = write.write_all(&vec![0; 1 << 20]).await;
                }
            }
            write
        });
        let mut status = [0; 12];
        read.read_exact(&mut status).await.unwrap();
        assert!(matches!(&status, b"HTTP/1.1 413" | b"HTTP/1.1 404"), "{status:?}");
        drop(sender.await);
    }
}

#[tokio::test]
async fn a_call_holds_its_endpoint_until_its_answer_is_whole() {
    let app = TestApp::start().await;
    let (to_body, chunks) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let chunks = Arc::new(std::sync::Mutex::new(Some(chunks)));
    let streaming = Supervisor::start(move |_| {
        let chunks = chunks.lock().unwrap().take().unwrap();
        async move { Response::new(StreamBody::new(ReceiverStream::new(chunks))) }
    });
    app.deploy("f", &streaming).await;
    let held = app.backend.endpoints(&function("f"));
    let idle = Arc::strong_count(&held);
    let mut stream = app.connect().await;
    stream.write_all(b"GET /fn/default/f HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    to_body.send(Ok(Frame::data("x".into()))).await.unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
    assert_eq!(Arc::strong_count(&held), idle + 1);
    drop(to_body);
    app.until(async || Arc::strong_count(&held) == idle).await;
}

#[tokio::test]
async fn stopping_waits_for_calls_and_takes_no_new_ones() {
    let mut app = TestApp::start().await;
    let (release, released) = tokio::sync::watch::channel(false);
    let (begun, mut begins) = mpsc::channel(1);
    let slow = Supervisor::start(move |_| {
        let (mut released, begun) = (released.clone(), begun.clone());
        async move {
            begun.send(()).await.unwrap();
            let _ = released.wait_for(|done| *done).await;
            Response::new(text("done"))
        }
    });
    app.deploy("f", &slow).await;
    let mut stream = app.connect().await;
    stream.write_all(b"GET /fn/default/f HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    begins.recv().await.unwrap();
    let addr = app.server.as_ref().unwrap().local_addr();
    let stopping = tokio::spawn(app.server.take().unwrap().shutdown());
    // Probes and late callers are told, as long as calls run.
    let late = async |path: &str| {
        let io = TokioIo::new(tokio::net::TcpStream::connect(addr).await.unwrap());
        let request = Request::get(path).header("host", "x").body(Full::<Bytes>::default()).unwrap();
        exchange(io, request).await
    };
    app.until(async || late("/ready").await.status == 503).await;
    assert_eq!(late("/ready").await.json()["status"], "draining");
    assert_eq!((late("/health").await.status, late("/metrics").await.status), (200, 200));
    for path in ["/fn/default/f", "/v1/whoami", "/openapi.json"] {
        let refused = late(path).await;
        assert_eq!(refused.problem(), problem(503, "Unavailable", None), "{path}");
        assert!(refused.headers.contains_key("retry-after") && refused.headers["connection"] == "close");
    }
    assert!(!stopping.is_finished());
    let silent = tokio::net::TcpStream::connect(addr).await.unwrap();
    release.send(true).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    tokio::time::timeout(Duration::from_secs(10), stopping).await.unwrap().unwrap();
    drop(silent);
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
}
