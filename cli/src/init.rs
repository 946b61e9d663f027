//! `sless init`: a function to begin with.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::args::Format;
use crate::error::CliError;
use crate::print;

const PYTHON: &str = include_str!("init/handler.py");
const NODE: &str = include_str!("init/handler.js");

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Python,
    Node,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    #[arg(value_enum, default_value_t = Language::Python)]
    pub(crate) language: Language,
    /// The folder, which is made; its name becomes the function's
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
}

pub(crate) fn run(what: &Init, output: Format) -> Result<ExitCode, CliError> {
    let (name, text) = match what.language {
        Language::Python => ("handler.py", PYTHON),
        Language::Node => ("handler.js", NODE),
    };
    // Two handlers would leave `deploy` in doubt.
    for other in ["handler.py", "handler.js", "handler.mjs", "handler.cjs"] {
        let path = what.dir.join(other);
        if path.exists() {
            return Err(CliError::Refused(format!(
                "{} is there already; nothing was written: name another folder",
                path.display()
            )));
        }
    }
    fs::create_dir_all(&what.dir).map_err(CliError::file("make the folder", &what.dir))?;
    let path = what.dir.join(name);
    let mut file = match OpenOptions::new().write(true).create_new(true).open(&path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            return Err(CliError::Refused(format!("{} is there already", path.display())));
        }
        opened => opened.map_err(CliError::file("make", &path))?,
    };
    file.write_all(text.as_bytes()).map_err(CliError::file("write", &path))?;
    match output {
        Format::Json => print::json(&json!({"file": path}))?,
        Format::Text => {
            let dir = what.dir.display();
            print::line(&format!("{} is written", path.display()))?;
            print::line(&format!(
                "next: `sless dev {dir}` to try it, `sless deploy {dir}` to send it to a host"
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
