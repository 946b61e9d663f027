//! One command of a build: fresh environment, own process group, a limit, its output in the log.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::family;
use crate::log::Log;

/// Runs the command given as arguments in this shell's process group, and kills the whole group as soon as
/// standard input ends: that is when the host is gone, however it went. Before that it enters the control group `$1`, or, where
/// that is empty, limits each process by itself to `$2` KiB (`unlimited`: not at all).
const KEEPER: &str = r#"
umask 022
if [ -n "$1" ]; then echo $$ >"$1/cgroup.procs" || exit 1; else ulimit -d "$2"; fi
shift 2
exec 3<&0 </dev/null
( read -r _ <&3; kill -KILL 0 ) >/dev/null 2>&1 &
"$@" 3<&-
"#;

/// How long output is waited for after the command has ended and all that it left behind was killed.
const DRAIN: Duration = Duration::from_secs(1);

/// What installers may see of the host's environment: how to reach package indexes, and nothing else.
#[derive(Debug, Clone, Default)]
pub struct HostEnvironment(BTreeMap<OsString, OsString>);

impl HostEnvironment {
    /// The values of its variables.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter_map(|value| value.to_str())
    }

    /// Picks from `variables` (all of the host's) what installers need.
    pub fn pick(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        const NAMES: [&str; 13] = [
            "PATH",
            "NODE_EXTRA_CA_CERTS",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "NO_PROXY",
            "http_proxy",
            "https_proxy",
            "no_proxy",
            "TZ",
        ];
        let wanted = |name: &OsString| {
            name.to_str()
                .is_some_and(|n| NAMES.contains(&n) || n.starts_with("PIP_") || n.starts_with("npm_config_"))
        };
        Self(variables.into_iter().filter(|(name, _)| wanted(name)).collect())
    }
}

/// A command to run.
pub(crate) struct Step<'a> {
    pub(crate) command: Vec<OsString>,
    pub(crate) folder: &'a Path,
    /// HOME and TMPDIR.
    pub(crate) temp: &'a Path,
    pub(crate) host: &'a HostEnvironment,
    /// The last one of a name counts.
    pub(crate) more: Vec<(OsString, OsString)>,
    pub(crate) memory: &'a Memory,
}

/// The memory that a build may have.
#[derive(Debug, Clone)]
pub enum Memory {
    /// A control group of this build's own has the limit, and its commands enter it.
    Group { group: PathBuf, limit_bytes: u64 },
    /// Each process has the limit for itself.
    Each { limit_bytes: u64 },
    /// Somebody else has put all of this, this process too, into a control group with the limit.
    Around { group: PathBuf, limit_bytes: u64 },
}

impl Memory {
    pub(crate) fn limit_bytes(&self) -> u64 {
        match self {
            Self::Group { limit_bytes, .. }
            | Self::Each { limit_bytes }
            | Self::Around { limit_bytes, .. } => *limit_bytes,
        }
    }

    /// What the shell that starts a command is told: a group to enter, or a limit for each process, for `ulimit`.
    fn words(&self) -> (&Path, String) {
        let none = Path::new("");
        match self {
            Self::Group { group, .. } => (group, "unlimited".to_owned()),
            Self::Each { limit_bytes } => (none, (limit_bytes >> 10).to_string()),
            Self::Around { .. } => (none, "unlimited".to_owned()),
        }
    }

    /// How often the kernel has killed in the group because memory ran out.
    fn kills(&self) -> u64 {
        let group = match self {
            Self::Group { group, .. } | Self::Around { group, .. } => group,
            Self::Each { .. } => return 0,
        };
        // Version 1 and 2 of control groups.
        let files = ["memory.oom_control", "memory.events"];
        let texts = files.iter().filter_map(|file| fs::read_to_string(group.join(file)).ok());
        let count = |text: String| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(name, _)| *name == "oom_kill")?.1.trim().parse::<u64>().ok()
        };
        texts.filter_map(count).sum()
    }

    pub(crate) fn ran_out(&self) -> bool {
        self.kills() > 0
    }
}

/// Kills the family when the step is over, and also when it is given up (a dropped future).
struct Family {
    leader: Option<u32>,
    mark: String,
}

impl Drop for Family {
    fn drop(&mut self) {
        family::end(self.leader, &self.mark);
    }
}

impl Step<'_> {
    /// Runs it to its end.
    ///
    /// # Cancel safety
    /// When the future is dropped, all that the command has started is killed.
    pub(crate) async fn run(self, log: &Mutex<Log>) -> io::Result<ExitStatus> {
        let mark = self.temp.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new("/bin/sh");
        let (group, each) = self.memory.words();
        command.args(["-c", KEEPER, "sh"]).arg(group).arg(each);
        command.args(&self.command).current_dir(self.folder);
        command.env_clear().envs(&self.host.0);
        command
            .env("HOME", self.temp)
            .env("TMPDIR", self.temp)
            .env("LANG", "C.UTF-8")
            .env(family::MARK, &mark);
        command.envs(self.more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let family = Family { leader: child.id(), mark };
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = async { tokio::join!(copy(stdout, "stdout", log), copy(stderr, "stderr", log)) };
        tokio::pin!(output);
        let status = tokio::select! {
            status = child.wait() => {
                drop(family);
                // Something that hid from the kill may hold the pipes: it does not hold up the build.
                if let Ok((out, err)) = timeout(DRAIN, output).await {
                    out.and(err)?;
                }
                status
            }
            (out, err) = &mut output => {
                out.and(err)?;
                child.wait().await
            }
        };
        drop(stdin);
        status
    }
}

/// Reads lines until the end. A line without an end is cut in parts, so that memory stays bounded.
async fn copy(pipe: Option<impl AsyncRead + Unpin>, stream: &str, log: &Mutex<Log>) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut pipe).take(64 << 10).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        log.lock().unwrap_or_else(PoisonError::into_inner).line(stream, &line)?;
    }
}
