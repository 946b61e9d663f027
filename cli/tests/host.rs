//! `sless up` and the other commands, with real supervisors and handlers.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod support;

use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use support::{Host, SLESS, done};

const PY: (&str, &str) = (
    "handler.py",
    "def handle(event, context):\n    print('greeting', event['name'])\n    return {'message': f\"Hello, {event['name']}!\"}\n",
);
const JS: (&str, &str) = (
    "handler.js",
    "exports.handle = async (event) => { console.log('greeting', event.name); return { message: `Hello, ${event.name}!` } }\n",
);

#[test]
fn a_function_from_deploy_to_delete() {
    let host = Host::start();
    for (name, file) in [("hello-py", PY), ("hello-js", JS)] {
        let folder = host.folder(name, &[file]);
        let url = format!("http://127.0.0.1:{}/fn/default/{name}", host.port);
        assert_eq!(host.good(&["deploy", &folder]).trim(), url);
        let answer = host.http("POST", &format!("/fn/default/{name}"), r#"{"name": "Ada"}"#).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Hello, Ada!"), "{answer}");
        assert_eq!(
            host.good(&["invoke", name, "-d", r#"{"name": "Grace"}"#]),
            r#"{"message":"Hello, Grace!"}"#
        );
        let listed = host.good(&["list"]);
        assert!(
            listed
                .lines()
                .any(|line| line.starts_with(name) && line.contains("Ready") && line.contains(&url)),
            "{listed}"
        );
        host.until(|| host.good(&["invocations", name]).matches("success").count() == 2);
        assert_eq!(host.good(&["logs", name]), "greeting Ada\ngreeting Grace\n");
        let calls: serde_json::Value =
            serde_json::from_str(&host.good(&["invocations", name, "-o", "json"])).unwrap();
        let id = calls[0]["id"].as_str().unwrap();
        assert_eq!(
            host.good(&["logs", name, "--invocation", id]),
            "greeting Grace\n",
            "the newest comes first"
        );
        host.good(&["delete", name]);
        assert!(host.http("POST", &format!("/fn/default/{name}"), "{}").unwrap().starts_with("HTTP/1.1 404"));
    }
    assert_eq!(host.good(&["list"]).lines().count(), 1, "only the head is left");
}

#[test]
fn settings_are_changed_by_the_next_deploy_and_others_are_kept() {
    let host = Host::start();
    let code = "import os\ndef handle(event, context):\n    return [os.environ.get('A'), os.environ.get('B'), 'OF_THE_HOST' in os.environ]\n";
    let folder = host.folder("env", &[("handler.py", code)]);
    host.good(&["deploy", &folder, "--env", "A=1", "--timeout-sec", "2.5"]);
    assert_eq!(host.good(&["invoke", "env"]), r#"["1",null,false]"#);
    host.good(&["deploy", &folder, "--env", "B=2", "--workers", "2"]);
    assert_eq!(host.good(&["invoke", "env"]), r#"["1","2",false]"#);
    let list: serde_json::Value = serde_json::from_str(&host.good(&["list", "-o", "json"])).unwrap();
    assert_eq!((list[0]["timeout_sec"].as_f64(), list[0]["workers"].as_u64()), (Some(2.5), Some(2)));
    let other = host.folder("env", &[("handler.js", JS.1)]);
    let refused = host.cli(&["deploy", &other, "--runtime", "nodejs20"]);
    assert!(refused.code == 6 && refused.err.contains("runtime cannot be changed"), "{refused:?}");
}

#[test]
fn what_goes_wrong_has_a_code_and_a_remedy() {
    let host = Host::start();
    let hello = host.folder("hello", &[PY]);
    let cases: [(&[&str], i32, &str); 11] = [
        (&["invoke", "nobody"], 5, "nobody"),
        (&["delete", "nobody"], 5, "nobody"),
        (&["logs", "nobody"], 5, "nobody"),
        (&["deploy", &host.folder("empty", &[("main.py", "")])], 6, "handler.py"),
        (&["deploy", "/nowhere"], 6, "/nowhere is no folder"),
        (&["push", "/nowhere"], 6, "/nowhere is no folder"),
        (&["push", &hello], 5, "sless deploy"),
        (&["deploy", &hello, "--timeout-sec", "0"], 6, "timeout_sec"),
        (&["deploy", &hello, "--env", "A"], 2, "KEY=VALUE"),
        (&["list", "--token", "wrong"], 4, "SLESS_TOKEN"),
        (&["list", "--url", "http://127.0.0.1:1"], 3, "sless up"),
    ];
    for (arguments, code, says) in cases {
        let done = host.cli(arguments);
        assert!(done.code == code && done.err.contains(says), "sless {arguments:?}: {done:?}");
    }
    let missing = host.folder("missing", &[("handler.py", "import nothing_like_this\n")]);
    let done = host.cli(&["deploy", &missing]);
    assert!(done.code == 1 && done.err.contains("nothing_like_this"), "{done:?}");
    let requirement = ("requirements.txt", "--no-index\nnothing-like-this==99.99.99\n");
    let done = host.cli(&["deploy", &host.folder("unbuilt", &[PY, requirement])]);
    assert!(done.code == 1 && done.err.contains("nothing-like-this==99.99.99"), "{done:?}");
    host.good(&["deploy", &hello]);
    let done = host.cli(&["invoke", "hello", "-d", "{}"]);
    assert!(
        done.code == 1 && done.out.contains("KeyError") && done.err.contains("sless logs hello"),
        "{done:?}"
    );
    let second = host.cli(&["up", "--api-listen", "127.0.0.1:0"]);
    assert!(second.code == 6 && second.err.contains("another host"), "{second:?}");
    let bad = done_of(&["up", "--api-listen", "nonsense"]);
    assert!(bad.code == 2 && bad.err.contains("--api-listen"), "{bad:?}");
}

fn done_of(arguments: &[&str]) -> support::Done {
    done(Command::new(SLESS).args(arguments).stdin(Stdio::null()).output().unwrap())
}

const NAP: &str = "import subprocess, time\ndef handle(event, context):\n    subprocess.Popen(['sleep', '600'], start_new_session=True)\n    time.sleep(event['sleep_sec'])\n    return 'done'\n";

#[test]
fn a_host_that_is_asked_to_stop_lets_calls_finish_and_leaves_nothing() {
    let mut host = Host::start();
    host.good(&["deploy", &host.folder("nap", &[("handler.py", NAP)])]);
    let (folder, port) = (host.data(), host.port);
    let call = thread::spawn(move || {
        let url = format!("http://127.0.0.1:{port}");
        let arguments = ["invoke", "nap", "-d", r#"{"sleep_sec": 2}"#, "--url", &url];
        done(Command::new(SLESS).args(arguments).env("DATA_DIR", folder).output().unwrap())
    });
    host.until(|| host.good(&["invocations", "nap"]).contains("running"));
    assert_eq!(host.stop(Signal::SIGTERM).code(), Some(0), "{}", host.log());
    let answered = call.join().unwrap();
    assert_eq!((answered.code, answered.out.as_str()), (0, "done"), "{answered:?}");
    host.start_again();
    assert!(
        host.good(&["invocations", "nap"]).contains("success"),
        "its record was stored before the host ended"
    );
    host.until(|| host.cli(&["invoke", "nap", "-d", r#"{"sleep_sec": 0}"#]).code == 0);
    assert_eq!(host.stop(Signal::SIGINT).code(), Some(0));
}

#[test]
fn a_host_that_is_killed_comes_back_with_everything() {
    let mut host = Host::start();
    host.good(&["deploy", &host.folder("hello", &[PY])]);
    for n in 0..20 {
        host.good(&["invoke", "hello", "-d", &format!(r#"{{"name": "{n}"}}"#)]);
    }
    let revision = |host: &Host| {
        let list: serde_json::Value = serde_json::from_str(&host.good(&["list", "-o", "json"])).unwrap();
        list[0]["revision"].as_str().unwrap().to_owned()
    };
    let before = revision(&host);
    host.stop(Signal::SIGKILL);
    host.start_again();
    host.until(|| {
        host.http("POST", "/fn/default/hello", r#"{"name": "Ada"}"#).unwrap().contains("Hello, Ada!")
    });
    assert_eq!(revision(&host), before);
    host.until(|| host.good(&["invocations", "hello", "--limit", "100"]).matches("success").count() == 21);
    let log = host.good(&["logs", "hello"]);
    for n in 0..20 {
        assert!(log.lines().any(|line| line == format!("greeting {n}")), "{log}");
    }
}

const SPY: &str = r#"
const fs = require('fs'), seen = []
for (const pid of fs.readdirSync('/proc').filter(n => /^\d+$/.test(n)))
    for (const file of ['environ', 'cmdline'])
        try { seen.push(fs.readFileSync(`/proc/${pid}/${file}`, 'latin1')) } catch {}
for (const file of TARGETS)
    try { seen.push(fs.readFileSync(file, 'latin1')) } catch {}
fs.writeFileSync('seen.json', JSON.stringify({ environment: process.env, seen }))
"#;

#[test]
fn a_build_sees_nothing_of_the_host() {
    let host = Host::start();
    let token = std::fs::read_to_string(host.data().join("private/token")).unwrap();
    let proxy_token = host.data().join("private/proxy-token");
    let manifest = r#"{"name": "spy", "version": "1.0.0", "scripts": {"preinstall": "node spy.js"}, "dependencies": {"dep": "file:./dep"}}"#;
    let targets = serde_json::json!([
        host.data().join("private/token"),
        proxy_token,
        host.data().join("private/sless.db")
    ]);
    let files = [
        ("handler.js", JS.1),
        ("package.json", manifest),
        ("spy.js", &SPY.replace("TARGETS", &targets.to_string())),
        ("dep/package.json", r#"{"name": "dep", "version": "1.0.0"}"#),
    ];
    host.good(&["deploy", &host.folder("spy", &files)]);
    let built =
        std::fs::read_dir(host.data().join("functions/default/spy")).unwrap().next().unwrap().unwrap();
    let seen = std::fs::read_to_string(built.path().join("seen.json")).unwrap();
    assert!(seen.contains("SLESS_BUILD_STEP") && !seen.contains("SQLite format"), "{seen}");
    let secrets = [token.trim(), &std::fs::read_to_string(proxy_token).unwrap(), &host.sentinel()];
    for secret in secrets {
        assert!(!seen.contains(secret), "{secret} was seen");
    }
}
