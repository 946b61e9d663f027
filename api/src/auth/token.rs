//! Tokens as texts, and what is kept of them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use sless_backend::Secret;
use subtle::ConstantTimeEq;

use crate::problem::Problem;

/// Lets people and scanners of secrets know what they have found.
const PREFIX: &str = "sless_";

/// What is kept of a token. A plain hash is enough: nobody guesses 256 random bits.
#[derive(Clone, Copy)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    #[must_use]
    pub(crate) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    #[must_use]
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Takes the same time whatever differs.
    #[must_use]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// A token that nobody has yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) text: Secret,
    pub(crate) hash: TokenHash,
}

impl Fresh {
    /// # Errors
    /// If the system has no random numbers to give.
    pub(crate) fn make() -> Result<Self, Problem> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| Problem::internal("make a token", &error))?;
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        Ok(Self { hash: TokenHash::of(&text), text: Secret::new(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_token_is_found_by_its_hash_and_never_printed() {
        let (one, other) = (Fresh::make().unwrap(), Fresh::make().unwrap());
        assert!(TokenHash::of(one.text.reveal()).is(&one.hash) && !one.hash.is(&other.hash));
        assert_eq!(one.text.reveal().len(), PREFIX.len() + 43);
        assert!(!format!("{one:?}").contains(one.text.reveal()));
    }
}
