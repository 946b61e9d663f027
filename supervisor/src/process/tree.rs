//! Who descends from whom, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use super::sys;

/// What `/proc/PID/stat` says of a process (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) parent: i32,
    /// Clock ticks of this process and of the children that it has buried.
    ticks: u64,
}

pub(super) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name may hold anything, brackets and blanks too: only the last bracket ends it.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let mut ticks = 0;
    // utime, stime, cutime, cstime: fields 14 to 17, counted from 1; the state is field 3.
    for field in fields.get(11..15)? {
        ticks += field.parse::<u64>().unwrap_or(0);
    }
    Some(Stat { state: *fields.first()?.as_bytes().first()?, parent: fields.get(1)?.parse().ok()?, ticks })
}

/// The children of all threads of `pid`, zombies too.
pub(super) fn children(pid: i32) -> Vec<i32> {
    listed_children(pid).unwrap_or_else(|| {
        all_processes().into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect()
    })
}

/// `None` if the kernel keeps no such list (`CONFIG_PROC_CHILDREN` is off).
fn listed_children(pid: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Some(found); // the process is gone
    };
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(_) if thread.path().join("stat").exists() => return None,
            Err(_) => {}
        }
    }
    Some(found)
}

fn all_processes() -> BTreeMap<i32, i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?.parent))).collect()
}

/// All that descend from `root`, parents first, without itself.
pub(super) fn descendants(root: i32) -> Vec<i32> {
    if listed_children(root).is_none() {
        return descendants_among(root, &all_processes());
    }
    let mut found = children(root);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        for child in children(*pid) {
            // One that is moved to another parent while we look may turn up twice.
            if !found.contains(&child) {
                found.push(child);
            }
        }
        next += 1;
    }
    found
}

fn descendants_among(root: i32, parents: &BTreeMap<i32, i32>) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(
            parents
                .iter()
                .filter(|(child, parent)| **parent == pid && **child != root)
                .map(|(child, _)| *child),
        );
        next += 1;
    }
    found.split_off(1)
}

/// Sends `signal` to all that descend from `root`, as far as they can be found.
///
/// Between the look and the signal a process may end and its pid be given to a stranger. A handle on the process is
/// therefore taken first, and its parent looked up after: if that is one of the family, so is what the handle names
/// (or it is dead, and the signal reaches nobody).
pub(super) fn signal_descendants(root: i32, signal: i32) {
    let mut signalled = Vec::new();
    // Again, for those that were born meanwhile; not for ever, as they may be born faster than we look.
    for _ in 0..3 {
        let family = descendants(root);
        let new: Vec<i32> = family.iter().copied().filter(|pid| !signalled.contains(pid)).collect();
        if new.is_empty() {
            return;
        }
        for pid in new {
            signalled.push(pid);
            let Ok(handle) = sys::pidfd_open(pid) else { continue };
            if stat(pid).is_some_and(|s| s.parent == root || family.contains(&s.parent)) {
                // An error means that it is gone, or of a user that we may not signal; SIGKILL follows in any case.
                let _gone = sys::pidfd_send(handle.as_fd(), signal);
            }
        }
    }
}

/// Whether `pid` descends from `ancestor`. Of a process that is gone this cannot be known: no.
pub(super) fn descends_from(pid: i32, ancestor: i32) -> bool {
    let mut at = pid;
    // No chain of parents is that long; a loop could only be seen while processes move.
    for _ in 0..10_000 {
        match stat(at) {
            Some(Stat { parent, .. }) if parent == ancestor => return true,
            Some(Stat { parent, .. }) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

/// Bytes of memory that the process has in use, those that it shares with others too.
pub(super) fn resident_bytes(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(sys::page_size())
}

/// CPU time of the process and of the children that it has buried.
pub(super) fn cpu_time(pid: i32) -> Duration {
    let ticks = stat(pid).map_or(0, |stat| stat.ticks);
    Duration::from_millis(ticks.saturating_mul(1000) / sys::clock_ticks())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_confuse() {
        let text = "77 (a) S 1 (b) c) R 12 77 77 0 -1 4194304 5 6 7 8 100 20 3 4 20 0 1 0 9 10 11";
        assert_eq!(parse_stat(text), Some(Stat { state: b'R', parent: 12, ticks: 127 }));
        assert_eq!(parse_stat("77 (cut) S"), None);
    }

    #[test]
    fn without_lists_of_children_the_tree_is_found_by_parents() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 2), (5, 4), (6, 1)]);
        assert_eq!(descendants_among(2, &parents), [3, 4, 5]);
        assert_eq!(descendants_among(6, &parents), [] as [i32; 0]);
    }

    #[test]
    fn the_scan_of_all_processes_knows_our_parent() {
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(all_processes().get(&me), Some(&parent));
        assert!(descends_from(me, parent));
        assert!(!descends_from(parent, me));
    }
}
