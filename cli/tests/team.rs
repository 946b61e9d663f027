//! What a team needs: secrets, tokens, and what can be done about a call that has been.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod support;

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use support::{Host, done};

#[test]
fn a_secret_goes_in_and_comes_out_only_to_the_handler() {
    let mut host = Host::start();
    let file = host.folder("values", &[("key", "of-a-file")]);
    host.good(&["secret", "set", "db", "PASSWORD=hunter2-hunter2", &format!("KEY=@{file}/key")]);
    let list = host.good(&["secret", "list"]);
    assert!(list.contains("db") && list.contains("KEY, PASSWORD"), "{list}");
    let code = "import os\ndef handle(event, context):\n    print(os.environ['PASSWORD'])\n    return os.environ['PASSWORD'][::-1] + os.environ['KEY'][::-1]\n";
    host.good(&["deploy", &host.folder("safe", &[("handler.py", code)]), "--secret", "db"]);
    assert_eq!(host.good(&["invoke", "safe"]), "2retnuh-2retnuhelif-a-fo");
    host.until(|| host.good(&["logs", "safe"]) == "***\n");
    let told = host.good(&["secret", "list", "-o", "json"]) + &host.good(&["describe", "safe", "-o", "json"]);
    assert!(!told.contains("hunter2"), "{told}");
    let named = host.cli(&["secret", "delete", "db"]);
    assert!(named.code == 6 && named.err.contains("safe"), "{named:?}");
    host.good(&["delete", "safe"]);
    host.good(&["secret", "delete", "db"]);
    assert_eq!(host.cli(&["secret", "delete", "db"]).code, 5);
    for bad in ["PASSWORD", "KEY=@/nowhere/at/all"] {
        assert_ne!(host.cli(&["secret", "set", "db", bad]).code, 0, "{bad}");
    }
    host.stop(Signal::SIGTERM);
}

#[test]
fn a_token_is_shown_once_and_does_what_its_role_allows() {
    let host = Host::start();
    let token = host.good(&["token", "create", "reader", "--role", "viewer", "--expires-in-sec", "600"]);
    let token = token.trim();
    assert!(
        !token.is_empty() && !token.contains(char::is_whitespace),
        "nothing but the token is on standard output"
    );
    let list = host.good(&["token", "list"]);
    assert!(list.contains("reader") && list.contains("viewer") && !list.contains(token), "{list}");
    let with = |arguments: &[&str]| {
        done(host.command(arguments).env("SLESS_TOKEN", token).stdin(Stdio::null()).output().unwrap())
    };
    assert_eq!(with(&["list"]).code, 0);
    let forbidden = with(&["token", "list"]);
    assert!(forbidden.code == 4 && forbidden.err.contains("role"), "{forbidden:?}");
    assert_eq!(with(&["list", "-n", "another"]).code, 5, "another namespace is not there for it");
    host.good(&["token", "delete", "reader"]);
    assert_eq!(with(&["list"]).code, 4);
}

