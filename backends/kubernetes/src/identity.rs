//! Whose a `ServiceAccount` token is: the API server says so (TokenReview), and is asked seldom.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use sless_backend::{BackendError, FunctionRef, Identity};
use sless_crds::names::{AUDIENCE, MANAGER, function_of_object, namespace_of_workloads};
use tokio::time::Instant;

use crate::error::within;

/// So long an answer counts; a token that is revoked meanwhile is one of a pod that is gone.
const KEPT: Duration = Duration::from_secs(60);
/// So long a refusal counts.
const REFUSAL_KEPT: Duration = Duration::from_secs(5);
/// More tokens than pods would have only come from somebody who tries.
const MOST: usize = 20_000;
/// Tokens of Kubernetes have one or two KiB.
const TOKEN_MAX: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct Identities {
    known: Mutex<HashMap<[u8; 32], Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    identity: Option<Identity>,
    until: Instant,
}

impl Identities {
    /// `None` if it is nobody's.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if the API server can't be asked: then nobody is believed.
    pub(crate) async fn of(
        &self,
        client: &Client,
        system: &str,
        token: &str,
    ) -> Result<Option<Identity>, BackendError> {
        let Some(life) = life(token, SystemTime::now()) else { return Ok(None) };
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known().get(&key).filter(|known| known.until > Instant::now()) {
            return Ok(known.identity.clone());
        }
        let identity = review(client, system, token).await?;
        let kept = if identity.is_some() { KEPT.min(life) } else { REFUSAL_KEPT };
        let mut all = self.known();
        if all.len() >= MOST {
            let now = Instant::now();
            all.retain(|_, known| known.until > now);
        }
        if all.len() < MOST {
            all.insert(key, Known { identity: identity.clone(), until: Instant::now() + kept });
        }
        Ok(identity)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the token still says that it is good; `None` for what can't be one, which nobody has to be asked about.
fn life(token: &str, now: SystemTime) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if token.len() > TOKEN_MAX || parts.next().is_some() {
        return None;
    }
    let claims: Claims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let left = Duration::from_secs(claims.exp).checked_sub(now.duration_since(UNIX_EPOCH).ok()?)?;
    Some(left).filter(|left| !left.is_zero())
}

async fn review(client: &Client, system: &str, token: &str) -> Result<Option<Identity>, BackendError> {
    let review = TokenReview {
        spec: TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) },
        ..TokenReview::default()
    };
    let reviews = Api::<TokenReview>::all(client.clone());
    let params = PostParams::default();
    let answer = within("ask the API server about a token", reviews.create(&params, &review)).await?;
    Ok(answer.status.as_ref().and_then(|status| identity(status, system)))
}

fn identity(status: &TokenReviewStatus, system: &str) -> Option<Identity> {
    // An API server that knows no audiences names none: then the token may be for anybody.
    let ours = status.audiences.as_deref().unwrap_or_default().iter().any(|audience| audience == AUDIENCE);
    if status.authenticated != Some(true) || !ours {
        return None;
    }
    let account = status.user.as_ref()?.username.as_ref()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, name) = account.split_once(':')?;
    if namespace == system && name == MANAGER {
        return Some(Identity::Controller);
    }
    let (namespace, name) = namespace_of_workloads(namespace).zip(function_of_object(name))?;
    Some(Identity::Function(FunctionRef { namespace, name }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(exp: u64) -> String {
        format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(json!({"exp": exp}).to_string()))
    }

    #[test]
    fn only_what_can_be_a_token_is_asked_about() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(life(&token(1010), now), Some(Duration::from_secs(10)));
        for nobody in
            ["", "x", "a.b.c", &token(1000), &token(999), &format!("{}.x", token(1010)), &"a.".repeat(9000)]
        {
            assert_eq!(life(nobody, now), None, "{nobody}");
        }
    }

    #[test]
    fn an_identity_is_that_of_an_account_for_us() {
        let of = |name: &str, authenticated: bool, audience: Option<&str>| {
            identity(&serde_json::from_value(json!({"authenticated": authenticated, "audiences": audience.map(|a| [a]), "user": {"username": name}})).unwrap(), "sless")
        };
        let pod = "system:serviceaccount:sless-fn-team:fn-hello";
        let Some(Identity::Function(function)) = of(pod, true, Some("sless-api")) else {
            panic!("it is a function's")
        };
        assert_eq!(function.to_string(), "team/hello");
        assert_eq!(of(pod, false, Some("sless-api")), None);
        assert_eq!(of(pod, true, Some("other")), None);
        assert_eq!(of(pod, true, None), None);
        assert_eq!(of("admin", true, Some("sless-api")), None);
        let account = |name: &str| of(&format!("system:serviceaccount:{name}"), true, Some("sless-api"));
        assert_eq!(account("sless:sless-controller"), Some(Identity::Controller));
        for other in [
            "team:sless-controller",
            "sless-fn-team:default",
            "team:fn-hello",
            "sless:fn-hello",
            "sless-fn-team:fn-",
        ] {
            assert_eq!(account(other), None, "{other}");
        }
    }
}
