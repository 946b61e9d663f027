//! Memory limits by control groups: one group for each supervisor with its workers, and for each build.
//!
//! Version 1: a folder below the group that this process is in. Version 2 knows no processes in a group whose children have
//! limits, so this process first moves into a group of its own, if it is alone where it is (as systemd starts it with
//! `Delegate=`). Where neither may be done nothing is limited, and `sless doctor` says why.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::layout::gone;

/// Files and folders of both versions.
const PROCESSES: &str = "cgroup.procs";
const CHILDREN_HAVE: &str = "cgroup.subtree_control";
/// Where the host goes, in version 2.
const OWN: &str = "host";
/// How long the groups of what has ended may take to be free.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where groups are made.
#[derive(Debug)]
pub(crate) struct Cgroups {
    version: Version,
    folder: PathBuf,
    /// Names of the groups that are in use.
    live: Mutex<BTreeSet<String>>,
}

/// A group with a limit; removed when this is dropped, or, while something still runs in it, some time after.
#[derive(Debug)]
pub(crate) struct Group {
    groups: Arc<Cgroups>,
    name: String,
}

impl Cgroups {
    /// `name` sets this host's groups apart from those of others.
    ///
    /// # Errors
    /// Why there are no limits here, for people.
    pub(crate) fn open(name: &str) -> Result<Self, String> {
        let (version, own) = own_group()?;
        if version == Version::Two {
            delegate(&own)?;
        }
        let groups = Self { version, folder: own.join(format!("sless-{name}")), live: Mutex::default() };
        let made = make(&groups.folder).and_then(|()| match version {
            Version::One => Ok(()),
            Version::Two => fs::write(groups.folder.join(CHILDREN_HAVE), "+memory"),
        });
        made.map_err(|e| format!("cannot make the control group {}: {e}", groups.folder.display()))?;
        groups.sweep(&groups.live());
        Ok(groups)
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes groups that nobody uses; those in which something still runs stay.
    fn sweep(&self, live: &BTreeSet<String>) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if entry.path().is_dir() && !name.to_str().is_some_and(|name| live.contains(name)) {
                // Busy: it is looked at again with the next one.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// Removes all groups, once nothing is to be started any more: what has just ended may keep one busy for a moment.
    pub(crate) async fn remove(&self) {
        for _ in 0..REMOVE_TRIES {
            self.sweep(&BTreeSet::new());
            if gone(fs::remove_dir(&self.folder)).is_ok() {
                return;
            }
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
        tracing::warn!("the control group {} is still in use", self.folder.display());
    }

    pub(crate) fn make(self: &Arc<Self>, name: &str, limit_bytes: u64) -> io::Result<Group> {
        let mut live = self.live();
        self.sweep(&live);
        let group = Group { groups: self.clone(), name: name.to_owned() };
        let path = group.path();
        make(&path)?;
        live.insert(group.name.clone());
        drop(live);
        let (limit, swap) = match self.version {
            // Together with swap, so that there is none beyond the limit.
            Version::One => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", limit_bytes)),
            Version::Two => ("memory.max", ("memory.swap.max", 0)),
        };
        fs::write(path.join(limit), limit_bytes.to_string())?;
        let (swap, value) = swap;
        // Kernels without accounting of swap have no such file.
        gone(
            fs::OpenOptions::new()
                .write(true)
                .open(path.join(swap))
                .and_then(|mut file| io::Write::write_all(&mut file, value.to_string().as_bytes())),
        )?;
        Ok(group)
    }
}

impl Group {
    pub(crate) fn path(&self) -> PathBuf {
        self.groups.folder.join(&self.name)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut live = self.groups.live();
        live.remove(&self.name);
        let _ = fs::remove_dir(self.path());
    }
}

/// Whether functions of a host that is started as this process was would have their memory limited; else why not.
///
/// # Errors
/// The reason, for people.
pub fn memory_limits() -> Result<(), String> {
    let (version, own) = own_group()?;
    if version == Version::Two {
        return can_delegate(&own).map(|_| ());
    }
    let probe = own.join(format!("sless-probe-{}", std::process::id()));
    let made = make(&probe).and_then(|()| fs::remove_dir(&probe));
    made.map_err(|e| format!("cannot make the control group {}: {e}", probe.display()))
}

/// Version 2: lets children of `own` have limits.
fn delegate(own: &Path) -> Result<(), String> {
    if can_delegate(own)? == Delegated::Already {
        return Ok(());
    }
    let moved = make(&own.join(OWN))
        .and_then(|()| fs::write(own.join(OWN).join(PROCESSES), std::process::id().to_string()))
        .and_then(|()| fs::write(own.join(CHILDREN_HAVE), "+memory"));
    moved.map_err(|e| format!("cannot pass the memory controller of {} on: {e}", own.display()))
}

#[derive(Debug, PartialEq, Eq)]
enum Delegated {
    Already,
    IfAlone,
}

fn can_delegate(own: &Path) -> Result<Delegated, String> {
    let words = |file: &str| fs::read_to_string(own.join(file)).unwrap_or_default();
    let has_memory = |file: &str| words(file).split_whitespace().any(|word| word == "memory");
    if has_memory(CHILDREN_HAVE) {
        return Ok(Delegated::Already);
    }
    if !has_memory("cgroup.controllers") {
        return Err(format!(
            "the control group {} has no memory controller: run the host as the systemd unit does, with Delegate=yes",
            own.display()
        ));
    }
    let own_id = std::process::id().to_string();
    if words(PROCESSES).split_whitespace().any(|pid| pid != own_id) {
        return Err(format!(
            "other processes are in the control group {}: run the host as the systemd unit does, or with `systemd-run --user --scope -p Delegate=yes sless up`",
            own.display()
        ));
    }
    Ok(Delegated::IfAlone)
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn own_group() -> Result<(Version, PathBuf), String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"));
    find(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
        .ok_or_else(|| "no control groups for memory are mounted here".to_owned())
}

/// The memory group of this process and its folder; in a hybrid set-up memory is either version's.
fn find(groups: &str, mounts: &str) -> Option<(Version, PathBuf)> {
    // `4:memory:/path` of version 1, `0::/path` of version 2 (cgroups(7)).
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let one = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (version, path) = match one {
        Some((_, path)) => (Version::One, path),
        None => (Version::Two, lines().find(|(controllers, _)| controllers.is_empty())?.1),
    };
    let (root, mount) = mounts.lines().find_map(|line| mount_of(line, version))?;
    // In a container the mount may show a part of the hierarchy only.
    let below = Path::new(path).strip_prefix(root).ok()?;
    let inside = below.components().all(|part| part.as_os_str() != "..");
    inside.then(|| (version, Path::new(mount).join(below)))
}

/// Root and mount point of a line of mountinfo (`proc_pid_mountinfo(5)`) that mounts the memory hierarchy.
fn mount_of(line: &str, version: Version) -> Option<(&str, &str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let matches = match version {
        Version::One => kind.next()? == "cgroup" && kind.nth(1)?.split(',').any(|option| option == "memory"),
        Version::Two => kind.next()? == "cgroup2",
    };
    let mut place = place.split(' ').skip(3);
    matches.then_some((place.next()?, place.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_group_is_found_in_both_versions() {
        let hybrid = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let one = find("4:memory:/a/b\n0::/\n", hybrid).unwrap();
        assert_eq!(one, (Version::One, PathBuf::from("/sys/fs/cgroup/memory/a/b")));
        let two =
            find("0::/system.slice/s\n", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n").unwrap();
        assert_eq!(two, (Version::Two, PathBuf::from("/sys/fs/cgroup/system.slice/s")));
        let part = "29 23 0:26 /a /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(find("0::/other\n", part), None);
        assert_eq!(find("0::/a/../b\n", part), None);
    }

    #[test]
    fn version_2_needs_the_controller_and_nobody_else_in_the_group() {
        let own = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(own.path().join(file), text).unwrap();
        put(CHILDREN_HAVE, "");
        put("cgroup.controllers", "cpu io");
        assert!(can_delegate(own.path()).unwrap_err().contains("Delegate=yes"));
        put("cgroup.controllers", "cpu memory");
        put(PROCESSES, &format!("1\n{}\n", std::process::id()));
        assert!(can_delegate(own.path()).unwrap_err().contains("other processes"));
        put(PROCESSES, &format!("{}\n", std::process::id()));
        assert_eq!(can_delegate(own.path()), Ok(Delegated::IfAlone));
        delegate(own.path()).unwrap();
        assert_eq!(fs::read_to_string(own.path().join(CHILDREN_HAVE)).unwrap(), "+memory");
        assert!(own.path().join(OWN).join(PROCESSES).is_file());
        put(CHILDREN_HAVE, "memory");
        assert_eq!(can_delegate(own.path()), Ok(Delegated::Already));
    }

    #[test]
    fn a_group_has_its_limit_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let groups =
            Cgroups { version: Version::One, folder: folder.path().to_owned(), live: Mutex::default() };
        let groups = Arc::new(groups);
        let group = groups.make("a", 64 << 20).unwrap();
        let limit = group.path().join("memory.limit_in_bytes");
        assert_eq!(fs::read_to_string(&limit).unwrap(), (64 << 20).to_string());
        // A folder of the kernel's is empty for `rmdir`.
        fs::remove_file(limit).unwrap();
        fs::create_dir(folder.path().join("left")).unwrap();
        let other = groups.make("b", 1 << 20).unwrap();
        assert!(group.path().exists() && !folder.path().join("left").exists());
        let path = group.path();
        drop(group);
        assert!(!path.exists() && other.path().exists());
    }
}
