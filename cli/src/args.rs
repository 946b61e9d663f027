//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use sless_core::{Entrypoint, FunctionName, Namespace, Runtime};

use crate::builds::Build;
use crate::calls::{Cancel, Invocation, Replay};
use crate::completion::Completion;
use crate::dev::Dev;
use crate::doctor::Doctor;
use crate::init::Init;
use crate::login::LoginArgs;
use crate::revisions::Rollback;
use crate::secrets::Secret;
use crate::tokens::Token;
use crate::triggers::Trigger;
use crate::up::S3Args;

/// Deploys and calls functions, and runs the host that they run on.
#[derive(Debug, Parser)]
#[command(name = "sless", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How results are printed
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs: what the API gave
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a function to begin with
    Init(Init),
    /// Runs a host on this machine
    Up(Box<Up>),
    /// Packs a folder, sends it to the host, and waits until it answers
    Deploy(Box<Deploy>),
    /// Packs a folder and sends it to a cluster's host, and prints the `source` of a Function to apply
    Push(Push),
    /// Runs a function on a host of its own and deploys it anew whenever its folder changes
    Dev(Box<Dev>),
    /// Lists the functions
    List(Target),
    /// Tells how a function is: its state, why it is not ready, its last calls and errors
    Describe(Named),
    /// Calls a function and prints its answer
    Invoke(Invoke),
    /// Prints what a function's calls have printed
    Logs(Logs),
    /// Lists the calls of a function, the newest first
    Invocations(Invocations),
    /// Shows one call: what was asked, what came of it, and where it failed
    Invocation(Invocation),
    /// Removes a function, and the trigger that `deploy` made for it
    Delete(Delete),
    /// Lists the revisions of a function, the newest first
    Revisions(Named),
    /// Goes back to an earlier revision, code and settings, without a build
    Rollback(Rollback),
    /// Tells of the last build of a function
    #[command(subcommand)]
    Build(Build),
    /// Triggers: how functions are called from outside
    #[command(subcommand)]
    Trigger(Trigger),
    /// Sends the exact request of a call again
    Replay(Replay),
    /// Ends a call that runs or waits
    Cancel(Cancel),
    /// Secrets: variables that are kept encrypted and never shown
    #[command(subcommand)]
    Secret(Secret),
    /// Tokens of a namespace
    #[command(subcommand)]
    Token(Token),
    /// Keeps a host's address and a token for the commands that follow
    Login(LoginArgs),
    /// Forgets what `login` kept
    Logout,
    /// Checks whether this machine can run functions
    Doctor(Doctor),
    /// Prints a script that completes this command line in a shell
    Completion(Completion),
    /// Packs all that a host on this machine keeps into one file; it may run meanwhile
    Backup(Backup),
    /// Makes a data folder from what `backup` has packed
    Restore(Restore),
    /// Runs a command of a build in its cage
    #[command(hide = true)]
    BuildStep(BuildStep),
}

/// Which host, and which namespace on it.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// The host's address; else that of the login, that of the host on the data folder, or http://127.0.0.1:8080
    #[arg(long, env = "SLESS_URL", global = true)]
    pub(crate) url: Option<String>,
    /// A token of the host; else that of the login, or the admin token in the data folder
    #[arg(long, env = "SLESS_TOKEN", hide_env_values = true, global = true)]
    pub(crate) token: Option<String>,
    /// The data folder of a host on this machine
    #[arg(long, env = "DATA_DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// The namespace; else that of the login, or `default`
    #[arg(long, short)]
    pub(crate) namespace: Option<Namespace>,
}

