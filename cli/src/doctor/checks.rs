//! What is looked at on this machine.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::statvfs::statvfs;
use serde_json::Value;

use super::{Finding, Level};

/// The first kernel with Landlock, which keeps handlers and builds from the host's files.
const LANDLOCK: (u32, u32) = (5, 13);
const FEW_BYTES: u64 = 1 << 30;

pub(super) fn kernel() -> Finding {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        let text = "this is no Linux: `sless up` and `sless dev` need one; the other commands work with a host elsewhere (SLESS_URL)";
        return Finding::new("system", Level::Bad, text);
    };
    let release = release.trim();
    let lsm = fs::read_to_string("/sys/kernel/security/lsm").ok();
    let has = lsm.as_deref().is_none_or(|lsm| lsm.split(',').any(|name| name.trim() == "landlock"));
    match version(release) {
        Some(found) if found >= LANDLOCK && has => {
            Finding::new("system", Level::Good, format!("Linux {release}"))
        }
        _ => Finding::new(
            "system",
            Level::Doubtful,
            format!(
                "Linux {release} without Landlock (5.13, lsm=…,landlock): nothing keeps handlers and builds from files of the host's user; deploy only code that you trust"
            ),
        ),
    }
}

/// Major and minor of a text that begins with them, a `v` or a name before it or not.
fn version(text: &str) -> Option<(u32, u32)> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut parts = digits.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|part| part.parse().ok()).unwrap_or_default()))
}

/// One finding for each runtime: whether its interpreter is there, in the version that its name promises.
pub(crate) fn interpreters(runtimes_dir: &Path) -> Vec<Finding> {
    let runtimes = sless_backend_local::runtimes(runtimes_dir);
    runtimes
        .iter()
        .map(|runtime| interpreter(runtime.as_str(), &runtimes_dir.join(runtime.as_str())))
        .collect()
}

fn interpreter(runtime: &str, folder: &Path) -> Finding {
    let description = fs::read(folder.join("runtime.json")).ok();
    let description: Option<Value> = description.and_then(|text| serde_json::from_slice(&text).ok());
    let program = description.as_ref().and_then(|d| d.get("command")?.get(0)?.as_str());
    let Some(program) = program else {
        return Finding::new(
            runtime,
            Level::Bad,
            format!("{}/runtime.json names no command", folder.display()),
        );
    };
    judge(runtime, program, found_in_path(program).map(|path| (version_of(&path), path)))
}

fn judge(runtime: &str, program: &str, found: Option<(String, PathBuf)>) -> Finding {
    let Some((says, path)) = found else {
        let text =
            format!("{program} is not in PATH, so functions with runtime {runtime} can't start; install it");
        return Finding::new(runtime, Level::Bad, text);
    };
    let asked = version(runtime);
    let fits = match (asked, version(&says)) {
        (Some((major, 0)), Some((found, _))) => major == found,
        (Some(asked), Some(found)) => asked == found,
        _ => true,
    };
    if fits {
        return Finding::new(runtime, Level::Good, format!("{says}, {}", path.display()));
    }
    let text = format!(
        "{} is {says}, functions with runtime {runtime} ask for another version: put that one first in PATH",
        path.display()
    );
    Finding::new(runtime, Level::Doubtful, text)
}

fn found_in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The first line that `PROGRAM --version` prints.
fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What builds call; missing ones matter only to functions with dependencies.
pub(super) fn installers() -> Vec<Finding> {
    let pip = found_in_path("python3.11").filter(|python| runs(python, &["-m", "pip", "--version"]));
    let of = |what: &str, there: bool, lacks: &str| match there {
        true => Finding::new(what, Level::Good, "there"),
        false => Finding::new(what, Level::Doubtful, lacks),
    };
    vec![
        of(
            "pip",
            pip.is_some(),
            "`python3.11 -m pip` does not run: functions with a requirements.txt can't be built (python3-pip)",
        ),
        of(
            "npm",
            found_in_path("npm").is_some(),
            "npm is not in PATH: functions with dependencies in package.json can't be built",
        ),
    ]
}

fn runs(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments.iter().map(OsStr::new))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a host that is started as this command was can limit what functions and builds take.
pub(super) fn memory() -> Finding {
    match sless_backend_local::memory_limits() {
        Ok(()) => Finding::new("memory limit", Level::Good, "functions and builds get control groups"),
        Err(why) => {
            let text = format!("functions are not held to their memory_mb: {why}");
            Finding::new("memory limit", Level::Doubtful, text)
        }
    }
}

pub(super) fn data_folder(folder: &Path) -> Finding {
    let what = "data folder";
    if folder.starts_with("/tmp") {
        let text = format!(
            "{} lies below /tmp, where handlers may write: set DATA_DIR to another place",
            folder.display()
        );
        return Finding::new(what, Level::Bad, text);
    }
    // It may not be there yet; then what it will be made in counts.
    let Some(there) = folder.ancestors().find(|ancestor| ancestor.exists()) else {
        return Finding::new(
            what,
            Level::Bad,
            format!("{}: nothing of this path is there", folder.display()),
        );
    };
    if nix::unistd::access(there, nix::unistd::AccessFlags::W_OK).is_err() {
        let text =
            format!("{} can't be written by this user: set DATA_DIR to another place", there.display());
        return Finding::new(what, Level::Bad, text);
    }
    match statvfs(there).map(|s| s.blocks_available() * s.fragment_size()) {
        Ok(free) if free < FEW_BYTES => {
            let text = format!("{}: only {} MiB are free on its disk", folder.display(), free >> 20);
            Finding::new(what, Level::Doubtful, text)
        }
        Ok(free) => Finding::new(what, Level::Good, format!("{}, {} GiB free", folder.display(), free >> 30)),
        Err(e) => Finding::new(what, Level::Doubtful, format!("{}: {e}", there.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_far_as_the_runtimes_name_goes() {
        let level = |runtime: &str, says: &str| judge(runtime, "x", Some((says.into(), "/x".into()))).level;
        assert_eq!(level("python3.11", "Python 3.11.7"), Level::Good);
        assert_eq!(level("python3.11", "Python 3.12.1"), Level::Doubtful);
        assert_eq!(level("nodejs20", "v20.20.2"), Level::Good);
        assert_eq!(level("nodejs20", "v18.0.0"), Level::Doubtful);
        let missing = judge("nodejs20", "node", None);
        assert!(missing.level == Level::Bad && missing.text.contains("node is not in PATH"), "{missing:?}");
        assert_eq!((version("5.10.0-8-amd64"), version("")), (Some((5, 10)), None));
    }

    #[test]
    fn a_data_folder_where_handlers_write_is_refused() {
        assert_eq!(data_folder(Path::new("/tmp/x")).level, Level::Bad);
        assert_ne!(data_folder(Path::new("/var/tmp/not/yet")).level, Level::Bad);
    }
}
