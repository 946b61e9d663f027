//! Pushing to a real registry: `SLESS_TEST_REGISTRY` names it (`HOST:PORT`, over HTTP, its user `test` has the password `test-secret`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

use std::fs;
use std::path::Path;

use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use sha2::{Digest as _, Sha256};
use sless_image::{Added, Registry, RegistryError, pack};

fn registry() -> Option<(Registry, String)> {
    let Ok(host) = std::env::var("SLESS_TEST_REGISTRY") else {
        eprintln!("not run: SLESS_TEST_REGISTRY is not set; scripts/test sets it");
        return None;
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    Some((Registry::new(true, Some(("test".into(), "test-secret".into()))), host))
}

/// Unlike those of other runs.
fn fresh(what: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{what}-{}-{}", std::process::id(), now.as_nanos())
}

fn layer(folder: &Path, name: &str, text: &str) -> Added {
    let root = folder.join(name);
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("file"), text).unwrap();
    let file = folder.join(format!("{name}.tar.zst"));
    let layer = pack(&root, Path::new("app"), 1 << 20, fs::File::create(&file).unwrap()).unwrap();
    Added { layer, file: Some(file), from: None, made_by: format!("test: {name}") }
}

/// An image to stand on: one without layers, and one layer on top of that.
async fn base(registry: &Registry, host: &str, folder: &Path) -> String {
    let name = format!("{host}/{}:1", fresh("base"));
    let reference: Reference = name.parse().unwrap();
    let client = Client::new(ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() });
    let login = RegistryAuth::Basic("test".into(), "test-secret".into());
    client.auth(&reference, &login, RegistryOperation::Push).await.unwrap();
    let config = r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let digest = format!("sha256:{:x}", Sha256::digest(config));
    client.push_blob(&reference, config, &digest).await.unwrap();
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{}}},"layers":[]}}"#,
        config.len()
    );
    let kind = http::HeaderValue::from_static("application/vnd.oci.image.manifest.v1+json");
    client.push_manifest_raw(&reference, manifest.into_bytes(), kind).await.unwrap();
    registry.append(&name, &name, &[layer(folder, "base", "what is below")]).await.unwrap();
    name
}

#[tokio::test]
async fn equal_input_gives_an_equal_digest_and_sends_nothing_twice() {
    let Some((registry, host)) = registry() else { return };
    let folder = tempfile::tempdir().unwrap();
    let base = base(&registry, &host, folder.path()).await;
    let added =
        [layer(folder.path(), "dependencies", &fresh("d")), layer(folder.path(), "code", &fresh("c"))];
    let target = format!("{host}/{}:1", fresh("one"));
    let first = registry.append(&base, &target, &added).await.unwrap();
    assert_eq!(first.sent, 2);
    let again = registry.append(&base, &target, &added).await.unwrap();
    assert_eq!((again.digest.as_str(), again.sent), (first.digest.as_str(), 0));
    let elsewhere = format!("{host}/{}:7", fresh("two"));
    assert_eq!(registry.append(&base, &elsewhere, &added).await.unwrap().digest, first.digest);
    assert_eq!(registry.digest(&target).await.unwrap(), first.digest);
}

#[tokio::test]
async fn a_layer_is_mounted_from_where_it_is_and_missed_where_it_is_not() {
    let Some((registry, host)) = registry() else { return };
    let folder = tempfile::tempdir().unwrap();
    let base = base(&registry, &host, folder.path()).await;
    let dependencies = layer(folder.path(), "dependencies", &fresh("d"));
    let one = fresh("one");
    registry.append(&base, &format!("{host}/{one}:1"), std::slice::from_ref(&dependencies)).await.unwrap();

    let known = Added { file: None, from: Some(one), ..dependencies };
    let target = format!("{host}/{}:1", fresh("two"));
    let pushed = registry.append(&base, &target, std::slice::from_ref(&known)).await.unwrap();
    assert_eq!(pushed.sent, 0);

    let mut gone = known.clone();
    gone.layer.digest = format!("sha256:{}", "0".repeat(64));
    let error = registry.append(&base, &target, &[gone]).await.unwrap_err();
    assert!(matches!(error, RegistryError::Gone { .. }), "{error}");
    assert_eq!(
        registry.digest(&target).await.unwrap(),
        pushed.digest,
        "what failed leaves the target as it was"
    );
}

#[tokio::test]
async fn tags_are_removed_and_what_is_gone_is_no_fault() {
    let Some((registry, host)) = registry() else { return };
    let folder = tempfile::tempdir().unwrap();
    let base = base(&registry, &host, folder.path()).await;
    let repository = format!("{host}/{}", fresh("many"));
    for n in 0..3 {
        let added = [layer(folder.path(), "code", &n.to_string())];
        registry.append(&base, &format!("{repository}:{n}"), &added).await.unwrap();
    }
    assert_eq!(registry.remove(&repository, &["1".to_owned(), "never".to_owned()]).await.unwrap(), 1);
    assert!(registry.digest(&format!("{repository}:1")).await.is_err());
    assert!(registry.digest(&format!("{repository}:2")).await.is_ok());
    // More than a page of them, each of the same image.
    let added = [layer(folder.path(), "code", "many")];
    for n in 0..120 {
        registry.append(&base, &format!("{repository}:t{n}"), &added).await.unwrap();
    }
    assert_eq!(registry.remove(&repository, &[]).await.unwrap(), 3);
    assert_eq!(registry.remove(&repository, &[]).await.unwrap(), 0);
    assert_eq!(registry.remove(&format!("{host}/{}", fresh("never")), &[]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_base_are_told() {
    let Some((registry, host)) = registry() else { return };
    let folder = tempfile::tempdir().unwrap();
    let base = base(&registry, &host, folder.path()).await;
    let added = [layer(folder.path(), "code", "x")];
    let target = format!("{host}/{}:1", fresh("one"));
    let stranger = Registry::new(true, Some(("test".into(), "wrong".into())));
    let error = stranger.append(&base, &target, &added).await.unwrap_err();
    assert!(error.to_string().contains(&host), "{error}");
    let error = registry.append(&format!("{host}/nothing:1"), &target, &added).await.unwrap_err();
    assert!(error.to_string().contains("nothing:1"), "{error}");
}
