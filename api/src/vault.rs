//! Encrypts what secrets hold. The key lies in a file beside the database, never in it: who has the one alone can read nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{Key, KeyInit, XChaCha20Poly1305, XNonce};
use sless_backend::Secret;
use sless_core::{Namespace, SecretName};

use crate::store::StoreError;

const KEY_BYTES: usize = 32;
/// So long that a random one never comes twice.
const NONCE_BYTES: usize = 24;
/// The first byte of what is sealed says how: XChaCha20-Poly1305, the nonce in front.
const FORM: u8 = 1;

/// See the module.
pub(crate) struct Vault {
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault(…)")
    }
}

impl Vault {
    /// Reads the key in the file `path`, or makes one.
    ///
    /// # Errors
    /// If the file can't be read or made, or holds no key: a new one in its place would make every secret unreadable.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make(path)?;
                fs::read_to_string(path)?
            }
            other => other?,
        };
        let key = STANDARD.decode(text.trim()).ok().filter(|key| key.len() == KEY_BYTES);
        let key = key.ok_or_else(|| {
            let says =
                format!("it must hold {KEY_BYTES} bytes in Base64; put it back from a backup, or remove it and set all secrets anew");
            io::Error::new(io::ErrorKind::InvalidData, says)
        })?;
        Ok(Self { cipher: XChaCha20Poly1305::new(Key::from_slice(&key)) })
    }

    /// # Errors
    /// If the system has no random numbers to give.
    pub(crate) fn seal(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        values: &BTreeMap<String, Secret>,
    ) -> Result<Vec<u8>, StoreError> {
        fn failed(source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
            StoreError::Failed { action: "encrypt a secret", source: source.into() }
        }
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(failed)?;
        let values: BTreeMap<&str, &str> = values.iter().map(|(k, v)| (k.as_str(), v.reveal())).collect();
        let text = serde_json::to_vec(&values).map_err(failed)?;
        // Bound to its name: a row that is copied to another one can't be read there.
        let owner = owner(namespace, name);
        let payload = Payload { msg: &text, aad: owner.as_bytes() };
        let sealed = self.cipher.encrypt(XNonce::from_slice(&nonce), payload).map_err(failed)?;
        Ok([&[FORM][..], &nonce, &sealed].concat())
    }

    /// What [`Vault::seal`] has sealed with the same key; `None` if it was another key, or the bytes are not the same.
    #[must_use]
    pub(crate) fn unseal(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        sealed: &[u8],
    ) -> Option<BTreeMap<String, Secret>> {
        let (nonce, sealed) = sealed.strip_prefix(&[FORM])?.split_at_checked(NONCE_BYTES)?;
        let owner = owner(namespace, name);
        let payload = Payload { msg: sealed, aad: owner.as_bytes() };
        let text = self.cipher.decrypt(XNonce::from_slice(nonce), payload).ok()?;
        let values: BTreeMap<String, String> = serde_json::from_slice(&text).ok()?;
        Some(values.into_iter().map(|(key, value)| (key, Secret::new(value))).collect())
    }
}

fn owner(namespace: &Namespace, name: &SecretName) -> String {
    format!("{namespace}/{name}")
}

/// A key that is there whole or not at all, and that never replaces one.
fn make(path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{}", STANDARD.encode(key))?;
    file.sync_all()?;
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh)?;
    match linked {
        // Somebody else was quicker: theirs counts.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_same_key_opens_the_same_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let vault = Vault::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let values = BTreeMap::from([("PASSWORD".to_owned(), Secret::new("s3cr3t-value"))]);
        let namespace: Namespace = "default".parse().unwrap();
        let (db, elsewhere) = ("db".parse().unwrap(), "other".parse().unwrap());
        let sealed = vault.seal(&namespace, &db, &values).unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"s3cr3t"));
        assert_ne!(vault.seal(&namespace, &db, &values).unwrap(), sealed, "never the same nonce");
        assert_eq!(Vault::open(&path).unwrap().unseal(&namespace, &db, &sealed), Some(values));
        assert_eq!(vault.unseal(&namespace, &elsewhere, &sealed), None);
        for n in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[n] ^= 1;
            assert_eq!(vault.unseal(&namespace, &db, &bent), None, "byte {n}");
        }
        assert_eq!(vault.unseal(&namespace, &db, &sealed[..10]), None);
        let other = Vault::open(&folder.path().join("other")).unwrap();
        assert_eq!(other.unseal(&namespace, &db, &sealed), None);
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "c2hvcnQ=").unwrap();
        assert!(Vault::open(&path).unwrap_err().to_string().contains("backup"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "c2hvcnQ=");
        make(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "c2hvcnQ=", "never replaced");
    }
}
