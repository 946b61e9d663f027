//! `sless build show|logs`: the last build of a function.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::args::{Format, Named};
use crate::client::Client;
use crate::commands;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Subcommand)]
pub(crate) enum Build {
    /// Prints what the last build has printed
    Logs(Logs),
    /// Tells how the last build went
    Show(Named),
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Goes on until the build ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) function: Named,
}

pub(crate) async fn run(what: &Build, output: Format) -> Result<ExitCode, CliError> {
    match what {
        Build::Logs(what) => {
            let client = Client::new(&what.function.target)?;
            let path = client.path(&format!("functions/{}/build/logs", what.function.name));
            commands::print_log(&client, &path, what.follow, output).await
        }
        Build::Show(what) => {
            let client = Client::new(&what.target)?;
            let build = client.get(&client.path(&format!("functions/{}/build", what.name))).await?;
            match output {
                Format::Json => print::json(&build)?,
                Format::Text => {
                    let fields = ["phase", "started_at", "finished_at", "message"];
                    let row = fields.map(|field| cell(&build, field)).to_vec();
                    print::table(&["PHASE", "STARTED", "FINISHED", "MESSAGE"], &[row])?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
