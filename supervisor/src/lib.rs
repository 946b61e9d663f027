//! The supervisor: owns the workers of one function. It starts handler processes, gives them calls, enforces
//! their limits with kills, and reports what every invocation did.
//!
//! One thread runs all of it (`docs/decisions/`); [`run`] is the way in.

mod assembly;
mod call;
mod clock;
pub mod config;
pub mod console;
mod failure;
mod http;
mod intake;
pub mod logs;
pub mod mask;
mod metrics;
mod pool;
pub mod process;
pub mod report;
mod run;
mod serve;

use config::{Command, Config, Error};

/// Runs a command to its end; gives the exit code.
///
/// # Errors
/// A setting that turned out to be unusable.
pub fn run(command: Command, config: Config) -> Result<i32, Error> {
    let broken = |e| Error { setting: "runtime".to_owned(), problem: format!("cannot start: {e}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    let local = tokio::task::LocalSet::new();
    let code = local.block_on(&runtime, async {
        match command {
            Command::Serve => serve::serve(config).await,
            Command::Run { event } => run::run(config, &event).await,
        }
    });
    // A read that never returns (a stuck disk or resolver) must not keep the process.
    runtime.shutdown_background();
    code
}
