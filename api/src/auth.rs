//! Who calls: bearer tokens, what they are bound to and what their role allows.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sless_backend::Secret;
use sless_core::Namespace;
use subtle::ConstantTimeEq;

use crate::problem::{Code, Problem};

/// What a token allows; each also what those before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Reads all but tokens.
    Viewer,
    /// Also calls: invoke, replay, cancel.
    Invoker,
    /// Also changes all but tokens.
    Deployer,
    /// All of it.
    Admin,
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Caller {
    /// What the token is bound to; `None`: it may name any.
    pub(crate) namespace: Option<Namespace>,
    /// The token's name.
    pub(crate) subject: String,
    pub(crate) role: Role,
}

impl Caller {
    /// The namespace that the path names, if the caller may do there what needs `role`.
    ///
    /// # Errors
    /// `NotFound` for a namespace that isn't the token's own or is no name, `Forbidden` for a role too low.
    pub(crate) fn enter(&self, namespace: &str, role: Role) -> Result<Namespace, Problem> {
        let not_there = || Problem::not_found(format!("namespace {namespace:?} for this token"));
        let parsed: Namespace = namespace.parse().map_err(|_| not_there())?;
        if self.namespace.as_ref().is_some_and(|own| *own != parsed) {
            return Err(not_there());
        }
        if self.role < role {
            let (has, needs) =
                (format!("{:?}", self.role).to_lowercase(), format!("{role:?}").to_lowercase());
            return Err(Problem::new(
                Code::Forbidden,
                format!("the token's role is {has}, this needs {needs}"),
            ));
        }
        Ok(parsed)
    }
}

/// Checks tokens.
#[derive(Debug)]
pub(crate) struct Auth {
    /// Of `API_TOKEN`; a digest, so that lengths don't show in how long the comparison takes.
    admin: [u8; 32],
}

impl Auth {
    #[must_use]
    pub(crate) fn new(token: &Secret) -> Self {
        Self { admin: Sha256::digest(token.reveal()).into() }
    }

    /// # Errors
    /// `Unauthorized` without a valid token.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let token = bearer(headers).ok_or_else(Problem::unauthorized)?;
        let digest: [u8; 32] = Sha256::digest(token).into();
        if bool::from(digest.ct_eq(&self.admin)) {
            return Ok(Caller { namespace: None, subject: "API_TOKEN".to_owned(), role: Role::Admin });
        }
        Err(Problem::unauthorized())
    }
}

/// The token of `Authorization: Bearer TOKEN`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_taken() {
        let auth = Auth::new(&Secret::new("s3cret"));
        for (value, good) in [
            ("Bearer s3cret", true),
            ("bearer  s3cret", true),
            ("Bearer s3cre", false),
            ("Basic s3cret", false),
            ("Bearer ", false),
            ("s3cret", false),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(auth.caller(&headers).is_ok(), good, "{value}");
        }
        assert_eq!(auth.caller(&HeaderMap::new()).unwrap_err().code, Code::Unauthorized);
    }

    #[test]
    fn a_bound_token_sees_its_own_namespace_and_does_what_its_role_allows() {
        let caller =
            Caller { namespace: Some("a".parse().unwrap()), subject: "ci".into(), role: Role::Invoker };
        assert!(caller.enter("a", Role::Viewer).is_ok() && caller.enter("a", Role::Invoker).is_ok());
        assert_eq!(caller.enter("a", Role::Deployer).unwrap_err().code, Code::Forbidden);
        assert_eq!(caller.enter("b", Role::Viewer).unwrap_err().code, Code::NotFound);
        let admin = Caller { namespace: None, ..caller };
        assert!(admin.enter("b", Role::Viewer).is_ok());
        assert_eq!(admin.enter("../x", Role::Viewer).unwrap_err().code, Code::NotFound);
    }
}
