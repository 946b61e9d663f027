//! Calls of functions that have no supervisor at the moment, or several.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Response;
use http_body_util::Full;
use support::{Supervisor, TestApp, function, problem, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// A function that is ready and sleeps.
async fn asleep() -> (Arc<TestApp>, Supervisor) {
    let (app, echo) = (TestApp::start().await, Supervisor::echo());
    app.deploy("f", &echo).await;
    app.backend.serve(&function("f"), Vec::new());
    app.backend.sleep(&function("f"));
    (Arc::new(app), echo)
}

fn call(app: &Arc<TestApp>) -> tokio::task::JoinHandle<u16> {
    let app = app.clone();
    tokio::spawn(async move { app.get("/fn/default/f").await.status })
}

#[tokio::test]
async fn calls_wake_a_function_that_sleeps_and_are_held_until_it_answers() {
    let (app, echo) = asleep().await;
    let calls: Vec<_> = (0..20).map(|_| call(&app)).collect();
    app.until(async || app.backend.woken(&function("f")) >= 20).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    app.backend.serve(&function("f"), vec![echo.endpoint.clone()]);
    for call in calls {
        assert_eq!(call.await.unwrap(), 207);
    }
    assert_eq!(app.get("functions/f/invoke").await.status, 207);
}

#[tokio::test]
async fn whoever_says_how_long_he_waits_is_not_held_longer() {
    let (app, _echo) = asleep().await;
    let began = Instant::now();
    let request = app.request("GET", "functions/f/invoke").header("prefer", "wait=1");
    let answer = app.send(request.body(Full::default()).unwrap()).await;
    assert_eq!(answer.problem(), problem(503, "NotReady", None));
    assert!((1.0..10.0).contains(&began.elapsed().as_secs_f64()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn calls_that_are_held_are_let_go_when_the_host_stops() {
    let (app, _echo) = asleep().await;
    let mut app = Arc::into_inner(app).unwrap();
    let mut held = app.connect().await;
    held.write_all(b"GET /fn/default/f HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    app.until(async || app.backend.woken(&function("f")) > 0).await;
    let stopped = tokio::time::timeout(Duration::from_secs(10), app.server.take().unwrap().shutdown());
    stopped.await.expect("the held call keeps it from stopping");
    let mut answer = String::new();
    held.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[tokio::test]
async fn whoever_is_refused_by_all_waits_for_those_that_replace_them() {
    let (app, echo) = asleep().await;
    let refusing = Supervisor::start(|_| async {
        Response::builder().status(503).header("x-sless-status", "rejected").body(text("{}")).unwrap()
    });
    let dead = Supervisor::echo();
    dead.kill();
    for gone in [vec![refusing.endpoint.clone()], vec![dead.endpoint.clone(), refusing.endpoint.clone()]] {
        app.backend.serve(&function("f"), gone);
        let (began, woken) = (Instant::now(), app.backend.woken(&function("f")));
        let waiting = call(&app);
        app.until(async || app.backend.woken(&function("f")) > woken + 2).await;
        assert!(!waiting.is_finished(), "another one is expected");
        app.backend.serve(&function("f"), vec![echo.endpoint.clone()]);
        assert_eq!(waiting.await.unwrap(), 207);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn a_function_that_none_is_expected_of_is_refused_at_once() {
    let (app, echo) = (TestApp::start().await, Supervisor::echo());
    app.deploy("f", &echo).await;
    app.backend.serve(&function("f"), Vec::new());
    let began = Instant::now();
    assert_eq!(app.get("/fn/default/f").await.problem(), problem(503, "NotReady", None));
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn calls_go_to_the_supervisor_that_has_the_fewest() {
    let app = TestApp::start().await;
    let gate = Arc::new(Notify::new());
    let counting = |gate: Arc<Notify>| {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let supervisor = Supervisor::start(move |_| {
            let (gate, seen) = (gate.clone(), seen.clone());
            async move {
                seen.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Response::new(text("{}"))
            }
        });
        (supervisor, count)
    };
    let all: Vec<_> = (0..3).map(|_| counting(gate.clone())).collect();
    app.deploy("f", &all[0].0).await;
    app.backend.serve(&function("f"), all.iter().map(|(one, _)| one.endpoint.clone()).collect());
    let app = Arc::new(app);
    let mut calls = Vec::new();
    for n in 1..=9 {
        calls.push(call(&app));
        app.until(async || all.iter().map(|(_, count)| count.load(Ordering::SeqCst)).sum::<usize>() == n)
            .await;
    }
    assert!(all.iter().all(|(_, count)| count.load(Ordering::SeqCst) == 3));
    gate.notify_waiters();
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
}
