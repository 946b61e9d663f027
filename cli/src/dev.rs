//! `sless dev DIR`: a function on a host of its own, deployed anew whenever its folder changes, its log on the terminal.
//!
//! It is the same host, supervisor and limits as everywhere else: what is killed at its timeout there is killed here.

mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::args::{Cli, Command, Deploy, Format, Target};
use crate::client::Client;
use crate::deploy::deploy;
use crate::error::CliError;
use crate::folder;
use crate::print;
use crate::up;
use watch::{Stamp, stamp};

/// How often the folder is looked at. Looking works on every file system, what the kernel tells of changes does not.
const LOOK: Duration = Duration::from_millis(300);
/// Between attempts to reach the log or the host.
const AGAIN: Duration = Duration::from_millis(200);
const HOST_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// Where its own host listens; without a host of its own (--url) it has no meaning
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The folder with the runtimes [default: found beside this program]
    #[arg(long, env = "RUNTIMES_DIR")]
    pub(crate) runtimes_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) deploy: Deploy,
}

/// With `--url` the function goes to that host; else a host is run for it, on a data folder beside that of `sless up`.
pub(crate) fn run(mut what: Dev, output: Format) -> Result<ExitCode, CliError> {
    if what.deploy.target.url.is_some() {
        return crate::block_on(watching(what, output));
    }
    let data = folder::dev_dir(what.deploy.target.data_dir.as_deref());
    let mut words: Vec<std::ffi::OsString> =
        vec!["sless".into(), "up".into(), "--api-listen".into(), what.listen.to_string().into()];
    words.extend(["--data-dir".into(), data.clone().into()]);
    if let Some(runtimes) = &what.runtimes_dir {
        words.extend(["--runtimes-dir".into(), runtimes.into()]);
    }
    let mut settings = match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Up(settings), .. }) => *settings,
        // A variable that `up` reads is wrong: clap's text names it.
        Err(e) => return Err(CliError::Refused(e.to_string().trim_end().to_owned())),
        Ok(_) => return Err(CliError::Refused("`sless up` takes no such settings".to_owned())),
    };
    // Variables for another host on this machine, or for the program that is written here, are not for this one.
    settings.database_url = None;
    settings.external_url = None;
    (settings.public_listen, settings.api_admin_listen, settings.api_internal_listen) = (None, None, None);
    // What is kept for other hosts stays theirs.
    let token = settings.api_token.clone();
    what.deploy.target = Target {
        url: Some(format!("http://{}", what.listen)),
        token,
        data_dir: Some(data),
        namespace: what.deploy.target.namespace.clone(),
    };
    up::run_beside(settings, watching(what, output))
}

/// Deploys and deploys again. Ends only with what no change of the folder can mend.
async fn watching(what: Dev, output: Format) -> Result<ExitCode, CliError> {
    let dir = what.deploy.dir.clone();
    // Before anything is started: a folder that is not there is told at once.
    let mut seen = stamp(&dir)?;
    let client = host(&what.deploy.target).await?;
    let mut following = false;
    loop {
        let began = Instant::now();
        match deploy(&client, &what.deploy, output).await {
            Ok((name, function)) => {
                if !following {
                    following = true;
                    let path = client.path(&format!("functions/{name}/logs?follow=true"));
                    tokio::spawn(follow(Client::new(&what.deploy.target)?, path, output));
                }
                tell(&function, began.elapsed(), output)?;
            }
            // The folder's fault, or one that passes: the next change may mend it.
            Err(
                error @ (CliError::Function(_)
                | CliError::Refused(_)
                | CliError::File { .. }
                | CliError::Host(_)),
            ) => {
                print::note(&format!("error: {error}"));
            }
            Err(error) => return Err(error),
        }
        seen = changed(&dir, seen).await?;
    }
}

fn tell(function: &Value, took: Duration, output: Format) -> Result<(), CliError> {
    match output {
        Format::Json => print::line(&function.to_string()),
        Format::Text => {
            print::note(&format!("{} is ready after {} ms", print::cell(function, "url"), took.as_millis()));
            Ok(())
        }
    }
}

/// Waits until the folder is another than `seen`, and has come to rest: editors and `git checkout` write many files.
async fn changed(dir: &std::path::Path, seen: Stamp) -> Result<Stamp, CliError> {
    let mut last = seen;
    loop {
        sleep(LOOK).await;
        let now = stamp(dir)?;
        if now != seen && now == last {
            return Ok(now);
        }
        last = now;
    }
}

/// The host, once it answers.
async fn host(target: &Target) -> Result<Client, CliError> {
    let began = Instant::now();
    loop {
        // Anew each time: its own host makes its token only now.
        let answer = match Client::new(target) {
            Ok(client) => client.get("/v1/whoami").await.map(|_| client),
            Err(e) => Err(e),
        };
        match answer {
            Ok(client) => return Ok(client),
            Err(error) if began.elapsed() > HOST_WITHIN => return Err(error),
            Err(CliError::NoHost { .. } | CliError::Token(_) | CliError::Broken { .. }) => sleep(AGAIN).await,
            Err(error) => return Err(error),
        }
    }
}

/// Prints what the function's calls print, for as long as this process runs; a host that is away for a while is no news.
async fn follow(client: Client, path: String, output: Format) {
    loop {
        let each = |item: &Value| match output {
            Format::Json => print::line(&item.to_string()),
            Format::Text => print::line(item.get("text").and_then(Value::as_str).unwrap_or_default()),
        };
        // Either way it has ended, and is begun again.
        let _ = client.follow(&path, each).await;
        sleep(AGAIN).await;
    }
}
