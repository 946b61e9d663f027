//! The command line of sless, and the host on one machine.

mod args;
mod backup;
mod build_step;
mod builds;
mod calls;
mod client;
mod commands;
mod completion;
mod deploy;
mod describe;
mod dev;
mod doctor;
mod error;
mod folder;
mod init;
mod invoke;
mod login;
mod pack;
mod print;
mod push;
mod revisions;
mod secrets;
mod tokens;
mod triggers;
mod up;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let Cli { command, output } = Cli::parse();
    let result = match command {
        Command::Up(settings) => up::run(*settings),
        Command::Restore(what) => backup::restore(&what, output),
        Command::BuildStep(step) => return build_step::run(&step),
        Command::Dev(what) => dev::run(*what, output),
        Command::Init(what) => init::run(&what, output),
        Command::Logout => login::logout(output),
        Command::Completion(what) => completion::run(&what),
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
        Command::Up(_)
        | Command::BuildStep(_)
        | Command::Dev(_)
        | Command::Init(_)
        | Command::Logout
        | Command::Completion(_)
        | Command::Restore(_) => Ok(ExitCode::SUCCESS),
        Command::Backup(what) => backup::backup(&what, output).await,
        Command::Deploy(what) => deploy::run(*what, output).await,
        Command::Push(what) => push::run(&what, output).await,
        Command::List(target) => commands::list(&target, output).await,
        Command::Invoke(what) => invoke::run(&what, output).await,
        Command::Logs(what) => commands::logs(&what, output).await,
        Command::Invocations(what) => commands::invocations(&what, output).await,
        Command::Revisions(what) => revisions::list(&what, output).await,
        Command::Rollback(what) => revisions::rollback(&what, output).await,
        Command::Build(what) => builds::run(&what, output).await,
        Command::Invocation(what) => calls::invocation(&what, output).await,
        Command::Trigger(what) => triggers::run(what, output).await,
        Command::Replay(what) => calls::replay(&what, output).await,
        Command::Cancel(what) => calls::cancel(&what, output).await,
        Command::Secret(what) => secrets::run(what, output).await,
        Command::Token(what) => tokens::run(what, output).await,
        Command::Describe(what) => describe::run(&what, output).await,
        Command::Login(what) => login::run(what, output).await,
        Command::Doctor(what) => doctor::run(&what, output).await,
        Command::Delete(what) => commands::delete(&what, output).await,
    }
}
