//! `sless completion SHELL`: what a shell needs to complete our command line.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::CliError;
use crate::print;

#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

pub(crate) fn run(what: &Completion) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(what.shell, &mut Cli::command(), "sless", &mut script);
    print::raw(&script)?;
    Ok(ExitCode::SUCCESS)
}
