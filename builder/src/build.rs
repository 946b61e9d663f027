//! A build: unpack, install, say how it went.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sless_core::{Digest, Entrypoint, Runtime};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::access::IndexAccess;
use crate::entry::candidates;
use crate::install::{self, Install, ManifestError};
use crate::intake::{Contents, IntakeError, Limits};
use crate::log::Log;
use crate::masks::Masks;
use crate::name::OWN_FOLDER;
use crate::platform::{self, Misfit};
use crate::reason;
use crate::shared::{self, Shared, Store};
use crate::step::{HostEnvironment, Memory, Step};
use crate::unpack;

/// What to build, from what, into what.
#[derive(Debug)]
pub struct BuildJob {
    /// The uploaded zip, open for reading.
    pub archive: File,
    /// Where the function's folder is to be; its parent is there, it is not.
    pub folder: PathBuf,
    /// Where the build's log goes, as JSON lines.
    pub log: File,
    /// Downloads that outlive the build, shared by functions that trust each other.
    pub cache: PathBuf,
    pub runtime: Runtime,
    pub entrypoint: Entrypoint,
    /// For all of it; the setting's name is `build_timeout_sec`.
    pub limit: Duration,
    pub limits: Limits,
    pub environment: HostEnvironment,
    /// For installers alone.
    pub index: IndexAccess,
    pub memory: Memory,
    /// What starts each command, given as its arguments: a cage. May be empty.
    pub launcher: Vec<OsString>,
    pub dependencies: Placing,
}

/// Where dependencies go that functions of one namespace share.
#[derive(Debug)]
pub enum Placing {
    /// Into the function's folder, as a copy of what `cache` has or now gets.
    Within,
    /// Into this folder, which is not there yet, below the paths that they have in the function's; not at all if `known` has their key.
    Apart { folder: PathBuf, known: BTreeSet<Digest> },
}