#[test]
fn a_call_is_sent_again_and_one_that_runs_is_ended() {
    let host = Host::start();
    let code = "import time\ndef handle(event, context):\n    time.sleep(event.get('sleep_sec', 0))\n    return event\n";
    host.good(&["deploy", &host.folder("again", &[("handler.py", code)])]);
    let calls = || -> Vec<Value> {
        serde_json::from_str(&host.good(&["invocations", "again", "-o", "json"])).unwrap()
    };
    host.good(&["invoke", "again", "-d", r#"{"n": 1}"#]);
    host.until(|| calls().first().is_some_and(|call| call["status"] == "success"));
    let first = calls()[0]["id"].as_str().unwrap().to_owned();
    let id = host.good(&["replay", &first]).trim().to_owned();
    assert_ne!(id, first);
    let shown = host.good(&["invocation", &id]);
    assert!(
        shown.contains(&format!("replay of  {first}\n"))
            && shown.contains("request    POST /\n  {\"n\": 1}\n"),
        "{shown}"
    );
    host.until(|| calls().iter().any(|call| call["id"] == id.as_str() && call["status"] == "success"));
    assert!(host.good(&["invocation", &id]).starts_with(&format!("{id}  success\n")));
    let ended = host.cli(&["cancel", &id]);
    assert!(ended.code == 6, "it has ended: {ended:?}");
    assert_eq!(host.cli(&["replay", "00000000-0000-7000-8000-000000000000"]).code, 5);

    let waiting = host.command(&["invoke", "again", "-d", r#"{"sleep_sec": 20}"#]);
    let waiting =
        { waiting }.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let running = || {
        calls()
            .iter()
            .find(|call| call["status"] == "running")
            .map(|call| call["id"].as_str().unwrap().to_owned())
    };
    host.until(|| running().is_some());
    host.good(&["cancel", &running().unwrap()]);
    let answered = done(waiting.wait_with_output().unwrap());
    assert!(answered.code == 1 && answered.out.contains("Cancelled"), "{answered:?}");
    host.until(|| calls().iter().any(|call| call["status"] == "cancelled"));
}

#[test]
fn a_trigger_is_switched_and_calls_are_filtered() {
    let host = Host::start();
    let code = "def handle(event, context):\n    return {'hello': event['name']}\n";
    host.good(&["deploy", &host.folder("seen", &[("handler.py", code)]), "--no-trigger"]);
    let answer = || host.http("POST", "/fn/default/seen", r#"{"name": "Ada"}"#).unwrap();
    assert!(answer().starts_with("HTTP/1.1 404"));
    let url = host.good(&["trigger", "create", "door", "--function", "seen"]);
    assert!(url.trim().ends_with("/fn/default/seen"), "{url}");
    assert!(answer().starts_with("HTTP/1.1 200"));
    host.good(&["trigger", "disable", "door"]);
    assert!(answer().starts_with("HTTP/1.1 404"));
    let list = host.good(&["trigger", "list"]);
    assert!(list.lines().any(|line| line.starts_with("door") && line.contains("false")), "{list}");
    host.good(&["trigger", "enable", "door"]);
    assert!(answer().starts_with("HTTP/1.1 200"));
    assert_eq!(host.cli(&["invoke", "seen", "-d", "{}"]).code, 1);

    let calls = |arguments: &[&str]| -> Vec<Value> {
        let all = [&["invocations", "seen", "-o", "json"], arguments].concat();
        serde_json::from_str(&host.good(&all)).unwrap()
    };
    host.until(|| calls(&["--status", "error"]).len() == 1 && calls(&["--trigger", "http"]).len() == 2);
    assert_eq!(calls(&["--until", "2020-01-01T00:00:00Z"]).len(), 0);
    assert_eq!(calls(&["--since", "2020-01-01T00:00:00+01:00"]).len(), 3);
    assert_eq!(host.cli(&["invocations", "seen", "--since", "yesterday"]).code, 2);
    let failed = calls(&["--status", "error"])[0]["id"].as_str().unwrap().to_owned();
    let shown = host.good(&["invocation", &failed]);
    for part in ["error      KeyError: 'name'", "handler.py", "answered   500"] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    host.good(&["trigger", "delete", "door"]);
    let narrow = [
        "trigger",
        "create",
        "door",
        "--function",
        "seen",
        "--method",
        "GET",
        "--cors-origin",
        "https://a.example",
    ];
    host.good(&narrow);
    assert!(answer().starts_with("HTTP/1.1 405"));
    let made: Value = serde_json::from_str(&host.good(&["trigger", "list", "-o", "json"])).unwrap();
    assert_eq!(made[0]["cors"]["origins"][0], "https://a.example");
    host.good(&["trigger", "delete", "door"]);
    assert_eq!(
        (host.cli(&["trigger", "delete", "door"]).code, host.cli(&["invocation", "nothing"]).code),
        (5, 5)
    );
}