/// A function.
/// A trigger, a secret or a token by its name.
#[derive(Debug, Args)]
pub(crate) struct One {
    #[arg(value_parser = label)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// The folder with handler.py or handler.js (.mjs, .cjs)
    pub(crate) dir: PathBuf,
    /// Else the folder's name
    #[arg(long)]
    pub(crate) name: Option<FunctionName>,
    /// Else guessed from the handler's file
    #[arg(long)]
    pub(crate) runtime: Option<Runtime>,
    /// FILE.FUNCTION [default: handler.handle]
    #[arg(long)]
    pub(crate) entrypoint: Option<Entrypoint>,
    /// Limit of a call, in seconds [default: 30]
    #[arg(long, value_parser = seconds)]
    pub(crate) timeout_sec: Option<f64>,
    /// Limit of a worker's start, in seconds [default: 30]
    #[arg(long, value_parser = seconds)]
    pub(crate) init_timeout_sec: Option<f64>,
    /// Limit of the build, in seconds [default: 600]
    #[arg(long, value_parser = seconds)]
    pub(crate) build_timeout_sec: Option<f64>,
    /// Memory, in MiB [default: 256]
    #[arg(long)]
    pub(crate) memory_mb: Option<u32>,
    /// Most handler processes [default: 1]
    #[arg(long)]
    pub(crate) workers: Option<u32>,
    /// Calls at once in one handler process [default: 1]
    #[arg(long)]
    pub(crate) concurrency: Option<u32>,
    /// A variable of the handler, added to those that it has; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// A secret whose keys become variables; may be given again, and those that are given replace those that it had
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub(crate) secret: Vec<String>,
    /// Make no HTTP trigger: then only `sless invoke` reaches it
    #[arg(long)]
    pub(crate) no_trigger: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The folder with handler.py or handler.js (.mjs, .cjs)
    pub(crate) dir: PathBuf,
    /// The function that it is for; else the folder's name
    #[arg(long)]
    pub(crate) name: Option<FunctionName>,
    /// Else guessed from the handler's file
    #[arg(long)]
    pub(crate) runtime: Option<Runtime>,
    /// FILE.FUNCTION [default: handler.handle]
    #[arg(long)]
    pub(crate) entrypoint: Option<Entrypoint>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Invoke {
    pub(crate) name: FunctionName,
    /// The body: JSON, or @FILE, or @- for standard input
    #[arg(long, short)]
    pub(crate) data: Option<String>,
    /// What `--data` is [default: application/json]
    #[arg(long)]
    pub(crate) content_type: Option<String>,
    /// The path that the handler sees, with a query if need be
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    pub(crate) name: FunctionName,
    /// Only the last N lines
    #[arg(long)]
    pub(crate) tail: Option<usize>,
    /// Of this call alone
    #[arg(long, value_name = "ID", value_parser = invocation_id)]
    pub(crate) invocation: Option<String>,
    /// Goes on with what comes from now on, after the last lines if --tail says so; of one call: all of it, until it ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Invocations {
    pub(crate) name: FunctionName,
    /// Only calls with this status, as success, error, timeout, crashed
    #[arg(long, value_parser = word)]
    pub(crate) status: Option<String>,
    /// Only calls by this trigger, as http, invoke, cron
    #[arg(long, value_parser = word)]
    pub(crate) trigger: Option<String>,
    /// Only calls that began then or later: RFC 3339, as 2026-01-31T12:00:00Z
    #[arg(long, value_parser = moment)]
    pub(crate) since: Option<String>,
    /// Only calls that began before
    #[arg(long, value_parser = moment)]
    pub(crate) until: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// What to write, a .tar.gz; one that is there is replaced
    pub(crate) file: PathBuf,
    /// The host's data folder [default: the one that `up` uses]
    #[arg(long, env = "DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// What `backup` has written
    pub(crate) file: PathBuf,
    /// The folder to make; it may not be there, or must be empty [default: the one that `up` uses]
    #[arg(long, env = "DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BuildStep {
    /// What it must not see
    #[arg(long)]
    pub(crate) hide: PathBuf,
    /// What it may see in there
    #[arg(long)]
    pub(crate) allow: Vec<PathBuf>,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Settings of the host; each is a flag and a variable, and the flag wins.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Address of /v1 and /fn
    #[arg(long, env = "API_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) api_listen: SocketAddr,
    /// Address of /fn alone, as well
    #[arg(long, env = "PUBLIC_LISTEN")]
    pub(crate) public_listen: Option<SocketAddr>,
    /// Address of health, ready, metrics and targets, in place of API_LISTEN
    #[arg(long, env = "API_ADMIN_LISTEN")]
    pub(crate) api_admin_listen: Option<SocketAddr>,
    /// Where supervisors send records: an address or unix:PATH [default: a socket in the data folder]
    #[arg(long, env = "API_INTERNAL_LISTEN", value_parser = unix_socket)]
    pub(crate) api_internal_listen: Option<PathBuf>,
    /// An admin token [default: one that is made into the data folder]
    #[arg(long, env = "API_TOKEN", hide_env_values = true)]
    pub(crate) api_token: Option<String>,
    /// How callers reach the host [default: the address that it listens on]
    #[arg(long, env = "EXTERNAL_URL")]
    pub(crate) external_url: Option<String>,
    /// Where everything is kept
    #[arg(long, env = "DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// PostgreSQL: postgres://USER:PASSWORD@HOST:PORT/NAME [default: a file in the data folder]
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,
    #[command(flatten)]
    pub(crate) s3: S3Args,
    /// How many days records are kept
    #[arg(long, env = "RETENTION_DAYS", default_value_t = sless_api::ApiConfig::DEFAULT_RETENTION_DAYS)]
    pub(crate) retention_days: u32,
    /// How many records of a function are kept
    #[arg(long, env = "RETENTION_COUNT", default_value_t = sless_api::ApiConfig::DEFAULT_RETENTION_COUNT)]
    pub(crate) retention_count: u32,
    /// Largest zip that is taken
    #[arg(long, env = "MAX_UPLOAD_BYTES", default_value_t = sless_api::ApiConfig::DEFAULT_MAX_UPLOAD_BYTES)]
    pub(crate) max_upload_bytes: u64,
    /// Networks whose X-Forwarded-For is believed, separated by commas
    #[arg(long, env = "TRUSTED_PROXIES", value_delimiter = ',')]
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// The folder with the runtimes [default: found beside this program]
    #[arg(long, env = "RUNTIMES_DIR")]
    pub(crate) runtimes_dir: Option<PathBuf>,
    /// The program sless-supervisor [default: the one beside this program]
    #[arg(long, env = "SUPERVISOR")]
    pub(crate) supervisor: Option<OsString>,
}

pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Nothing that would change the URL it becomes part of.
pub(crate) fn invocation_id(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if plain {
        Ok(text.to_owned())
    } else {
        Err("an invocation's id has letters, digits and '-' only".to_owned())
    }
}

/// A name that the host judges, but with nothing that would change the URL it becomes part of.
pub(crate) fn label(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if plain && text.bytes().any(|b| b != b'.') {
        Ok(text.to_owned())
    } else {
        Err("a name has lower-case letters, digits and '-' only".to_owned())
    }
}

fn word(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if plain { Ok(text.to_owned()) } else { Err("write it as a lower-case word".to_owned()) }
}

/// A time, in the form that has no character of its own meaning in a URL.
fn moment(text: &str) -> Result<String, String> {
    let time = chrono::DateTime::parse_from_rfc3339(text);
    let time = time.map_err(|_| "write a time as 2026-01-31T12:00:00Z".to_owned())?;
    Ok(time.to_utc().to_rfc3339_opts(chrono::SecondsFormat::Micros, true))
}

fn unix_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') && path.len() < 100 => Ok(path.into()),
        _ => Err("write it as unix:PATH with an absolute path of less than 100 bytes".to_owned()),
    }
}

/// A number of seconds; JSON has neither NaN nor infinity.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() => Ok(n),
        _ => Err("give a number of seconds, such as 30 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parts_of_urls_cannot_lead_elsewhere() {
        assert!(
            invocation_id("0193-ab").is_ok() && invocation_id("../x").is_err() && invocation_id("").is_err()
        );
        assert!(label("a-1").is_ok() && label("a/b").is_err() && label("..").is_err() && label("").is_err());
        assert_eq!(moment("2026-01-31T13:00:00+01:00").unwrap(), "2026-01-31T12:00:00.000000Z");
        assert!(moment("yesterday").is_err());
        assert!(word("out_of_memory").is_ok() && word("a&b").is_err());
    }
}
