//! Ends all that a build step has started, those that left its process group too.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// A variable that a step's processes inherit; its value is the step's own.
pub(crate) const MARK: &str = "SLESS_BUILD_STEP";

/// Kills the process group `leader`, then whatever still carries `mark` in its environment: a process that
/// made a session of its own is found by that. Twice, as a process may have forked meanwhile.
pub(crate) fn end(leader: Option<u32>, mark: &str) {
    if let Some(group) = leader.and_then(|pid| i32::try_from(pid).ok()) {
        // ESRCH: all of it has ended by itself.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let wanted = format!("{MARK}={mark}");
    for _ in 0..2 {
        for pid in carriers(&wanted) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

fn carriers(wanted: &str) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let carries = |path: &Path| {
        fs::read(path.join("environ")).is_ok_and(|all| all.split(|b| *b == 0).any(|v| v == wanted.as_bytes()))
    };
    processes
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<i32>().ok()?, entry.path())))
        .filter(|(_, path)| carries(path))
        .map(|(pid, _)| Pid::from_raw(pid))
        .collect()
}
