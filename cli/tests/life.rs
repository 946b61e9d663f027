//! The whole life of a function by command line alone, on each kind of store.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]
#![allow(dead_code, reason = "of the support, this file uses a part")]

mod support;

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use sless_backend::{CodeStore, FunctionRef, Secret};
use sless_codestore_s3::{S3Settings, S3Store};
use support::Host;

#[test]
fn on_sqlite_and_files() {
    life(Host::start());
}

#[test]
fn on_postgresql_and_s3() {
    if let Some(host) = Host::start_on_servers() {
        life(host);
    }
}

/// The digests of the zips that are kept for the function, wherever that is.
fn kept(host: &Host, name: &str) -> Vec<String> {
    let stores = fs::read_to_string(host.data().join("private/stores.json")).unwrap();
    let stores: Value = serde_json::from_str(&stores).unwrap();
    let Some(place) = stores["s3"].as_str() else {
        let folder = host.data().join("private/code/default").join(name);
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        return files.map(|file| file.file_name().into_string().unwrap().replace(".zip", "")).collect();
    };
    assert!(!host.data().join("private/code").exists(), "nothing is kept in two places");
    let (bucket, endpoint) = place.strip_prefix("s3://").unwrap().split_once(" at ").unwrap();
    let settings = S3Settings {
        endpoint: Some(endpoint.to_owned()),
        region: S3Settings::DEFAULT_REGION.to_owned(),
        bucket: bucket.to_owned(),
        access_key_id: Secret::new("test"),
        secret_access_key: Secret::new("test-secret"),
        force_path_style: true,
    };
    let function = FunctionRef { namespace: "default".parse().unwrap(), name: name.parse().unwrap() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let list = async { S3Store::open(&settings).await.unwrap().list(&function).await.unwrap() };
    runtime.block_on(list).iter().map(ToString::to_string).collect()
}

fn json(host: &Host, arguments: &[&str]) -> Value {
    serde_json::from_str(&host.good(&[arguments, &["-o", "json"]].concat())).unwrap()
}

fn life(mut host: Host) {
    let folder = host.folder.path().join("pet");
    let folder = folder.to_str().unwrap();
    host.good(&["init", "python", folder]);
    host.good(&["secret", "set", "keys", "KEY=hidden-value"]);
    host.good(&["deploy", folder, "--secret", "keys"]);
    assert_eq!(host.good(&["invoke", "pet", "-d", r#"{"name": "Ada"}"#]), r#"{"message":"Hello, Ada!"}"#);

    // A second version, which prints what databases find hard: NUL, bytes that are no UTF-8, a mebibyte.
    let code = "import os, sys\ndef handle(event, context):\n    print(os.environ['KEY'], 'a\\0b')\n    sys.stdout.flush()\n    sys.stdout.buffer.write(b'\\xff\\xfe\\n')\n    for n in range(event.get('lines', 0)): print('x' * 1023)\n    if event.get('bad'): raise ValueError(event['bad'])\n    return event\n";
    fs::write(format!("{folder}/handler.py"), code).unwrap();
    host.good(&["deploy", folder]);
    assert!(host.good(&["list"]).contains("Ready") && host.good(&["build", "show", "pet"]).contains("Ready"));
    assert_eq!(host.good(&["invoke", "pet", "-d", r#"{"text": "\u0000"}"#]), r#"{"text":"\u0000"}"#);
    assert_eq!(host.cli(&["invoke", "pet", "-d", r#"{"bad": "by name"}"#]).code, 1);
    host.good(&["invoke", "pet", "-d", r#"{"lines": 1000}"#]);
    let calls = |host: &Host| json(host, &["invocations", "pet"]).as_array().unwrap().clone();
    let ended = |host: &Host| calls(host).iter().filter(|call| call["finished_at"].is_string()).count();
    host.until(|| ended(&host) == 4);
    let statuses: Vec<_> =
        calls(&host).iter().map(|call| call["status"].as_str().unwrap().to_owned()).collect();
    assert_eq!(statuses, ["success", "error", "success", "success"]);
    assert_eq!(json(&host, &["invocations", "pet", "--status", "error"]).as_array().unwrap().len(), 1);
    let id = |n: usize| calls(&host)[n]["id"].as_str().unwrap().to_owned();
    let log = host.good(&["logs", "pet", "--invocation", &id(0)]);
    let begin = "*** a\0b\n\u{fffd}\u{fffd}\n";
    assert!(log.starts_with(begin) && log.len() > 1_000_000, "{} bytes: {:?}", log.len(), log.get(..80));
    assert_eq!(log, format!("{begin}{}", format!("{}\n", "x".repeat(1023)).repeat(1000)));
    assert!(host.good(&["describe", "pet"]).contains("by name"));

    let replayed = host.good(&["replay", &id(2)]).trim().to_owned();
    host.until(|| calls(&host).iter().any(|c| c["id"] == replayed.as_str() && c["status"] == "success"));
    assert_eq!(host.cli(&["cancel", &replayed]).code, 6, "it has ended");

    let revisions = || json(&host, &["revisions", "pet"]).as_array().unwrap().clone();
    assert_eq!((revisions().len(), kept(&host, "pet").len()), (2, 2));
    host.good(&["rollback", "pet"]);
    assert_eq!(host.good(&["invoke", "pet", "-d", "{}"]), r#"{"message":"Hello, world!"}"#);
    let token = host.good(&["token", "create", "ci", "--role", "viewer"]);

    // All of it is there again.
    host.until(|| ended(&host) == 6);
    let before = calls(&host);
    host.stop(Signal::SIGKILL);
    host.start_again();
    assert_eq!(calls(&host), before);
    host.until(|| host.cli(&["invoke", "pet", "-d", "{}"]).out == r#"{"message":"Hello, world!"}"#);
    host.until(|| ended(&host) == 7);
    assert_eq!(host.good(&["list", "--token", token.trim()]).lines().count(), 2);
    assert!(host.good(&["secret", "list"]).contains("KEY") && host.good(&["token", "list"]).contains("ci"));

    host.good(&["delete", "pet"]);
    assert_eq!(kept(&host, "pet"), Vec::<String>::new(), "its code is gone");
    assert_eq!(host.cli(&["describe", "pet"]).code, 5);
    host.good(&["secret", "delete", "keys"]);
    assert_eq!(host.stop(Signal::SIGTERM).code(), Some(0), "{}", host.log());
}
