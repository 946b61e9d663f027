//! PID 1 of a function's pod, and a plain child process of the local host: reads the settings, and runs the command.

use std::process::ExitCode;

use sless_supervisor::config::{Config, HELP, Invocation};

/// sysexits.h: something was found in an unconfigured or misconfigured state.
const BAD_SETTINGS: u8 = 78;

fn main() -> ExitCode {
    let (command, config) = match Config::from_args(std::env::args_os().skip(1), std::env::vars_os()) {
        Ok(Invocation::Run(command, config)) => (command, config),
        Ok(Invocation::Help) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Version) => {
            println!("sless-supervisor {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("sless-supervisor: {error}");
            return ExitCode::from(BAD_SETTINGS);
        }
    };
    match sless_supervisor::run(command, *config) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("sless-supervisor: {error}");
            ExitCode::from(BAD_SETTINGS)
        }
    }
}
