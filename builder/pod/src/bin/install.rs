//! See the library.

use std::process::ExitCode;

use clap::Parser;
use sless_build_pod::{finish, install};

fn main() -> ExitCode {
    let settings = match install::Settings::try_parse() {
        Ok(settings) => settings,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                sless_build_pod::Exit::Settings.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // What it runs must not read the code's address in /proc/1/environ, nor anything else of it: that is as good as a password.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        eprintln!("error: keep installers out of this process: {error}");
        return sless_build_pod::Exit::Again.into();
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return sless_build_pod::Exit::Again.into();
        }
    };
    finish(runtime.block_on(install::run(&settings)), &settings.termination_log)
}
