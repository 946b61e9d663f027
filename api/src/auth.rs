//! Who calls: bearer tokens, what they are bound to and what their role allows.

mod token;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde::Serialize;
use sless_backend::Secret;
use sless_core::Namespace;

use crate::problem::{Code, Problem};
use crate::store::Records;
use sless_backend::Moment;

pub(crate) use token::{Fresh, TokenHash};

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

impl Role {
    pub(crate) const ALL: [Self; 4] = [Self::Viewer, Self::Invoker, Self::Deployer, Self::Admin];

    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Invoker => "invoker",
            Self::Deployer => "deployer",
            Self::Admin => "admin",
        }
    }

    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
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
            let (has, needs) = (self.role.as_str(), role.as_str());
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
    admin: TokenHash,
}

impl Auth {
    #[must_use]
    pub(crate) fn new(token: &Secret) -> Self {
        Self { admin: TokenHash::of(token.reveal()) }
    }

    /// Asks the store each time, so that a token that was deleted is refused from then on, whichever process deleted it.
    ///
    /// # Errors
    /// `Unauthorized` without a valid token, and what the store says.
    pub(crate) async fn caller(&self, records: &dyn Records, headers: &HeaderMap) -> Result<Caller, Problem> {
        let token = bearer(headers).ok_or_else(Problem::unauthorized)?;
        let hash = TokenHash::of(token);
        if self.admin.is(&hash) {
            return Ok(Caller { namespace: None, subject: "API_TOKEN".to_owned(), role: Role::Admin });
        }
        let row = records.token_by_hash(&hash).await?.ok_or_else(Problem::unauthorized)?;
        if row.expires_at.is_some_and(|end| end <= Moment::now()) {
            return Err(Problem::unauthorized());
        }
        Ok(Caller { namespace: Some(row.namespace), subject: row.name.as_str().to_owned(), role: row.role })
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
    fn only_bearer_tokens_are_taken() {
        for (value, token) in [
            ("Bearer s3cret", Some("s3cret")),
            ("bearer  s3cret", Some("s3cret")),
            ("Basic s3cret", None),
            ("Bearer ", None),
            ("s3cret", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(bearer(&headers), token, "{value}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn roles_are_known_by_their_names() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        assert_eq!(Role::parse("king"), None);
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
