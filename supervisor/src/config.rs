//! Settings: each is a flag and an environment variable, parsed once into types that cannot be wrong.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::report::Endpoint;

mod parse;
#[cfg(test)]
mod tests;

use parse::{Lookup, Source};

/// A setting that cannot be used. Names the setting as it was given, its value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct Error {
    pub setting: String,
    pub problem: String,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Form of the lines on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Text,
}

/// What to do where the kernel gives no means to keep handlers from the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cage {
    Require,
    Warn,
}

/// What the program is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Serve,
    /// One invocation; the event comes from this file, or from stdin for `-`.
    Run {
        event: PathBuf,
    },
}

/// How workers are started: `runtime.json` of the runtime's folder.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub name: String,
    pub dir: PathBuf,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// All settings of one supervisor.
#[derive(Debug, Clone)]
pub struct Config {
    pub namespace: String,
    pub function: String,
    pub revision: String,
    pub pod: String,
    pub runtime: Runtime,
    pub function_dir: PathBuf,
    pub entrypoint: String,
    pub listen: Listen,
    pub admin_listen: Listen,
    pub timeout: Duration,
    pub init_timeout: Duration,
    pub kill_grace: Duration,
    pub workers: NonZeroUsize,
    pub min_workers: usize,
    pub concurrency: NonZeroUsize,
    pub queue: usize,
    pub max_request_bytes: u32,
    pub max_response_bytes: u32,
    pub log_limit_bytes: u64,
    pub result_limit_bytes: usize,
    pub input_limit_bytes: usize,
    pub report_to: Option<Endpoint>,
    /// PEM file with the certificates to trust for it (`SSL_CERT_FILE`), in place of the public ones.
    pub ca_file: Option<PathBuf>,
    pub report_token_file: Option<PathBuf>,
    pub spool_dir: Option<PathBuf>,
    pub spool_limit_bytes: u64,
    pub flush: Duration,
    pub secret_names: Vec<String>,
    pub log_format: LogFormat,
    pub cage: Cage,
    pub proxy_token_file: Option<PathBuf>,
    /// End of file on stdin means: drain and exit. For hosts that start supervisors as children.
    pub exit_with_stdin: bool,
    /// A memory control group to enter at start. For hosts that make one for each supervisor that they start.
    pub cgroup: Option<PathBuf>,
    /// The function's own variables: all of the environment that does not begin with `SLESS_`.
    pub function_env: Vec<(OsString, OsString)>,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    Run(Command, Box<Config>),
    Help,
    Version,
}

const MIB: u64 = 1 << 20;
/// A year: longer limits are mistakes, and sums of them must not overflow.
const LONGEST_SEC: f64 = 31_536_000.0;

