//! Both steps as processes, against a server that has the zip and, for the second one, a real registry.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use zip::write::SimpleFileOptions;

fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Answers every request alike.
async fn server(status: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = socket.read(&mut head).await;
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = socket.write_all(answer.as_bytes()).await;
            let _ = socket.write_all(&body).await;
        }
    });
    format!("http://{address}/code.zip?signature=x")
}

async fn install(root: &Path, url: &str, sha256: &str, more: &[(&str, &str)]) -> (Output, Value) {
    let log = root.join("termination");
    let _ = fs::remove_file(&log);
    for name in ["work", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_sless-install"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("CODE_URL", url).env("CODE_SHA256", sha256).env("RUNTIME", "python3.11");
    command.env("WORK", root.join("work")).env("TEMP", root.join("tmp")).env("TERMINATION_LOG", &log);
    command.env("INDEX_DIR", root.join("index"));
    let output = command.envs(more.iter().copied()).output().await.unwrap();
    (output, serde_json::from_slice(&fs::read(log).unwrap()).unwrap())
}

#[tokio::test]
async fn code_is_fetched_checked_unpacked_and_compiled() {
    let root = tempfile::tempdir().unwrap();
    let code = zip(&[("handler.py", "def handle(e):\n    return 1\n"), ("bad.py", "print 1\n")]);
    let url = server("200 OK", code.clone()).await;
    let (output, plan) = install(root.path(), &url, &sha256(&code), &[]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(plan["dependencies"], Value::Null);
    let first: Value =
        serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().next().unwrap()).unwrap();
    assert!(first["text"].as_str().unwrap().starts_with("unpacked 2 files"), "{first}");
    let function = root.path().join("work/function");
    let compiled = fs::read(function.join("__pycache__/handler.cpython-311.pyc")).unwrap();
    // PEP 552: flags 1 mean byte code that is known by a hash, and not compared with its source.
    assert_eq!(compiled[4..8], [1, 0, 0, 0]);
    let text = String::from_utf8_lossy(&compiled).into_owned();
    assert!(text.contains("/app/function/handler.py") && !text.contains("work/function"), "{text}");

    let content = plan["content_sha256"].as_str().unwrap().to_owned();
    let same = install(root.path(), &url, &sha256(&code), &[("CONTENT_SHA256", &content)]).await;
    assert!(same.0.status.success(), "{same:?}");
    let (output, reason) =
        install(root.path(), &url, &sha256(&code), &[("CONTENT_SHA256", &"0".repeat(64))]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(reason["error"].as_str().unwrap().contains("contentSha256"), "{reason}");
}

#[tokio::test]
async fn who_has_to_do_something_is_told_by_the_exit_code() {
    let root = tempfile::tempdir().unwrap();
    let code = zip(&[("handler.py", "def handle(e):\n    return 1\n")]);
    let url = server("200 OK", code.clone()).await;
    let (output, reason) = install(root.path(), &url, &sha256(b"another"), &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(reason["error"].as_str().unwrap().contains("SHA-256"), "{reason}");

    let gone = server("404 Not Found", Vec::new()).await;
    let (output, reason) = install(root.path(), &gone, &sha256(&code), &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(reason["error"].as_str().unwrap().contains("upload it again"), "{reason}");

    let expired = server("403 Forbidden", Vec::new()).await;
    assert_eq!(install(root.path(), &expired, &sha256(&code), &[]).await.0.status.code(), Some(75));

    let nothing = zip(&[("other.py", "")]);
    let url = server("200 OK", nothing.clone()).await;
    let (output, reason) = install(root.path(), &url, &sha256(&nothing), &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(reason["error"].as_str().unwrap().contains("handler.py"), "{reason}");

    let (output, _) = install(root.path(), &url, &sha256(&nothing), &[("KNOWN_DEPENDENCIES", "{")]).await;
    assert_eq!(output.status.code(), Some(78));
}

#[tokio::test]
async fn known_dependencies_are_not_installed() {
    let root = tempfile::tempdir().unwrap();
    // Nothing has this name: an install would fail.
    let code = zip(&[
        ("handler.py", "def handle(e):\n    return 1\n"),
        ("requirements.txt", "sless-no-such-package==1\n"),
    ]);
    let url = server("200 OK", code.clone()).await;
    let index = [("PIP_INDEX_URL", "http://127.0.0.1:9/simple"), ("PIP_RETRIES", "0")];
    let (output, reason) = install(root.path(), &url, &sha256(&code), &index).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(reason["error"].as_str().unwrap().contains("pip failed"), "{reason}");
    let key = {
        // The key is told only by what succeeds: made with an empty index of the right name.
        let root = tempfile::tempdir().unwrap();
        let wheels = tempfile::tempdir().unwrap();
        fs::write(wheels.path().join("sless_no_such_package-1-py3-none-any.whl"), wheel()).unwrap();
        let find = wheels.path().to_str().unwrap();
        let local = [("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", find)];
        let (output, plan) = install(root.path(), &url, &sha256(&code), &local).await;
        assert!(output.status.success(), "{output:?}");
        assert!(root.path().join("work/dependencies/.sless/python/sless_no_such.py").is_file());
        assert!(!root.path().join("work/function/.sless/python").exists());
        plan["dependencies"].as_str().unwrap().to_owned()
    };
    let known = format!(r#"[{{"key":"{key}","digest":"sha256:d","diff_id":"sha256:i","size":1}}]"#);
    let (output, plan) =
        install(root.path(), &url, &sha256(&code), &[("KNOWN_DEPENDENCIES", &known), index[0], index[1]])
            .await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(plan["dependencies"], key.as_str());
    assert!(!root.path().join("work/dependencies").exists());
}

/// The smallest that pip takes: <https://packaging.python.org/en/latest/specifications/binary-distribution-format/>.
fn wheel() -> Vec<u8> {
    let info = "sless_no_such_package-1.dist-info";
    zip(&[
        ("sless_no_such.py", "x = 1\n"),
        (&format!("{info}/METADATA"), "Metadata-Version: 2.1\nName: sless-no-such-package\nVersion: 1\n"),
        (
            &format!("{info}/WHEEL"),
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        (&format!("{info}/RECORD"), ""),
    ])
}

async fn pack(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sless-pack"));
    command.env_clear().env("TERMINATION_LOG", folder.path().join("log")).env("WORK", folder.path());
    let output = command.args(arguments).envs(variables.iter().copied()).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn removing_tags_needs_no_setting_of_packing_and_packing_needs_its_own() {
    // Nobody listens there: it has got as far as asking.
    let insecure = ("REGISTRY_INSECURE", "true");
    let (code, said) = pack(&["remove", "127.0.0.1:9/team/f"], &[insecure]).await;
    assert_eq!(code, Some(75), "{said}");
    let (code, said) = pack(&[], &[insecure]).await;
    assert_eq!(code, Some(78), "{said}");
    let whole = [insecure, ("BASE", "127.0.0.1:9/base:1"), ("TARGET", "127.0.0.1:9/team/f:1")];
    let (code, said) = pack(&[], &whole).await;
    assert!(code == Some(1) && said.contains("No such file"), "{code:?} {said}");
}
