//! A build: unpack, install, say how it went.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sless_core::{Entrypoint, Runtime};
use tokio::time::timeout;

use crate::entry::candidates;
use crate::install::{self, ManifestError};
use crate::intake::{Contents, IntakeError, Limits};
use crate::log::Log;
use crate::name::OWN_FOLDER;
use crate::step::{HostEnvironment, Step};
use crate::unpack;

/// What to build, from what, into what.
#[derive(Debug)]
pub struct BuildJob {
    /// The uploaded zip, open for reading.
    pub archive: File,
    /// Where the function's folder is to be; its parent is there, it is not.
    pub folder: PathBuf,
    /// The file for the build's log.
    pub log: PathBuf,
    /// Downloads that outlive the build, shared by functions that trust each other.
    pub cache: PathBuf,
    pub runtime: Runtime,
    pub entrypoint: Entrypoint,
    /// For all of it; the setting's name is `build_timeout_sec`.
    pub limit: Duration,
    pub limits: Limits,
    pub environment: HostEnvironment,
    /// What starts each command, given as its arguments: a cage. May be empty.
    pub launcher: Vec<OsString>,
}

/// Why a build failed. The messages are for the function's author.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Archive(IntakeError),
    #[error("{0}")]
    Manifest(String),
    #[error("{tool} failed ({how}): {reason}")]
    Install { tool: &'static str, how: String, reason: String },
    #[error(
        "the build did not finish within build_timeout_sec ({limit:?}) and was ended; its last output: {last}"
    )]
    Timeout { limit: Duration, last: String },
    #[error("start {tool}, which this function's dependencies need")]
    Start {
        tool: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("write the build's files")]
    Io(#[from] io::Error),
}

/// Builds `job.folder`. It is whole only if this says so: the caller keeps a mark of that.
///
/// # Errors
/// See [`BuildError`]; the folder is removed then, the log stays.
///
/// # Cancel safety
/// A dropped build leaves no process; its folder may be there in part.
pub async fn build(job: BuildJob) -> Result<Contents, BuildError> {
    let log = Mutex::new(Log::create(&job.log)?);
    let result = match timeout(job.limit, steps(&job, &log)).await {
        Ok(result) => result,
        Err(_) => {
            let last = log.lock().unwrap_or_else(PoisonError::into_inner).reason();
            let last = if last.is_empty() { "none".to_owned() } else { last };
            Err(BuildError::Timeout { limit: job.limit, last })
        }
    };
    let mut log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = &result {
        log.line("stderr", error.to_string().as_bytes())?;
        match fs::remove_dir_all(&job.folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    log.finish()?;
    result
}

async fn steps(job: &BuildJob, log: &Mutex<Log>) -> Result<Contents, BuildError> {
    let say =
        |text: String| log.lock().unwrap_or_else(PoisonError::into_inner).line("stdout", text.as_bytes());
    let (archive, folder) = (job.archive.try_clone()?, job.folder.clone());
    let (handlers, limits) = (candidates(&job.runtime, &job.entrypoint), job.limits);
    let unpacking = move || unpack(archive, &folder, &handlers, &limits);
    let contents =
        tokio::task::spawn_blocking(unpacking).await.map_err(io::Error::other)?.map_err(|e| match e {
            IntakeError::Io(e) => BuildError::Io(e),
            e => BuildError::Archive(e),
        })?;
    say(format!("unpacked {} files, {} bytes", contents.files, contents.size_bytes))?;
    let plan = install::plan(job.runtime.as_str(), &job.folder, &job.cache).map_err(|e| match e {
        ManifestError::Io(e) => BuildError::Io(e),
        e => BuildError::Manifest(e.to_string()),
    })?;
    let Some(plan) = plan else { return Ok(contents) };
    own_folder(&job.folder)?;
    fs::create_dir_all(&job.cache)?;
    let temp = tempfile::Builder::new().prefix("build-").tempdir_in(&job.cache)?;
    let shown: Vec<_> = plan.command.iter().map(|word| word.to_string_lossy()).collect();
    say(format!("$ {}", shown.join(" ")))?;
    let step = Step {
        command: job.launcher.iter().cloned().chain(plan.command).collect(),
        folder: &job.folder,
        temp: temp.path(),
        host: &job.environment,
        more: plan.environment,
    };
    let tool = plan.tool;
    let status = step.run(log).await.map_err(|source| BuildError::Start { tool, source })?;
    if !status.success() {
        let reason = log.lock().unwrap_or_else(PoisonError::into_inner).reason();
        return Err(BuildError::Install { tool, how: how(status), reason });
    }
    Ok(contents)
}

fn own_folder(function: &Path) -> io::Result<()> {
    let own = function.join(OWN_FOLDER);
    fs::create_dir(&own)?;
    fs::set_permissions(&own, Permissions::from_mode(0o755))
}

fn how(status: ExitStatus) -> String {
    match status.code() {
        Some(127) => "it is not installed on this machine".to_owned(),
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}
