//! Builds with real installers, without a package index: packages are local folders.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[allow(dead_code, reason = "each test file uses what it needs of it")]
mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sless_builder::{
    BuildError, BuildJob, HostEnvironment, IndexAccess, Limits, Memory, Placing, build, read_log,
};
use support::{file, pack};

fn job(root: &Path, runtime: &str, files: &[(&str, &str)]) -> BuildJob {
    let entries: Vec<_> = files.iter().map(|(name, text)| file(name, text)).collect();
    fs::write(root.join("code.zip"), pack(&entries)).unwrap();
    BuildJob {
        archive: fs::File::open(root.join("code.zip")).unwrap(),
        folder: root.join("code"),
        log: fs::File::create(root.join("log")).unwrap(),
        cache: root.join("cache"),
        runtime: runtime.parse().unwrap(),
        entrypoint: sless_core::Entrypoint::default(),
        limit: Duration::from_secs(120),
        limits: Limits::default(),
        launcher: Vec::new(),
        index: IndexAccess::default(),
        memory: Memory::Each { limit_bytes: 2 << 30 },
        dependencies: Placing::Within,
        environment: HostEnvironment::pick(
            std::env::vars_os().chain([("OF_THE_HOST".into(), "sentinel".into())]),
        ),
    }
}

fn log_of(root: &Path) -> String {
    read_log(&root.join("log")).unwrap().into_iter().map(|line| line.text + "\n").collect()
}

#[tokio::test]
async fn npm_installs_with_scripts_that_see_nothing_of_the_host() {
    let root = tempfile::tempdir().unwrap();
    let manifest = r#"{"name": "f", "version": "1.0.0", "scripts": {"preinstall": "node steal.js"}, "dependencies": {"dep": "file:./dep"}}"#;
    let steal = "require('fs').writeFileSync('env.json', JSON.stringify(process.env))";
    let files = [
        ("handler.js", "exports.handle = () => 1"),
        ("package.json", manifest),
        ("steal.js", steal),
        ("dep/package.json", r#"{"name": "dep", "version": "1.0.0"}"#),
    ];
    let contents = build(job(root.path(), "nodejs20", &files)).await.unwrap().contents;
    assert_eq!(contents.files, 4);
    assert!(root.path().join("code/node_modules/dep/package.json").is_file());
    let seen = fs::read_to_string(root.path().join("code/env.json")).unwrap();
    assert!(!seen.contains("sentinel") && seen.contains("PATH"), "{seen}");
    assert!(log_of(root.path()).contains("$ npm install"), "{}", log_of(root.path()));
}

#[tokio::test]
async fn a_requirement_that_is_not_there_is_named() {
    let root = tempfile::tempdir().unwrap();
    let files = [("handler.py", "x"), ("requirements.txt", "--no-index\nnothing-like-this==99.99.99\n")];
    let error = build(job(root.path(), "python3.11", &files)).await.unwrap_err();
    assert!(matches!(error, BuildError::Install { tool: "pip", .. }), "{error:?}");
    assert!(error.to_string().contains("nothing-like-this==99.99.99"), "{error}");
    assert!(log_of(root.path()).contains("99.99.99"));
    assert!(!root.path().join("code").exists());
}

#[tokio::test]
async fn a_build_ends_at_its_limit_with_all_that_it_started() {
    let root = tempfile::tempdir().unwrap();
    let hang = format!(
        "const child = require('child_process').spawn('sleep', ['600'], {{ detached: true, stdio: 'ignore' }})\nrequire('fs').writeFileSync({:?}, String(child.pid))\nsetTimeout(() => {{}}, 600000)\n",
        root.path().join("child")
    );
    let manifest = r#"{"name": "f", "version": "1.0.0", "scripts": {"preinstall": "node hang.js"}, "dependencies": {"dep": "file:./dep"}}"#;
    let files = [
        ("handler.js", "exports.handle = () => 1"),
        ("package.json", manifest),
        ("hang.js", &hang),
        ("dep/package.json", r#"{"name": "dep", "version": "1.0.0"}"#),
    ];
    let mut job = job(root.path(), "nodejs20", &files);
    job.limit = Duration::from_secs(6);
    let started = Instant::now();
    let error = build(job).await.unwrap_err();
    assert!(error.to_string().contains("build_timeout_sec"), "{error}\n{}", log_of(root.path()));
    assert!(started.elapsed() < Duration::from_secs(12));
    let child = fs::read_to_string(root.path().join("child")).unwrap();
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap().trim_start().chars().next()
    };
    // Killed it is; on a busy machine it has yet to get its turn to die.
    let killed = Instant::now();
    while !matches!(state(), None | Some('Z' | 'X')) {
        assert!(killed.elapsed() < Duration::from_secs(5), "the child in its own session is {:?}", state());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_broken_manifest_fails_the_build_and_says_where() {
    let root = tempfile::tempdir().unwrap();
    let error = build(job(root.path(), "nodejs20", &[("handler.js", "x"), ("package.json", "{,}")]))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("package.json is not valid JSON"), "{error}");
}

#[tokio::test]
async fn a_build_that_needs_too_much_memory_says_so() {
    let root = tempfile::tempdir().unwrap();
    let hog = "const all = []\nfor (let i = 0; i < 32; i++) all.push(Buffer.alloc(64 << 20, 1))\nconsole.log('ate it')\n";
    let manifest = r#"{"name": "f", "version": "1.0.0", "scripts": {"preinstall": "node hog.js"}, "dependencies": {"dep": "file:./dep"}}"#;
    let files = [
        ("handler.js", "exports.handle = () => 1"),
        ("package.json", manifest),
        ("hog.js", hog),
        ("dep/package.json", r#"{"name": "dep", "version": "1.0.0"}"#),
    ];
    let mut job = job(root.path(), "nodejs20", &files);
    // Without a control group each process has the limit for itself.
    job.memory = Memory::Each { limit_bytes: 1 << 30 };
    let error = build(job).await.unwrap_err();
    let log = log_of(root.path());
    assert!(!log.contains("ate it") && error.to_string().to_lowercase().contains("alloc"), "{error}\n{log}");
}

#[tokio::test]
async fn an_addon_of_another_platform_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let files =
        [("handler.js", "require('./build/a.node')"), ("build/a.node", "MZ, as programs of Windows begin")];
    let error = build(job(root.path(), "nodejs20", &files)).await.unwrap_err().to_string();
    assert!(
        error.contains("`build/a.node` is built for Windows") && error.contains("package.json"),
        "{error}"
    );
    let installed = [
        ("handler.js", "1"),
        ("node_modules/dep/a.node", "MZ"),
        ("package.json", r#"{"name": "f", "version": "1.0.0", "dependencies": {"dep": "file:./dep"}}"#),
        ("dep/package.json", r#"{"name": "dep", "version": "1.0.0"}"#),
    ];
    let second = root.path().join("second");
    fs::create_dir(&second).unwrap();
    build(job(&second, "nodejs20", &installed)).await.unwrap();
}
