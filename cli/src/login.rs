//! `sless login`, `sless logout`: a host, a token and a namespace, kept for the commands that follow.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use sless_core::Namespace;

use crate::args::{Format, Target};
use crate::client::Client;
use crate::error::CliError;
use crate::folder;
use crate::print;

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The host's address, as `https://sless.example.com`
    pub(crate) url: String,
    /// The token; else it is read from standard input
    #[arg(long, env = "SLESS_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Where the commands that follow work [default: the token's own namespace, else `default`]
    #[arg(long, short)]
    pub(crate) namespace: Option<Namespace>,
}

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) url: String,
    pub(crate) token: String,
    pub(crate) namespace: Option<String>,
}

pub(crate) async fn run(what: LoginArgs, output: Format) -> Result<ExitCode, CliError> {
    let token = match what.token {
        Some(token) => token,
        None => ask()?,
    };
    let token = token.trim().to_owned();
    if token.is_empty() {
        return Err(CliError::Token("no token was given; write it to standard input".to_owned()));
    }
    let target = Target {
        url: Some(what.url.clone()),
        token: Some(token.clone()),
        data_dir: None,
        namespace: what.namespace.clone(),
    };
    // Before anything is kept: a wrong token is told now, not by the next command.
    let who = Client::new(&target)?.get("/v1/whoami").await?;
    let own = who.get("namespace").and_then(Value::as_str).map(str::to_owned);
    let namespace = what.namespace.map(|name| name.to_string()).or(own);
    let login = Login { url: what.url.trim_end_matches('/').to_owned(), token, namespace };
    let path = folder::login_file()?;
    keep(&path, &login).map_err(CliError::file("write", &path))?;
    match output {
        Format::Json => print::json(&who)?,
        Format::Text => print::line(&format!(
            "{} knows you as {} ({}), kept in {}",
            login.url,
            print::cell(&who, "subject"),
            print::cell(&who, "role"),
            path.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn logout(output: Format) -> Result<ExitCode, CliError> {
    let path = folder::login_file()?;
    let was = match fs::remove_file(&path) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(CliError::file("remove", path)(e)),
    };
    match output {
        Format::Json => print::json(&json!({"removed": was}))?,
        Format::Text if was => {
            print::line("the token is forgotten; it stays valid until it is deleted or expires")?
        }
        Format::Text => print::line("there was no login")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What an earlier `login` kept.
pub(crate) fn kept() -> Result<Option<Login>, CliError> {
    // Without a home there is nothing kept, and nothing wrong.
    let Ok(path) = folder::login_file() else { return Ok(None) };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(CliError::file("read", path)(e)),
    };
    let parsed = serde_json::from_slice(&text).ok().and_then(|value| parse(&value));
    parsed.map(Some).ok_or_else(|| {
        CliError::Refused(format!(
            "{} is not as `sless login` writes it; log in again, or `sless logout`",
            path.display()
        ))
    })
}

fn parse(value: &Value) -> Option<Login> {
    let text = |field: &str| value.get(field)?.as_str().map(str::to_owned);
    Some(Login { url: text("url")?, token: text("token")?, namespace: text("namespace") })
}

fn keep(path: &Path, login: &Login) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let fresh = path.with_extension("new");
    // A file of that name may be there with other rights, which opening it would keep.
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let text = json!({"url": login.url, "token": login.token, "namespace": login.namespace});
    writeln!(file, "{text:#}")?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

/// A line of standard input; on a terminal it is not shown.
fn ask() -> Result<String, CliError> {
    let stdin = io::stdin();
    let hidden = if stdin.is_terminal() {
        let _ = write!(io::stderr(), "Token: ");
        tcgetattr(stdin.as_fd()).ok()
    } else {
        None
    };
    if let Some(before) = &hidden {
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(stdin.as_fd(), SetArg::TCSAFLUSH, &silent)
            .map_err(|e| CliError::file("hide what is typed at", "standard input")(e.into()))?;
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    if let Some(before) = &hidden {
        let _ = tcsetattr(stdin.as_fd(), SetArg::TCSAFLUSH, before);
        let _ = writeln!(io::stderr());
    }
    read.map_err(CliError::file("read", "standard input"))?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_login_is_kept_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/sless/login.json");
        let login = Login { url: "https://x".into(), token: "t".into(), namespace: None };
        for namespace in [None, Some("team".to_owned())] {
            let login = Login { namespace, ..login.clone() };
            keep(&path, &login).unwrap();
            let text: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(parse(&text), Some(login));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(parse(&json!({"url": "https://x"})), None);
    }
}
