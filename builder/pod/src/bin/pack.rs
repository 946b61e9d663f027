//! See the library.

use std::process::ExitCode;

use clap::Parser;
use sless_build_pod::{Exit, finish, pack};

enum Task {
    Pack(pack::Pack),
    Remove(pack::Remove),
}

fn task() -> Result<Task, clap::Error> {
    let mut words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "remove") {
        words.remove(1);
        return pack::Remove::try_parse_from(words).map(Task::Remove);
    }
    pack::Pack::try_parse_from(words).map(Task::Pack)
}

fn main() -> ExitCode {
    let task = match task() {
        Ok(task) => task,
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
    match &task {
        Task::Remove(task) => finish(runtime.block_on(pack::remove(task)), &task.termination_log),
        Task::Pack(task) => finish(runtime.block_on(pack::run(task)), &task.termination_log),
    }
}
