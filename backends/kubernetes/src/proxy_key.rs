//! The key that functions' proxy tokens are made from.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as Object;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};
use sless_backend::BackendError;
use sless_crds::names::PROXY_KEY;

use crate::error::{is_already_there, within};

/// The one key in the Secret.
const FIELD: &str = "key";
/// Fewer bytes are nobody's key, but a mistake.
const LEAST: usize = 16;

/// Never printed.
pub(crate) struct ProxyKey(Vec<u8>);

impl std::fmt::Debug for ProxyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProxyKey(…)")
    }
}

impl ProxyKey {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads it, and makes it if it isn't there: whoever of API and controller comes first.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] may be tried again; [`BackendError::Conflict`] if the Secret is not as we make it.
    pub(crate) async fn load(client: &Client, namespace: &str) -> Result<Self, BackendError> {
        let secrets = Api::<Object>::namespaced(client.clone(), namespace);
        let action = format!("read Secret {PROXY_KEY:?} in namespace {namespace:?}");
        loop {
            if let Some(object) = within(&action, secrets.get_opt(PROXY_KEY)).await? {
                return Self::of(&object, namespace);
            }
            let made = new_key()?;
            let created = async {
                match secrets.create(&PostParams::default(), &made).await {
                    Ok(object) => Ok(Some(object)),
                    // Somebody else was quicker: theirs counts.
                    Err(error) if is_already_there(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            };
            let action = format!("make Secret {PROXY_KEY:?} in namespace {namespace:?}");
            if let Some(object) = within(&action, created).await? {
                return Self::of(&object, namespace);
            }
        }
    }

    fn of(object: &Object, namespace: &str) -> Result<Self, BackendError> {
        let key = object.data.as_ref().and_then(|data| data.get(FIELD)).map(|bytes| bytes.0.clone());
        match key {
            Some(key) if key.len() >= LEAST => Ok(Self(key)),
            _ => Err(BackendError::Conflict(format!(
                "Secret {PROXY_KEY:?} in namespace {namespace:?} has no {FIELD:?} of {LEAST} bytes or more; delete it, and a new one is made"
            ))),
        }
    }
}

fn new_key() -> Result<Object, BackendError> {
    let mut key = vec![0; 32];
    getrandom::fill(&mut key).map_err(|source| BackendError::Unavailable {
        action: "make a random key".to_owned(),
        source: Box::new(std::io::Error::other(source.to_string())),
    })?;
    Ok(Object {
        metadata: ObjectMeta { name: Some(PROXY_KEY.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([(FIELD.to_owned(), ByteString(key))])),
        type_: Some("Opaque".to_owned()),
        ..Object::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_good_and_no_two_are_the_same() {
        let keys =
            [new_key().unwrap(), new_key().unwrap()].map(|object| ProxyKey::of(&object, "sless").unwrap());
        assert_ne!(keys[0].bytes(), keys[1].bytes());
        assert_eq!(format!("{:?}", keys[0]), "ProxyKey(…)");
        let empty = Object::default();
        assert!(matches!(ProxyKey::of(&empty, "sless"), Err(BackendError::Conflict(_))));
    }
}
