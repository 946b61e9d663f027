//! The command line of sless, and the host on one machine.

mod args;
mod build_step;
mod client;
mod commands;
mod deploy;
mod error;
mod folder;
mod invoke;
mod pack;
mod print;
mod up;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let Cli { command, output } = Cli::parse();
    let result = match command {
        Command::Up(settings) => up::run(*settings),
        Command::BuildStep(step) => return build_step::run(&step),
        command => block_on(client_command(command, output)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            print::note(&format!("error: {error}"));
            error.exit_code()
        }
    }
}

fn block_on(work: impl Future<Output = Result<ExitCode, CliError>>) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CliError::Host(format!("start: {e}")))?.block_on(work)
}

async fn client_command(command: Command, output: args::Format) -> Result<ExitCode, CliError> {
    match command {
        // Done above: they have no use for this runtime.
        Command::Up(_) | Command::BuildStep(_) => Ok(ExitCode::SUCCESS),
        Command::Deploy(what) => deploy::run(*what, output).await,
        Command::List(target) => commands::list(&target, output).await,
        Command::Invoke(what) => invoke::run(&what, output).await,
        Command::Logs(what) => commands::logs(&what, output).await,
        Command::Invocations(what) => commands::invocations(&what, output).await,
        Command::Delete(what) => commands::delete(&what, output).await,
    }
}
