//! What has been built: code in a folder of its own per content, and a record of how the build went.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sless_backend::{BackendError, BuildStatus, CodeError, FunctionRef, LogLine, Revision, Secret};
use sless_builder::{BuildError, BuildJob, IndexAccess, Limits, Memory, Placing, build, read_log};
use sless_core::{Digest, Phase};
use tokio::time::Instant;
use uuid::Uuid;

use crate::Shared;
use crate::cgroup::Group;
use crate::layout::{Layout, gone};

/// All processes of a build together. Installers of what has to be compiled take most; one that takes more harms its neighbours.
const BUILD_MEMORY: u64 = 2 << 30;

/// A build's record, `CONTENT.json`. It is written when the build is over: without it the code is not whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) content: Digest,
    /// Name of the folder with the code; `None` if the build failed.
    folder: Option<String>,
    started_us: u64,
    finished_us: u64,
    message: Option<String>,
}

impl Record {
    /// The code, if the build was good and it is still there.
    pub(crate) fn code(&self, layout: &Layout, function: &FunctionRef) -> Option<PathBuf> {
        let folder = layout.code(function).join(self.folder.as_ref()?);
        folder.is_dir().then_some(folder)
    }

    pub(crate) fn status(&self) -> BuildStatus {
        BuildStatus {
            name: name(&self.content, self.started_us),
            phase: if self.folder.is_some() { Phase::Ready } else { Phase::Failed },
            started_at: at(self.started_us),
            finished_at: Some(at(self.finished_us)),
            message: self.message.clone(),
        }
    }
}

fn at(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn log_path(layout: &Layout, function: &FunctionRef, content: &Digest) -> PathBuf {
    layout.builds(function).join(format!("{content}.log"))
}

fn record_path(layout: &Layout, function: &FunctionRef, content: &Digest) -> PathBuf {
    layout.builds(function).join(format!("{content}.json"))
}

/// What tells a build from the others of its function: the same content may be built again, in the same place.
fn name(content: &Digest, started_us: u64) -> String {
    format!("{content}-{started_us}")
}

/// The log of the build that has this name, as far as its place is known.
pub(crate) async fn log(
    layout: &Layout,
    function: &FunctionRef,
    name: &str,
    from: usize,
) -> Result<Option<Vec<LogLine>>, BackendError> {
    let content = name.split_once('-').and_then(|(content, _)| content.parse::<Digest>().ok());
    let Some(content) = content else { return Ok(None) };
    let path = log_path(layout, function, &content);
    let read = tokio::task::spawn_blocking(move || read_log(&path)).await.map_err(io::Error::other);
    let lines = read.flatten().map_err(|source| BackendError::Unavailable {
        action: format!("read the log of a build of {function}"),
        source: source.into(),
    })?;
    let line = |l: sless_builder::LogLine| LogLine { time: l.time, stream: l.stream, text: l.text };
    Ok(Some(lines.into_iter().skip(from).map(line).collect()))
}

/// The record of this content's build, if there was one.
pub(crate) fn of(layout: &Layout, function: &FunctionRef, content: &Digest) -> Option<Record> {
    read(&record_path(layout, function, content))
}

fn read(path: &Path) -> Option<Record> {
    // A record that cannot be read is none: then the code is built anew.
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// All records of a function, the newest first.
pub(crate) fn all(layout: &Layout, function: &FunctionRef) -> Vec<Record> {
    let Ok(files) = fs::read_dir(layout.builds(function)) else { return Vec::new() };
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut records: Vec<_> =
        files.flatten().map(|f| f.path()).filter(is_record).filter_map(|p| read(&p)).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.started_us));
    records
}

/// A build that has begun.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) status: BuildStatus,
    started_us: u64,
    content: Digest,
}

pub(crate) fn started(content: Digest) -> Started {
    let started_us = now_us();
    let status = BuildStatus {
        name: name(&content, started_us),
        phase: Phase::Building,
        started_at: at(started_us),
        finished_at: None,
        message: None,
    };
    Started { status, started_us, content }
}

