//! What is settled once, before the first reconcile: the key of the proxy tokens, and which runtime images there are.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;
use sless_core::Runtime;
use sless_crds::names;
use sless_image::Registry;

use crate::config::Config;
use crate::context::RuntimeImage;
use crate::error::{Error, acting, chain, is_conflict};
use crate::{jitter, objects};

const KEY: &str = "key";
const KEY_BYTES: usize = 32;
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The key that functions' proxy tokens are made from; made here, if nobody has yet.
///
/// # Errors
/// [`Error::Kube`]; [`Error::Away`] if the Secret has no key, or there are no random numbers.
pub(crate) async fn proxy_key(client: &Client, namespace: &str) -> Result<Vec<u8>, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let action = || acting("read the Secret", names::PROXY_KEY);
    let there = match api.get_opt(names::PROXY_KEY).await.map_err(action())? {
        Some(there) => there,
        None => {
            let mut key = vec![0; KEY_BYTES];
            getrandom::fill(&mut key)
                .map_err(|e| Error::Away { action: "make a key".into(), problem: e.to_string() })?;
            let secret = Secret {
                metadata: objects::meta(names::PROXY_KEY, namespace),
                data: Some([(KEY.to_owned(), ByteString(key))].into()),
                immutable: Some(true),
                ..Secret::default()
            };
            match api.create(&PostParams::default(), &secret).await {
                Ok(made) => made,
                // Another one was faster.
                Err(error) if is_conflict(&error) => api.get(names::PROXY_KEY).await.map_err(action())?,
                Err(error) => return Err(acting("make the Secret", names::PROXY_KEY)(error)),
            }
        }
    };
    let key = there.data.unwrap_or_default().remove(KEY).map(|key| key.0).filter(|key| !key.is_empty());
    key.ok_or_else(|| Error::Away {
        action: format!("read the Secret {}", names::PROXY_KEY),
        problem: format!("it has no {KEY:?}; delete it, and it is made anew (functions then get new pods)"),
    })
}

/// The credential for the registry, if there is one: user and password.
///
/// # Errors
/// [`Error::Kube`].
pub(crate) async fn registry_login(
    client: &Client,
    config: &Config,
) -> Result<(bool, Option<(String, String)>), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), names::BUILDS);
    let secret =
        api.get_opt(names::REGISTRY_AUTH).await.map_err(acting("read the Secret", names::REGISTRY_AUTH))?;
    let Some(secret) = secret else { return Ok((false, None)) };
    let text = secret.data.unwrap_or_default().remove(".dockerconfigjson").unwrap_or_default();
    let host = config.registry.split('/').next().unwrap_or_default();
    Ok((true, login(&text.0, host)))
}

/// Of a Docker configuration.
fn login(config: &[u8], host: &str) -> Option<(String, String)> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let auths = config.get("auths")?;
    let entry = auths.get(host).or_else(|| auths.get(format!("https://{host}")))?;
    let field = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    if let (Some(user), Some(password)) = (field("username"), field("password")) {
        return Some((user, password));
    }
    let both = base64::engine::general_purpose::STANDARD.decode(field("auth")?).ok()?;
    let (user, password) = std::str::from_utf8(&both).ok()?.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// The runtimes' images by digest. Waits for the registry where a tag has to be asked for.
pub(crate) async fn runtimes(config: &Config, registry: &Registry) -> BTreeMap<Runtime, RuntimeImage> {
    let mut runtimes = BTreeMap::new();
    for (runtime, image) in &config.runtime_images {
        let by_digest = if image.contains("@sha256:") {
            image.clone()
        } else {
            format!("{}@{}", without_tag(image), ask(registry, &config.push_name(image)).await)
        };
        tracing::info!(runtime = %runtime, "runtime {runtime} is {by_digest}");
        runtimes
            .insert(runtime.clone(), RuntimeImage { push: config.push_name(&by_digest), pull: by_digest });
    }
    runtimes
}

async fn ask(registry: &Registry, image: &str) -> String {
    let mut failures = 0;
    loop {
        let problem = match tokio::time::timeout(PATIENCE, registry.digest(image)).await {
            Ok(Ok(digest)) => return digest,
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("ask for the digest of {image}: no answer within {PATIENCE:?}"),
        };
        tracing::warn!("{problem}");
        tokio::time::sleep(jitter::back_off(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        failures = failures.saturating_add(1);
    }
}

fn without_tag(image: &str) -> &str {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_tag() {
        assert_eq!(without_tag("registry:5000/a/b:1.0"), "registry:5000/a/b");
        assert_eq!(without_tag("registry:5000/a/b"), "registry:5000/a/b");
    }

    #[test]
    fn logins_are_written_in_two_ways() {
        let of = |text: &str| login(text.as_bytes(), "registry:5000");
        let both = Some(("user".to_owned(), "pass:word".to_owned()));
        assert_eq!(of(r#"{"auths":{"registry:5000":{"auth":"dXNlcjpwYXNzOndvcmQ="}}}"#), both);
        assert_eq!(of(r#"{"auths":{"registry:5000":{"username":"user","password":"pass:word"}}}"#), both);
        for other in [
            "",
            "{}",
            r#"{"auths":{"other":{"auth":"dXNlcjpw"}}}"#,
            r#"{"auths":{"registry:5000":{"auth":"!"}}}"#,
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