impl Config {
    /// Reads the command line and the environment.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn from_args(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Invocation, Error> {
        let (source, command) = match Source::read(args, env)? {
            parse::Parsed::Help => return Ok(Invocation::Help),
            parse::Parsed::Version => return Ok(Invocation::Version),
            parse::Parsed::Settings(source, command) => (source, command),
        };
        let config = Self::from_source(&source)?;
        Ok(Invocation::Run(command, Box::new(config)))
    }

    fn from_source(source: &Source) -> Result<Self, Error> {
        let workers = source.count("SLESS_WORKERS", 1, 1000)?;
        let min_workers = usize::try_from(source.number("SLESS_MIN_WORKERS", 1, 0, 1000)?).unwrap_or(1);
        let function_dir = source.folder("SLESS_FUNCTION_DIR", "/app/function")?;
        Ok(Self {
            namespace: source.text("SLESS_NAMESPACE", "default")?,
            function: source.text("SLESS_FUNCTION", "function")?,
            revision: source.text("SLESS_REVISION", "")?,
            pod: parse::hostname(),
            runtime: read_runtime(source)?,
            entrypoint: source.entrypoint("SLESS_ENTRYPOINT", "handler.handle")?,
            function_dir,
            listen: source.listen("SLESS_LISTEN", "0.0.0.0:8080")?,
            admin_listen: source.listen("SLESS_ADMIN_LISTEN", "0.0.0.0:9090")?,
            timeout: source.seconds("SLESS_TIMEOUT_SEC", 30.0, 0.001, LONGEST_SEC)?,
            init_timeout: source.seconds("SLESS_INIT_TIMEOUT_SEC", 30.0, 0.001, LONGEST_SEC)?,
            kill_grace: source.seconds("SLESS_KILL_GRACE_SEC", 1.0, 0.0, 3600.0)?,
            workers,
            min_workers: min_workers.min(workers.get()),
            concurrency: source.count("SLESS_CONCURRENCY", 1, 1000)?,
            queue: usize::try_from(source.number("SLESS_QUEUE", 100, 0, 1_000_000)?).unwrap_or(usize::MAX),
            max_request_bytes: source.bytes32("SLESS_MAX_REQUEST_BYTES", 32 * MIB)?,
            max_response_bytes: source.bytes32("SLESS_MAX_RESPONSE_BYTES", 32 * MIB)?,
            log_limit_bytes: source.number("SLESS_LOG_LIMIT_BYTES", MIB, 0, 1 << 40)?,
            result_limit_bytes: source.bytes32("SLESS_RESULT_LIMIT_BYTES", 65_536)? as usize,
            input_limit_bytes: source.bytes32("SLESS_INPUT_LIMIT_BYTES", 65_536)? as usize,
            report_to: source.endpoint("SLESS_REPORT_URL")?,
            ca_file: source.variable("SSL_CERT_FILE").map(PathBuf::from),
            report_token_file: source.path("SLESS_REPORT_TOKEN_FILE"),
            spool_dir: source.path("SLESS_SPOOL_DIR"),
            spool_limit_bytes: source.number("SLESS_SPOOL_LIMIT_BYTES", 64 * MIB, 0, 1 << 50)?,
            flush: source.seconds("SLESS_FLUSH_SEC", 0.0, 0.0, 86_400.0)?,
            secret_names: source.list("SLESS_SECRET_NAMES")?,
            log_format: source.one_of(
                "SLESS_LOG_FORMAT",
                &[("json", LogFormat::Json), ("text", LogFormat::Text)],
                LogFormat::Json,
            )?,
            cage: source.one_of(
                "SLESS_CAGE",
                &[("require", Cage::Require), ("warn", Cage::Warn)],
                Cage::Warn,
            )?,
            proxy_token_file: source.path("SLESS_PROXY_TOKEN_FILE"),
            exit_with_stdin: source.one_of(
                "SLESS_EXIT_WITH_STDIN",
                &[("true", true), ("false", false)],
                false,
            )?,
            cgroup: source.path("SLESS_CGROUP"),
            function_env: source.function_env(),
        })
    }

    /// Values that must not appear in what is kept of a call.
    #[must_use]
    pub fn secret_values(&self) -> Vec<String> {
        self.function_env
            .iter()
            .filter(|(name, _)| name.to_str().is_some_and(|n| self.secret_names.iter().any(|s| s == n)))
            .map(|(_, value)| value.to_string_lossy().into_owned())
            .collect()
    }

    /// Environment of the workers.
    #[must_use]
    pub fn worker_env(&self) -> Vec<(OsString, OsString)> {
        let own = [
            ("SLESS_NAMESPACE", &self.namespace),
            ("SLESS_FUNCTION", &self.function),
            ("SLESS_REVISION", &self.revision),
        ];
        let mut env = self.function_env.clone();
        env.extend(own.map(|(name, value)| (name.into(), value.into())));
        env
    }

    /// Folders and files that no handler may see.
    #[must_use]
    pub fn hidden(&self) -> Vec<PathBuf> {
        let folder_of = |file: &PathBuf| file.parent().map(Path::to_path_buf);
        let tokens = [&self.report_token_file, &self.proxy_token_file];
        let sockets = [&self.listen, &self.admin_listen].into_iter().filter_map(|l| match l {
            Listen::Unix(path) => folder_of(path),
            Listen::Tcp(_) => None,
        });
        tokens
            .into_iter()
            .flatten()
            .filter_map(folder_of)
            .chain(self.spool_dir.clone())
            .chain(sockets)
            .collect()
    }
}

fn read_runtime(source: &Source) -> Result<Runtime, Error> {
    #[derive(Deserialize)]
    struct File {
        name: String,
        command: Vec<String>,
    }
    const NAME: &str = "SLESS_RUNTIME_DIR";
    let dir = source.folder(NAME, "/opt/sless/runtime")?;
    let path = dir.join("runtime.json");
    let bad = |problem: String| source.error(NAME, problem);
    let text =
        std::fs::read_to_string(&path).map_err(|e| bad(format!("cannot read {}: {e}", path.display())))?;
    let file: File =
        serde_json::from_str(&text).map_err(|e| bad(format!("{} is not a runtime: {e}", path.display())))?;
    if file.command.is_empty() {
        return Err(bad(format!("{}: `command` is empty", path.display())));
    }
    let dir_text = dir.to_string_lossy().into_owned();
    let command = file.command.iter().map(|word| word.replace("{dir}", &dir_text).into()).collect();
    Ok(Runtime { name: file.name, dir, command })
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Text of `--help`.
pub const HELP: &str = "\
sless-supervisor runs the handlers of one function, enforces their limits and reports every invocation.

usage: sless-supervisor serve [--SETTING VALUE …]
       sless-supervisor run --event FILE|- [--SETTING VALUE …]

Every setting is a flag and an environment variable: --timeout-sec and SLESS_TIMEOUT_SEC; the flag wins.
docs/supervisor.md lists them with units and defaults.
";
