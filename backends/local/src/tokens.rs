//! The tokens that supervisors and host know each other by.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use sha2::{Digest, Sha256};
use sless_backend::{FunctionRef, Secret};
use uuid::Uuid;

use crate::layout::Layout;

/// Whose report token is whose. Kept by their hashes: they are not printed, and a look-up tells nothing by its time.
#[derive(Debug, Default)]
pub(crate) struct ReportTokens(RwLock<HashMap<[u8; 32], FunctionRef>>);

impl ReportTokens {
    /// Makes the function's token if it has none, and remembers it.
    pub(crate) fn issue(&self, layout: &Layout, function: &FunctionRef) -> io::Result<()> {
        let token = read_or_make(&layout.report_token(function))?;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(hash(token.reveal()), function.clone());
        Ok(())
    }

    pub(crate) fn revoke(&self, function: &FunctionRef) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, owner| owner != function);
    }

    pub(crate) fn owner(&self, token: &str) -> Option<FunctionRef> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&hash(token)).cloned()
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The token in the file `path`; a new one is written there, whole or not at all, if there is none.
pub(crate) fn read_or_make(path: &Path) -> io::Result<Secret> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(Secret::new(text.trim())),
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // 244 random bits.
    let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_nobody_elses() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("token");
        let token = read_or_make(&path).unwrap();
        assert!(token.reveal().len() == 64 && read_or_make(&path).unwrap() == token);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, " \n").unwrap();
        assert_ne!(read_or_make(&path).unwrap(), token, "an empty file is no token");
    }
}
