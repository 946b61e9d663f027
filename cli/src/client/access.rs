//! Which host is spoken with, and what lets us in: what was given, else what `sless login` kept, else the host on the data folder.

use std::fs;
use std::io;
use std::path::Path;

use http::Uri;

use crate::args::Target;
use crate::error::CliError;
use crate::folder;
use crate::login::{self, Login};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) url: String,
    pub(super) token: String,
    pub(super) namespace: String,
}

impl Access {
    pub(super) fn find(target: &Target) -> Result<Self, CliError> {
        let data = folder::data_dir(target.data_dir.as_deref());
        choose(target, login::kept()?, kept(&folder::url_file(&data)), || {
            own_token(&folder::token_file(&data))
        })
    }
}

/// A token goes only where it belongs: that of `login` to its host, that of the data folder to the host on it, or to this machine.
fn choose(
    target: &Target,
    login: Option<Login>,
    local: Option<String>,
    own_token: impl FnOnce() -> Result<String, CliError>,
) -> Result<Access, CliError> {
    let url = match (&target.url, &login) {
        (Some(url), _) => url.clone(),
        // A data folder that was named is a host that was named.
        (None, Some(login)) if target.data_dir.is_none() => login.url.clone(),
        _ => local.clone().unwrap_or_else(|| DEFAULT_URL.to_owned()),
    };
    let login = login.filter(|login| same(&login.url, &url));
    let token = match (&target.token, &login) {
        (Some(token), _) => token.clone(),
        (None, Some(login)) => login.token.clone(),
        (None, None) if is_loopback(&url) || local.is_some_and(|local| same(&local, &url)) => own_token()?,
        (None, None) => {
            return Err(CliError::Token(format!(
                "no token for {url}: `sless login {url}`, or set SLESS_TOKEN"
            )));
        }
    };
    let given = target.namespace.as_ref().map(ToString::to_string);
    let namespace = given.or_else(|| login.and_then(|login| login.namespace));
    Ok(Access { url, token, namespace: namespace.unwrap_or_else(|| "default".to_owned()) })
}

fn same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

fn is_loopback(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn kept(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn own_token(path: &Path) -> Result<String, CliError> {
    match fs::read_to_string(path) {
        Ok(token) => Ok(token),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(CliError::Token(format!(
            "no token: `sless login URL`, set SLESS_TOKEN, or set DATA_DIR to the data folder of a host on this machine ({} is not there)",
            path.display()
        ))),
        Err(e) => Err(CliError::Token(format!(
            "read the host's admin token in {}: {e}; or set SLESS_TOKEN",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: Option<&str>, data_dir: Option<&str>) -> Target {
        Target { url: url.map(Into::into), token: None, data_dir: data_dir.map(Into::into), namespace: None }
    }

    fn login() -> Option<Login> {
        Some(Login { url: "https://far".into(), token: "of-login".into(), namespace: Some("team".into()) })
    }

    #[test]
    fn what_is_given_wins_over_a_login_and_that_over_the_data_folder() {
        let of = |url, data, login| {
            choose(&target(url, data), login, Some("http://10.0.0.1:81".into()), || Ok("own".into()))
                .map(|a| (a.url, a.token, a.namespace))
        };
        let is = |url: &str, token: &str, namespace: &str| Ok((url.into(), token.into(), namespace.into()));
        let ok = |result: Result<_, CliError>| result.map_err(|e| e.to_string());
        assert_eq!(ok(of(None, None, login())), is("https://far", "of-login", "team"));
        assert_eq!(ok(of(None, Some("d"), login())), is("http://10.0.0.1:81", "own", "default"));
        assert_eq!(ok(of(None, None, None)), is("http://10.0.0.1:81", "own", "default"));
        assert_eq!(
            ok(of(Some("http://127.0.0.1:1"), None, login())),
            is("http://127.0.0.1:1", "own", "default")
        );
        assert_eq!(ok(of(Some("https://far/"), Some("d"), login())), is("https://far/", "of-login", "team"));
    }

    #[test]
    fn no_token_goes_to_a_host_that_it_is_not_of() {
        let own =
            || -> Result<String, CliError> { unreachable!("the data folder's token is not for this host") };
        for url in ["https://elsewhere", "http://127.0.0.1.elsewhere", "http://10.0.0.1:82"] {
            let refused = choose(&target(Some(url), None), login(), Some("http://10.0.0.1:81".into()), own);
            assert!(matches!(&refused, Err(CliError::Token(m)) if m.contains("sless login")), "{refused:?}");
        }
    }
}
