//! The suite of code stores against real servers: `SLESS_TEST_S3` names them (`http://HOST:PORT`, separated by spaces), whose
//! keys are `test` and `test-secret`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

use sless_backend::{CodeError, CodeStore, Secret, code_suite};
use sless_codestore_s3::{S3Settings, S3Store};

fn settings(endpoint: &str, bucket: &str) -> S3Settings {
    S3Settings {
        endpoint: Some(endpoint.to_owned()),
        region: S3Settings::DEFAULT_REGION.to_owned(),
        bucket: bucket.to_owned(),
        access_key_id: Secret::new("test"),
        secret_access_key: Secret::new("test-secret"),
        force_path_style: true,
    }
}

fn servers() -> Vec<String> {
    match std::env::var("SLESS_TEST_S3") {
        Ok(servers) => servers.split_whitespace().map(str::to_owned).collect(),
        Err(_) => {
            eprintln!("not run: SLESS_TEST_S3 is not set; scripts/test sets it");
            Vec::new()
        }
    }
}

/// Unlike those of other runs.
fn bucket(what: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("sless-{what}-{}-{}", std::process::id(), now.as_micros())
}

#[tokio::test]
async fn s3_is_a_code_store() {
    for server in servers() {
        let folder = tempfile::tempdir().unwrap();
        let store = S3Store::open(&settings(&server, &bucket("suite"))).await.unwrap();
        code_suite::run(&store, folder.path()).await;
    }
}

#[tokio::test]
async fn the_bucket_is_made_once_whoever_comes_first() {
    for server in servers() {
        let settings = settings(&server, &bucket("made"));
        let (one, other) = tokio::join!(S3Store::open(&settings), S3Store::open(&settings));
        one.unwrap();
        other.unwrap();
        S3Store::open(&settings).await.unwrap();
    }
}

#[tokio::test]
async fn more_than_a_page_of_code_is_listed() {
    for server in servers() {
        let store = S3Store::open(&settings(&server, &bucket("pages"))).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let upload = folder.path().join("upload");
        std::fs::write(&upload, "zip").unwrap();
        let f =
            sless_backend::FunctionRef { namespace: "default".parse().unwrap(), name: "f".parse().unwrap() };
        for n in 0..1100_u32 {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&n.to_le_bytes());
            store.put_if_absent(&f, &sless_core::Digest::new(digest), &upload).await.unwrap();
        }
        assert_eq!(store.list(&f).await.unwrap().len(), 1100, "{server}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_named_as_the_reason() {
    // Nobody listens on the port of a listener that is gone.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let error = S3Store::open(&settings(&format!("http://{addr}"), "bucket")).await.unwrap_err();
    let CodeError::Failed { action, source } = error else { panic!("{error:?}") };
    assert_eq!(action, "use the bucket \"bucket\"");
    assert!(source.to_string().contains("refused"), "{source}");
}

#[tokio::test]
async fn the_code_of_a_namespace_goes_as_a_whole_and_no_other_does() {
    for server in servers() {
        let folder = tempfile::tempdir().unwrap();
        let store = S3Store::open(&settings(&server, &bucket("forget"))).await.unwrap();
        let zip = folder.path().join("zip");
        std::fs::write(&zip, b"zip").unwrap();
        let digest = sless_core::Digest::new([1; 32]);
        let function = |namespace: &str, name: &str| sless_backend::FunctionRef {
            namespace: namespace.parse().unwrap(),
            name: name.parse().unwrap(),
        };
        let stays = function("team-b", "f");
        for function in [&function("team", "f"), &function("team", "g"), &stays] {
            store.put_if_absent(function, &digest, &zip).await.unwrap();
        }
        let team = "team".parse().unwrap();
        assert_eq!(store.forget(&team).await.unwrap(), 2);
        assert_eq!(store.forget(&team).await.unwrap(), 0);
        assert_eq!(store.list(&function("team", "f")).await.unwrap(), []);
        assert_eq!(store.list(&stays).await.unwrap(), [digest]);
    }
}