/// What a build has made.
#[derive(Debug, Clone)]
pub struct Built {
    pub contents: Contents,
    /// The key of the dependencies that are apart from the function's folder; `None` if there are none.
    pub apart: Option<Digest>,
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
    #[error(
        "{tool} needed more than the {limit_mib} MiB of memory that a build may have, and was killed; its last output: {last}"
    )]
    Memory { tool: &'static str, limit_mib: u64, last: String },
    #[error(
        "`{path}` is built for {built_for}, and functions run on Linux on {}: leave what was installed elsewhere out of the folder, and name the package in requirements.txt or package.json, so that it is installed here",
        std::env::consts::ARCH
    )]
    Platform { path: String, built_for: String },
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
pub async fn build(job: BuildJob) -> Result<Built, BuildError> {
    let mut masks = job.index.masks();
    // The host's own way to an index may hold a password too.
    job.environment.values().for_each(|value| masks.addresses(value));
    let log = Mutex::new(Log::new(job.log.try_clone()?, masks.clone()));
    let result = match timeout(job.limit, steps(&job, &masks, &log)).await {
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

async fn steps(job: &BuildJob, masks: &Masks, log: &Mutex<Log>) -> Result<Built, BuildError> {
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
    let (folder, anew) = (job.folder.clone(), plan.as_ref().map(|plan| plan.product.clone()));
    let looking = move || platform::misfit(&folder, anew.as_deref());
    if let Some(Misfit { path, built_for }) =
        tokio::task::spawn_blocking(looking).await.map_err(io::Error::other)??
    {
        return Err(BuildError::Platform { path, built_for });
    }
    let Some(plan) = plan else { return Ok(Built { contents, apart: None }) };
    if !job.index.refused().is_empty() {
        let names = job.index.refused().join(", ");
        say(format!("{names}: not given to {}, as it changes which programs run", plan.tool))?;
    }
    own_folder(&job.folder)?;
    fs::create_dir_all(&job.cache)?;
    let Some(shared) = &plan.shared else {
        install(job, &plan, &job.folder, log).await?;
        return Ok(Built { contents, apart: None });
    };
    let key = shared::key(shared, &job.folder, job.runtime.as_str(), &job.index.identity(masks))?;
    let short = key.to_string();
    let short = short.get(..12).unwrap_or(&short);
    let same = || say(format!("dependencies are as in an earlier build: {short}"));
    let kept = || {
        say(format!("dependencies are kept for builds with the same {}: {short}", shared.inputs.join(", ")))
    };
    let product = job.folder.join(&plan.product);
    let clear = product.clone();
    let clearing = move || match fs::remove_dir_all(&clear) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    if let Placing::Apart { folder, known } = &job.dependencies {
        if known.contains(&key) {
            same()?;
        } else {
            let alone = install_alone(job, &plan, shared, log).await?;
            let place = folder.join(&plan.product);
            fs::create_dir_all(place.parent().unwrap_or(folder))?;
            let made = alone.path().join(&plan.product);
            let copying = move || shared::copy(&made, &place);
            tokio::task::spawn_blocking(copying).await.map_err(io::Error::other)??;
            kept()?;
        }
        tokio::task::spawn_blocking(clearing).await.map_err(io::Error::other)??;
        return Ok(Built { contents, apart: Some(key) });
    }
    let store = Store::new(&job.cache);
    let installed = match store.find(&key) {
        Some(installed) => {
            same()?;
            installed
        }
        None => {
            let alone = install_alone(job, &plan, shared, log).await?;
            let installed = store.keep(&key, &alone.path().join(&plan.product))?;
            kept()?;
            installed
        }
    };
    let copying = move || clearing().and_then(|()| shared::copy(&installed, &product));
    tokio::task::spawn_blocking(copying).await.map_err(io::Error::other)??;
    Ok(Built { contents, apart: None })
}

/// Runs the installer where it sees manifest and lock file alone.
async fn install_alone(
    job: &BuildJob,
    plan: &Install,
    shared: &Shared,
    log: &Mutex<Log>,
) -> Result<TempDir, BuildError> {
    let alone = tempfile::Builder::new().prefix("build-").tempdir_in(&job.cache)?;
    for name in &shared.inputs {
        fs::copy(job.folder.join(name), alone.path().join(name))?;
    }
    install(job, plan, alone.path(), log).await?;
    // An installer that has nothing to do makes nothing.
    fs::create_dir_all(alone.path().join(&plan.product))?;
    Ok(alone)
}

/// Runs the installer in `folder`.
async fn install(job: &BuildJob, plan: &Install, folder: &Path, log: &Mutex<Log>) -> Result<(), BuildError> {
    let log_of = || log.lock().unwrap_or_else(PoisonError::into_inner);
    let temp = tempfile::Builder::new().prefix("build-").tempdir_in(&job.cache)?;
    job.index.furnish(temp.path())?;
    let shown: Vec<_> = plan.command.iter().map(|word| word.to_string_lossy()).collect();
    log_of().line("stdout", format!("$ {}", shown.join(" ")).as_bytes())?;
    // pip prints there what it shows nobody: that an index refused it, or was away.
    let pip_log = temp.path().join("pip.log");
    let told = (OsString::from("PIP_LOG"), pip_log.clone().into_os_string());
    let own = plan.environment.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    let step = Step {
        command: job.launcher.iter().chain(&plan.command).cloned().collect(),
        folder,
        temp: temp.path(),
        host: &job.environment,
        more: job.index.variables().chain(own).chain([told]).collect(),
        memory: &job.memory,
    };
    let tool = plan.tool;
    let status = step.run(log).await.map_err(|source| BuildError::Start { tool, source })?;
    if status.success() {
        return Ok(());
    }
    for line in refusals(&fs::read_to_string(&pip_log).unwrap_or_default()) {
        log_of().line("stderr", line.as_bytes())?;
    }
    let reason = log_of().reason();
    if job.memory.ran_out() {
        return Err(BuildError::Memory { tool, limit_mib: job.memory.limit_bytes() >> 20, last: reason });
    }
    Err(BuildError::Install { tool, how: how(status), reason })
}

/// Addresses that pip could not read, each once, out of its own log.
fn refusals(text: &str) -> Vec<&str> {
    let mut found: Vec<_> =
        text.lines().filter_map(|line| line.get(line.find(reason::OF_PIP)?..)).map(str::trim).collect();
    found.dedup();
    found.truncate(10);
    found
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
