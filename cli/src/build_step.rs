//! Runs one command of a build in a cage; started by the host, not by people.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use sless_builder::{Caged, enter_cage};

use crate::args::BuildStep;
use crate::print;

/// As shells have it for a command that is not there.
const NOT_FOUND: u8 = 127;

pub(crate) fn run(step: &BuildStep) -> ExitCode {
    match enter_cage(&step.hide, &step.allow) {
        Ok(Caged::Yes) => {}
        Ok(Caged::No) => {
            print::note(
                "warning: this kernel has no Landlock, so what this build runs can read the host's files",
            );
        }
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            print::note(&format!("error: keep the build from the host's files: {error}{cause}"));
            return ExitCode::FAILURE;
        }
    }
    let Some((program, arguments)) = step.command.split_first() else { return ExitCode::from(NOT_FOUND) };
    // Returns only if it could not be started.
    let error = Command::new(program).args(arguments).exec();
    print::note(&format!("error: start {}: {error}", program.display()));
    ExitCode::from(NOT_FOUND)
}
