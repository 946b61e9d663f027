//! `sless doctor`: what this machine lacks for running functions, and what to do about it.

mod checks;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::args::{Format, Target};
use crate::client::Client;
use crate::error::CliError;
use crate::folder;
use crate::print;
use crate::up::Programs;
pub(crate) use checks::interpreters;
use checks::{data_folder, installers, kernel, memory};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The folder with the runtimes [default: found beside this program]
    #[arg(long, env = "RUNTIMES_DIR")]
    pub(crate) runtimes_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Good,
    /// Works, but less well, or not for everybody.
    Doubtful,
    Bad,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Doubtful => "warning",
            Self::Bad => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) level: Level,
    /// What is there, or what is not and how to get it.
    pub(crate) text: String,
}

impl Finding {
    fn new(what: &str, level: Level, text: impl Into<String>) -> Self {
        Self { what: what.to_owned(), level, text: text.into() }
    }
}

pub(crate) async fn run(what: &Doctor, output: Format) -> Result<ExitCode, CliError> {
    let mut findings = vec![kernel()];
    match Programs::find(None, what.runtimes_dir.as_deref()) {
        Ok(programs) => {
            findings.push(Finding::new("supervisor", Level::Good, programs.supervisor.display().to_string()));
            findings.extend(interpreters(&programs.runtimes_dir));
        }
        Err(error) => findings.push(Finding::new("programs", Level::Bad, error.to_string())),
    }
    findings.extend(installers());
    findings.push(memory());
    findings.push(data_folder(&folder::data_dir(what.target.data_dir.as_deref())));
    findings.push(host(&what.target).await);
    let bad = findings.iter().filter(|finding| finding.level == Level::Bad).count();
    match output {
        Format::Json => {
            let item = |f: &Finding| json!({"what": f.what, "level": f.level.as_str(), "text": f.text});
            print::json(&Value::Array(findings.iter().map(item).collect()))?;
        }
        Format::Text => {
            let row = |f: &Finding| vec![f.level.as_str().to_owned(), f.what.clone(), f.text.clone()];
            print::table(&["", "WHAT", "FOUND"], &findings.iter().map(row).collect::<Vec<_>>())?;
        }
    }
    match bad {
        0 => Ok(ExitCode::SUCCESS),
        1 => Err(CliError::Host("one thing is missing on this machine".to_owned())),
        bad => Err(CliError::Host(format!("{bad} things are missing on this machine"))),
    }
}

/// Whether a host answers, and knows us. None running is no fault: `sless up` may be next.
async fn host(target: &Target) -> Finding {
    let asked = async {
        let client = Client::new(target)?;
        let who = client.get("/v1/whoami").await?;
        Ok(format!("{} answers; the token's role is {}", client.url(), print::cell(&who, "role")))
    };
    match asked.await {
        Ok(text) => Finding::new("host", Level::Good, text),
        Err(error) => {
            let error: CliError = error;
            Finding::new("host", Level::Doubtful, error.to_string())
        }
    }
}
