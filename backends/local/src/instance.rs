//! One `sless-supervisor serve` as a child process.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sless_backend::{Endpoint, FunctionRef, Revision};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;
use uuid::Uuid;

use crate::Shared;
use crate::cgroup::Group;
use crate::layout::gone;

/// From a call's limit to the end of its worker, and the supervisor's own end after that.
const AFTER_LAST_CALL: Duration = Duration::from_secs(10);
/// What a supervisor prints is kept up to this size, and the part before once more.
const OUTPUT_MAX: u64 = 16 << 20;

/// How a supervisor is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Running calls finish.
    Drain,
    /// It has never had a call.
    Now,
}

#[derive(Debug)]
pub(crate) struct Instance {
    child: Child,
    /// Its end tells the supervisor that this process is gone, however it went.
    _stdin: Option<ChildStdin>,
    socket: PathBuf,
    admin: PathBuf,
    output: PathBuf,
    /// Where this instance's output begins in the file.
    output_start: u64,
    limit: Duration,
    /// Goes after the supervisor.
    _group: Option<Group>,
}

impl Instance {
    /// Starts one on the built code in `code`.
    pub(crate) fn start(
        shared: &Shared,
        function: &FunctionRef,
        revision: &Revision,
        code: &Path,
    ) -> io::Result<Self> {
        let layout = &shared.layout;
        let id = Uuid::new_v4().simple().to_string();
        let id = id.get(..12).unwrap_or(&id);
        let socket = layout.run().join(format!("{id}.sock"));
        let admin = layout.run().join(format!("{id}.adm"));
        let output = layout.output(function).join("supervisor.log");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&output)?;
        let output_start = file.metadata()?.len();
        let mut command = Command::new(&shared.config.supervisor);
        command.arg("serve").env_clear().envs(environment(shared, function, revision, code));
        let memory_bytes = u64::from(revision.settings.memory_mb) << 20;
        let group = shared.cgroups.as_ref().map(|groups| groups.make(id, memory_bytes)).transpose()?;
        if let Some(group) = &group {
            command.env("SLESS_CGROUP", group.path());
        }
        command.env("SLESS_LISTEN", unix(&socket)).env("SLESS_ADMIN_LISTEN", unix(&admin));
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file).current_dir("/");
        // A group of its own: an interrupt typed at the terminal is for the host, which then drains it.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let limit = revision.settings.timeout_sec.duration().saturating_add(AFTER_LAST_CALL);
        Ok(Self { child, _stdin: stdin, socket, admin, output, output_start, limit, _group: group })
    }

    pub(crate) fn admin(&self) -> &Path {
        &self.admin
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::Unix { path: self.socket.clone(), admin: self.admin.clone() }
    }

    /// # Cancel safety
    /// Can be asked again.
    pub(crate) async fn exited(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// The last line that it printed, where it says why it could not start.
    pub(crate) fn last_words(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.output)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.output_start.max(length.saturating_sub(4096)).min(length)))?;
            let mut bytes = Vec::new();
            file.take(4096).read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes);
            Ok(text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned())
        };
        read().unwrap_or_default()
    }

    /// Keeps the file of what it prints from growing for ever.
    pub(crate) fn rotate(&self) -> io::Result<()> {
        if fs::metadata(&self.output)?.len() > OUTPUT_MAX {
            fs::copy(&self.output, self.output.with_extension("log.1"))?;
            // It appends, so it goes on at the new end.
            OpenOptions::new().write(true).open(&self.output)?.set_len(0)?;
        }
        Ok(())
    }

    /// Asks it to end, waits, and insists.
    pub(crate) async fn end(mut self, how: End) -> io::Result<()> {
        let limit = if how == End::Drain { self.limit } else { Duration::from_secs(3) };
        // It has not been waited for, so the number is still its own.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if timeout(limit, self.child.wait()).await.is_err() {
            tracing::warn!(supervisor = ?self.child.id(), "a supervisor did not end within {limit:?} and is killed");
            self.child.kill().await?;
        }
        self.remove_sockets()
    }

    pub(crate) fn remove_sockets(&self) -> io::Result<()> {
        gone(fs::remove_file(&self.socket))?;
        gone(fs::remove_file(&self.admin))
    }
}

fn unix(path: &Path) -> OsString {
    let mut text = OsString::from("unix:");
    text.push(path);
    text
}

/// All that the supervisor sees: the function's variables, a PATH, and its settings. Nothing is inherited.
fn environment(
    shared: &Shared,
    function: &FunctionRef,
    revision: &Revision,
    code: &Path,
) -> Vec<(OsString, OsString)> {
    let (layout, config, settings) = (&shared.layout, &shared.config, &revision.settings);
    let mut all: Vec<(OsString, OsString)> = vec![("PATH".into(), config.path.clone())];
    // The function's own PATH, if it has one, comes after ours and so wins.
    all.extend(settings.env.iter().map(|(name, value)| (name.into(), value.into())));
    // A variable of both is the secret's: it could not be masked otherwise.
    all.extend(revision.secrets.iter().map(|(name, value)| (name.into(), value.reveal().into())));
    let secret_names = revision.secrets.keys().map(String::as_str).collect::<Vec<_>>().join(",");
    let texts = [
        ("SLESS_NAMESPACE", function.namespace.to_string()),
        ("SLESS_FUNCTION", function.name.to_string()),
        ("SLESS_REVISION", revision.name.clone()),
        ("SLESS_ENTRYPOINT", settings.entrypoint.to_string()),
        ("SLESS_TIMEOUT_SEC", settings.timeout_sec.to_string()),
        ("SLESS_INIT_TIMEOUT_SEC", settings.init_timeout_sec.to_string()),
        ("SLESS_WORKERS", settings.workers.to_string()),
        ("SLESS_CONCURRENCY", settings.concurrency.to_string()),
        ("SLESS_SECRET_NAMES", secret_names),
        ("SLESS_EXIT_WITH_STDIN", "true".to_owned()),
        // Their last records are stored before the API stops listening, and before a deleted function's spool goes.
        ("SLESS_FLUSH_SEC", "5".to_owned()),
    ];
    all.extend(texts.map(|(name, value)| (name.into(), value.into())));
    let paths = [
        ("SLESS_RUNTIME_DIR", config.runtimes_dir.join(revision.runtime.as_str())),
        ("SLESS_FUNCTION_DIR", code.to_owned()),
        ("SLESS_REPORT_TOKEN_FILE", layout.report_token(function)),
        ("SLESS_SPOOL_DIR", layout.spool(function)),
        ("SLESS_PROXY_TOKEN_FILE", layout.proxy_token()),
    ];
    all.extend(paths.map(|(name, path)| (name.into(), path.into())));
    all.push(("SLESS_REPORT_URL".into(), unix(&config.reports_socket)));
    all
}