/// Builds a revision's code. The record says how it went; an error is this machine's trouble, not the code's.
pub(crate) async fn run(
    shared: Arc<Shared>,
    function: FunctionRef,
    revision: Revision,
    started: Started,
    index: BTreeMap<String, Secret>,
) -> io::Result<Record> {
    let layout = &shared.layout;
    let limit = revision.settings.build_timeout_sec.duration();
    let archive =
        patiently(&shared, &function, &revision.code.sha256, limit).await.map_err(io::Error::other)?;
    let name = Uuid::new_v4().simple().to_string();
    let group = shared
        .cgroups
        .as_ref()
        .map(|groups| groups.make(&format!("build-{name}"), BUILD_MEMORY))
        .transpose()?;
    let job = BuildJob {
        archive,
        folder: layout.code(&function).join(&name),
        log: File::create(log_path(layout, &function, &started.content))?,
        cache: layout.cache(&function),
        runtime: revision.runtime,
        entrypoint: revision.settings.entrypoint,
        limit,
        limits: Limits::default(),
        environment: shared.config.host_environment.clone(),
        index: IndexAccess::new(index.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned()))),
        memory: match group.as_ref().map(Group::path) {
            Some(group) => Memory::Group { group, limit_bytes: BUILD_MEMORY },
            None => Memory::Each { limit_bytes: BUILD_MEMORY },
        },
        dependencies: Placing::Within,
        launcher: launcher(shared.config.cage.as_deref(), layout, &function),
    };
    let (folder, message) = match build(job).await {
        Ok(_) => (Some(name), None),
        Err(BuildError::Io(e)) => return Err(e),
        Err(e) => (None, Some(chain(&e))),
    };
    let record = Record {
        content: started.content,
        folder,
        started_us: started.started_us,
        finished_us: now_us(),
        message,
    };
    write(&record_path(layout, &function, &started.content), &record)?;
    Ok(record)
}

/// The uploaded zip. A store that is away is asked again for as long as a build may take: nobody would ask for this build once more.
async fn patiently(
    shared: &Shared,
    function: &FunctionRef,
    sha256: &Digest,
    limit: Duration,
) -> Result<File, CodeError> {
    let (began, mut pause) = (Instant::now(), Duration::from_millis(250));
    loop {
        match shared.code.get(function, sha256).await {
            Err(error @ CodeError::Failed { .. }) if began.elapsed() < limit => {
                tracing::warn!(function = %function, error = %chain(&error), "failed to get the code to build, trying again");
            }
            other => return other,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// The command that cages each of a build's commands.
fn launcher(cage: Option<&Path>, layout: &Layout, function: &FunctionRef) -> Vec<OsString> {
    let Some(cage) = cage else { return Vec::new() };
    let (hide, allow) = (layout.private(), layout.cache(function));
    vec![
        cage.into(),
        "build-step".into(),
        "--hide".into(),
        hide.into(),
        "--allow".into(),
        allow.into(),
        "--".into(),
    ]
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, serde_json::to_vec(record)?)?;
    fs::File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, path)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Folders of code that supervisors run on, those that drain too.
#[derive(Debug, Default)]
pub(crate) struct InUse(Mutex<HashMap<PathBuf, usize>>);

/// A folder is in use for as long as this lives.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    code: PathBuf,
}

impl InUse {
    fn all(&self) -> MutexGuard<'_, HashMap<PathBuf, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(shared: &Arc<Shared>, code: &Path) -> Held {
        *shared.code_in_use.all().entry(code.to_owned()).or_default() += 1;
        Held { shared: shared.clone(), code: code.to_owned() }
    }

    /// Takes the folder away from under its name, unless it is in use.
    fn retire(&self, code: &Path, to: &Path) -> io::Result<bool> {
        let all = self.all();
        if all.contains_key(code) {
            return Ok(false);
        }
        gone(fs::rename(code, to))?;
        Ok(true)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.shared.code_in_use.all();
        if let Some(count) = all.get_mut(&self.code) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.code);
            }
        }
    }
}

/// Removes code that nobody will ask for: not among `used`, and not of the `keep` newest builds; and what builds that were
/// broken off have left. What a supervisor still runs on stays until the next time.
pub(crate) fn prune(shared: &Shared, function: &FunctionRef, used: &[Digest], keep: usize) -> io::Result<()> {
    let layout = &shared.layout;
    let (mut kept, mut folders) = (0, Vec::new());
    for record in all(layout, function) {
        if used.contains(&record.content) || kept < keep {
            kept += 1;
            folders.extend(record.folder);
            continue;
        }
        gone(fs::remove_file(record_path(layout, function, &record.content)))?;
        gone(fs::remove_file(log_path(layout, function, &record.content)))?;
    }
    for entry in fs::read_dir(layout.code(function))? {
        let entry = entry?;
        if !folders.iter().any(|name| entry.file_name() == name.as_str()) {
            let doomed = layout.code(function).join(format!(".gone-{}", Uuid::new_v4().simple()));
            if shared.code_in_use.retire(&entry.path(), &doomed)? {
                gone(fs::remove_dir_all(doomed))?;
            }
        }
    }
    Ok(())
}
