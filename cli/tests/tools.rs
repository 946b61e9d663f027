//! What helps people at the command line: `init`, `dev`, `login`, `doctor`, `describe`, `completion`, and what is told of builds and revisions.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{Host, SLESS, done};

const VERSION: &str = "def handle(event, context):\n    print('this is', 'VERSION')\n    return 'VERSION'\n";

fn version(text: &str) -> String {
    VERSION.replace("VERSION", text)
}

#[test]
fn what_init_writes_can_be_deployed_and_nothing_is_overwritten() {
    let host = Host::start();
    for (language, file) in [("python", "handler.py"), ("node", "handler.js")] {
        let folder = host.folder.path().join(format!("first-{language}"));
        let folder = folder.to_str().unwrap();
        host.good(&["init", language, folder]);
        host.good(&["deploy", folder]);
        let name = format!("first-{language}");
        assert_eq!(host.good(&["invoke", &name, "-d", r#"{"name": "Ada"}"#]), r#"{"message":"Hello, Ada!"}"#);
        assert_eq!(host.good(&["invoke", &name]), r#"{"message":"Hello, world!"}"#);
        let before = fs::read(format!("{folder}/{file}")).unwrap();
        let again = host.cli(&["init", "node", folder]);
        assert!(again.code == 6 && again.err.contains("is there already"), "{again:?}");
        assert_eq!(fs::read(format!("{folder}/{file}")).unwrap(), before);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }
}

#[test]
fn dev_deploys_each_change_and_shows_what_calls_print() {
    let host = Host::start();
    let folder = host.folder("live", &[("handler.py", &version("one"))]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let data = host.folder.path().join("dev-data");
    let listen = format!("127.0.0.1:{port}");
    let mut dev = host
        .command(&["dev", &folder, "--listen", &listen, "--timeout-sec", "0.5"])
        .env("DATA_DIR", &data)
        .env("XDG_CONFIG_HOME", host.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (lines, said) = mpsc::channel();
    let both: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(dev.stdout.take().unwrap()), Box::new(dev.stderr.take().unwrap())];
    for pipe in both {
        let lines = lines.clone();
        thread::spawn(move || {
            BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|l| lines.send(l))
        });
    }
    let until = |part: &str| {
        let mut seen = Vec::new();
        while let Ok(line) = said.recv_timeout(Duration::from_secs(60)) {
            if line.contains(part) {
                return;
            }
            seen.push(line);
        }
        panic!("{part:?} was not said; what was: {seen:#?}");
    };
    let write = |text: &str| fs::write(format!("{folder}/handler.py"), text).unwrap();
    let call = || support::http(port, "GET", "/fn/default/live", "").unwrap();
    until("/fn/default/live is ready");
    assert!(call().ends_with("one"), "{}", call());
    write(&version("two"));
    until("is ready");
    assert!(call().ends_with("two"));
    until("this is two");
    write("def handle(event, context:\n");
    until("error: ");
    assert!(call().ends_with("two"), "what does not load replaces nothing");
    write("import time\ndef handle(event, context):\n    time.sleep(60)\n");
    until("is ready");
    assert!(call().starts_with("HTTP/1.1 504"), "the limits are those of any host");
    let family = support::family(dev.id());
    assert!(!family.is_empty());
    kill(Pid::from_raw(dev.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(dev.wait().unwrap().code(), Some(0));
    host.until(|| family.iter().all(|(pid, began)| support::began_at(*pid) != Some(*began)));
}

#[test]
fn a_login_is_used_by_the_commands_that_follow() {
    let host = Host::start();
    let home = host.folder.path().join("home");
    let url = format!("http://127.0.0.1:{}", host.port);
    let token = fs::read_to_string(host.data().join("private/token")).unwrap();
    // Nothing of the data folder's may help: a login is for another machine's host.
    let far = |arguments: &[&str], token: Option<&str>| {
        let mut command = Command::new(SLESS);
        command.args(arguments).env_clear().env("XDG_CONFIG_HOME", &home).env("XDG_DATA_HOME", &home);
        if let Some(token) = token {
            command.env("SLESS_TOKEN", token);
        }
        done(command.stdin(Stdio::null()).output().unwrap())
    };
    assert_eq!(far(&["login", &url], Some("wrong")).code, 4);
    assert!(!home.join("sless/login.json").exists(), "what does not work is not kept");
    let ok = far(&["login", &url], Some(token.trim()));
    assert!(ok.code == 0 && ok.out.contains("admin"), "{ok:?}");
    assert!(!ok.out.contains(token.trim()) && !ok.err.contains(token.trim()));
    let mode = fs::metadata(home.join("sless/login.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let list = far(&["list"], None);
    assert!(list.code == 0 && list.out.starts_with("NAME"), "{list:?}");
    let elsewhere = far(&["list", "--url", "http://192.0.2.1"], None);
    assert!(
        elsewhere.code == 4 && elsewhere.err.contains("sless login"),
        "the token is for its host alone: {elsewhere:?}"
    );
    assert_eq!(far(&["logout"], None).code, 0);
    assert!(!home.join("sless/login.json").exists());
}

#[test]
fn describe_tells_why_and_what_went_wrong() {
    let host = Host::start();
    let code = "def handle(event, context):\n    return event['name']\n";
    host.good(&["deploy", &host.folder("told", &[("handler.py", code)]), "--env", "KEY=hidden-value"]);
    host.good(&["invoke", "told", "-d", r#"{"name": "Ada"}"#]);
    assert_eq!(host.cli(&["invoke", "told", "-d", "{}"]).code, 1);
    host.until(|| host.good(&["describe", "told"]).contains("KeyError: 'name'"));
    let text = host.good(&["describe", "told"]);
    for part in
        ["told  Ready", "Ready      True", "2 in the last 15 min: 1 error, 1 success", "variables  KEY"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("hidden-value"));
    let broken = host.folder("told", &[("handler.py", "import nothing_like_this\n")]);
    assert_eq!(host.cli(&["deploy", &broken]).code, 1);
    let text = host.good(&["describe", "told"]);
    assert!(text.contains("told  Failed") && text.contains("nothing_like_this"), "{text}");
    let value: Value = serde_json::from_str(&host.good(&["describe", "told", "-o", "json"])).unwrap();
    assert_eq!(value["function"]["phase"], "Failed");
    assert_eq!(value["errors"][0]["error"]["type"], "KeyError");
    assert_eq!(host.cli(&["describe", "nobody"]).code, 5);
}

#[test]
fn revisions_are_listed_and_gone_back_to() {
    let host = Host::start();
    let deploy = |text: &str| host.good(&["deploy", &host.folder("back", &[("handler.py", &version(text))])]);
    deploy("one");
    deploy("two");
    assert_eq!(host.good(&["invoke", "back"]), "two");
    let list: Value = serde_json::from_str(&host.good(&["revisions", "back", "-o", "json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["active"], &list[1]["active"]), (&Value::Bool(true), &Value::Bool(false)));
    host.good(&["rollback", "back"]);
    assert_eq!(host.good(&["invoke", "back"]), "one");
    let newest = list[0]["revision"].as_str().unwrap();
    host.good(&["rollback", "back", newest]);
    assert_eq!(host.good(&["invoke", "back"]), "two");
    let unknown = host.cli(&["rollback", "back", "nothing-like-this"]);
    assert!(unknown.code == 6 && unknown.err.contains("revision"), "{unknown:?}");
}

#[test]
fn logs_of_builds_and_calls_are_followed_to_their_end() {
    let host = Host::start();
    let code = "import time\ndef handle(event, context):\n    for n in range(3):\n        print('step', n)\n        time.sleep(0.3)\n";
    host.good(&[
        "deploy",
        &host.folder("slow", &[("handler.py", code), ("requirements.txt", "# nothing\n")]),
    ]);
    assert!(host.good(&["build", "show", "slow"]).contains("Ready"));
    let log = host.good(&["build", "logs", "slow"]);
    assert_eq!(host.good(&["build", "logs", "slow", "--follow"]), log);
    let call = host.command(&["invoke", "slow"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut call = call.unwrap();
    let running = || -> Option<String> {
        let list: Value = serde_json::from_str(&host.good(&["invocations", "slow", "-o", "json"])).unwrap();
        Some(list.get(0)?["id"].as_str()?.to_owned())
    };
    host.until(|| running().is_some());
    let id = running().unwrap();
    assert_eq!(host.good(&["logs", "slow", "--invocation", &id, "--follow"]), "step 0\nstep 1\nstep 2\n");
    let items = host.good(&["logs", "slow", "--invocation", &id, "--follow", "-o", "json"]);
    let items: Vec<Value> = items.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((items.len(), &items[2]["text"]), (3, &Value::from("step 2")));
    assert!(call.wait().unwrap().success());
}

#[test]
fn doctor_and_completion_answer_with_and_without_a_host() {
    let mut host = Host::start();
    let value: Value = serde_json::from_str(&host.good(&["doctor", "-o", "json"])).unwrap();
    let level = |what: &str| {
        let found = value.as_array().unwrap().iter().find(|item| item["what"] == what);
        found.unwrap_or_else(|| panic!("{what} is not in {value}"))["level"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (level("supervisor"), level("host"), level("data folder")),
        ("ok".into(), "ok".into(), "ok".into())
    );
    let bare = host.command(&["doctor"]).env("PATH", "/nowhere").env("DATA_DIR", "/tmp/x").output().unwrap();
    let bare = done(bare);
    assert_eq!(bare.code, 7, "{bare:?}");
    for part in ["python3.11 is not in PATH", "node is not in PATH", "set DATA_DIR", "sless login"] {
        assert!(bare.out.contains(part), "{part:?} is not in {bare:?}");
    }
    host.stop(Signal::SIGTERM);
    let value: Value = serde_json::from_str(&host.good(&["doctor", "-o", "json"])).unwrap();
    let told = value.as_array().unwrap().iter().find(|item| item["what"] == "host").unwrap();
    assert!(told["level"] == "warning" && told["text"].as_str().unwrap().contains("sless up"), "{told}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(host.good(&["completion", shell]).contains("invocations"));
    }
}
