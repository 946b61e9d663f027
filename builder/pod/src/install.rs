//! The first step: from a presigned URL to folders that can be packed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use sless_builder::{
    BuildError, BuildJob, Built, HostEnvironment, IndexAccess, Limits, Memory, Placing, build,
};
use sless_core::{Digest, Entrypoint, Runtime};

use crate::{
    DEPENDENCIES, Dependencies, Exit, FUNCTION, FUNCTION_DIR, Failed, PLAN, Plan, compile, fetch, known,
};

/// Settings, all from the environment.
#[derive(Debug, Parser)]
#[command(name = "sless-install", version, about = "Fetches a function's code and installs its dependencies")]
pub struct Settings {
    /// Presigned URL of the zip
    #[arg(long, env, hide_env_values = true)]
    pub code_url: String,
    /// SHA-256 of the zip, in hex
    #[arg(long, env)]
    pub code_sha256: Digest,
    /// SHA-256 of what is in it, in hex; empty: not checked
    #[arg(long, env, default_value = "")]
    pub content_sha256: String,
    /// Such as python3.11
    #[arg(long, env)]
    pub runtime: Runtime,
    #[arg(long, env, default_value = "handler.handle")]
    pub entrypoint: Entrypoint,
    /// Seconds for all of it
    #[arg(long, env, default_value_t = 600.0)]
    pub build_timeout_sec: f64,
    /// JSON list of the dependencies that need no install
    #[arg(long, env, default_value = "")]
    pub known_dependencies: String,
    /// The folder that the steps share
    #[arg(long, env, default_value = "/work")]
    pub work: PathBuf,
    /// Files whose names and contents are given to installers, to find packages that are not public
    #[arg(long, env, default_value = "/var/run/sless/index")]
    pub index_dir: PathBuf,
    /// For what does not outlive the step
    #[arg(long, env, default_value = "/tmp")]
    pub temp: PathBuf,
    #[arg(long, env, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// Runs the step; gives what it also has written as the plan.
///
/// # Errors
/// [`Failed`], with a message for the author.
pub async fn run(settings: &Settings) -> Result<Plan, Failed> {
    let known = known(&settings.known_dependencies)
        .map_err(|e| Failed::new(Exit::Settings, format!("KNOWN_DEPENDENCIES: {e}")))?;
    let own = |e: &dyn std::error::Error| Failed::of(Exit::Again, e);
    clear(&settings.work).map_err(|e| own(&e))?;
    let archive = fetch::fetch(&settings.code_url, &settings.code_sha256).await?;
    let job = job(settings, archive, &known).map_err(|e| own(&e))?;
    let built = build(job).await.map_err(|error| match &error {
        BuildError::Io(_) => own(&error),
        _ => Failed::of(Exit::Author, &error),
    })?;
    let Built { contents, apart } = built;
    let content = contents.content_sha256.to_string();
    if !settings.content_sha256.is_empty() && settings.content_sha256 != content {
        let text = format!(
            "the zip holds content with SHA-256 {content}, and source.contentSha256 says {}",
            settings.content_sha256
        );
        return Err(Failed::new(Exit::Author, text));
    }
    if settings.runtime.as_str().starts_with("python") {
        for name in [FUNCTION, DEPENDENCIES] {
            let folder = settings.work.join(name);
            if folder.exists() {
                let place = format!("/{FUNCTION_DIR}");
                compile::python(settings.runtime.as_str(), &folder, &place).map_err(|e| own(&e))?;
            }
        }
    }
    let plan = Plan { content_sha256: content, dependencies: apart.map(|key| key.to_string()) };
    let text = serde_json::to_vec(&plan).map_err(|e| own(&e))?;
    fs::write(settings.work.join(PLAN), text).map_err(|e| own(&e))?;
    Ok(plan)
}

/// What an earlier try of this pod has left.
fn clear(work: &Path) -> io::Result<()> {
    for name in [FUNCTION, DEPENDENCIES] {
        match fs::remove_dir_all(work.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    match fs::remove_file(work.join(PLAN)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn job(settings: &Settings, archive: File, known: &[Dependencies]) -> io::Result<BuildJob> {
    let known: BTreeSet<Digest> = known.iter().filter_map(|one| one.key.parse().ok()).collect();
    // Byte code is made afterwards, as an image needs it.
    let environment = std::env::vars_os().chain([("PIP_COMPILE".into(), "0".into())]);
    Ok(BuildJob {
        archive,
        folder: settings.work.join(FUNCTION),
        log: File::from(io::stdout().as_fd().try_clone_to_owned()?),
        cache: settings.temp.join("build"),
        runtime: settings.runtime.clone(),
        entrypoint: settings.entrypoint.clone(),
        limit: Duration::try_from_secs_f64(settings.build_timeout_sec).map_err(io::Error::other)?,
        limits: Limits::default(),
        environment: HostEnvironment::pick(environment),
        index: IndexAccess::new(index(&settings.index_dir)?),
        memory: memory(),
        launcher: Vec::new(),
        dependencies: Placing::Apart { folder: settings.work.join(DEPENDENCIES), known },
    })
}

/// The keys of the namespace's secret are files here.
fn index(folder: &Path) -> io::Result<BTreeMap<String, String>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other?,
    };
    let mut values = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Kubernetes' own links are beside the keys.
        if !name.starts_with("..") && entry.path().is_file() {
            values.insert(name, fs::read_to_string(entry.path())?);
        }
    }
    Ok(values)
}

/// The container's limit, which the kernel enforces; here it only is told from other ends.
fn memory() -> Memory {
    for (group, file) in
        [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
    {
        let group = PathBuf::from(group);
        if let Ok(text) = fs::read_to_string(group.join(file)) {
            return Memory::Around { group, limit_bytes: text.trim().parse().unwrap_or(u64::MAX) };
        }
    }
    Memory::Around { group: PathBuf::new(), limit_bytes: u64::MAX }
}
