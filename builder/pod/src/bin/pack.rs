//! See the library.

use std::process::ExitCode;

use clap::Parser;
use sless_build_pod::{Exit, finish, pack};

fn main() -> ExitCode {
    let settings = match pack::Settings::try_parse() {
        Ok(settings) => settings,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { Exit::Settings.into() } else { ExitCode::SUCCESS };
        }
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return Exit::Again.into();
        }
    };
    match &settings.command {
        Some(pack::Command::Remove(remove)) => {
            finish(runtime.block_on(pack::remove(remove)), &remove.termination_log)
        }
        None => finish(runtime.block_on(pack::run(&settings.pack)), &settings.pack.termination_log),
    }
}
