//! The memory limit that this process and its workers share, version 1 or 2 of control groups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The memory control group of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    /// Where this process is: the kernel counts kills there.
    own: PathBuf,
    /// The group whose limit is met first: this one or one above it.
    limited: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn file(self, one: &'static str, two: &'static str) -> &'static str {
        match self {
            Version::One => one,
            Version::Two => two,
        }
    }
}

/// Moves this process, and with it all that it starts from now on, into the group whose folder is `group`.
///
/// # Errors
/// When the kernel refuses it, or the group is not there.
pub fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

impl Cgroup {
    /// The group that this process is in now; `None` if memory is not counted, or its files cannot be read.
    pub fn detect() -> Option<Cgroup> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let (version, mount, own) = find(&groups, &mounts)?;
        let mut cgroup = Cgroup { version, limited: own.clone(), own };
        cgroup.used_at(&cgroup.own)?;
        let above = cgroup.own.ancestors().take_while(|group| group.starts_with(&mount));
        let tightest = above.filter_map(|group| Some((cgroup.limit_at(group)?, group.to_owned())));
        if let Some((_, group)) = tightest.min_by_key(|(limit, _)| *limit) {
            cgroup.limited = group;
        }
        Some(cgroup)
    }

    /// How many processes the kernel has killed here because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        keyed(&self.own.join(self.version.file("memory.oom_control", "memory.events")), "oom_kill")
            .unwrap_or(0)
    }

    /// In bytes; `None` without a limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit_at(&self.limited)
    }

    /// Bytes in use of what the limit counts, without file cache that the kernel would rather drop than kill for.
    pub fn used(&self) -> u64 {
        self.used_at(&self.limited).unwrap_or(0)
    }

    /// The most bytes that were ever in use, with file cache; `None` before Linux 5.19 with version 2.
    pub fn peak(&self) -> Option<u64> {
        number(&self.limited.join(self.version.file("memory.max_usage_in_bytes", "memory.peak")))
    }

    /// Whether the kernel is about to take a process, or all of them.
    pub fn is_near_limit(&self) -> bool {
        self.limit().is_some_and(|limit| self.used().saturating_add(margin(limit)) >= limit)
    }

    fn limit_at(&self, group: &Path) -> Option<u64> {
        // Version 1 says "none" with the largest multiple of a page, version 2 with "max".
        number(&group.join(self.version.file("memory.limit_in_bytes", "memory.max")))
            .filter(|limit| *limit < 1 << 60)
    }

    fn used_at(&self, group: &Path) -> Option<u64> {
        let used = number(&group.join(self.version.file("memory.usage_in_bytes", "memory.current")))?;
        let cache = self.version.file("total_inactive_file", "inactive_file");
        Some(used.saturating_sub(keyed(&group.join("memory.stat"), cache).unwrap_or(0)))
    }
}

/// How little may be left below `limit`.
fn margin(limit: u64) -> u64 {
    (limit / 50).max(8 << 20)
}

/// When to look again.
fn pause(limit: u64, used: u64) -> Duration {
    let left = limit.saturating_sub(used);
    let far = (limit / 3).max(64 << 20);
    Duration::from_millis(if left > far {
        250
    } else if left > far / 2 {
        50
    } else {
        10
    })
}

/// Calls `on_near_limit` whenever so little memory is left that the kernel is about to kill; looks often only near the limit.
pub async fn watch(cgroup: &Cgroup, mut on_near_limit: impl FnMut()) {
    loop {
        let pause = match cgroup.limit() {
            None => Duration::from_secs(5), // a limit may yet be set
            Some(limit) => {
                let used = cgroup.used();
                if used.saturating_add(margin(limit)) >= limit {
                    on_near_limit();
                }
                pause(limit, used)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after `key` in a file of lines `key number`.
fn keyed(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut values = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name == key);
    values.next()?.1.trim().parse().ok()
}

/// The memory group, where its hierarchy is mounted, and its folder there. In a hybrid set-up memory is either version's.
fn find(groups: &str, mounts: &str) -> Option<(Version, PathBuf, PathBuf)> {
    // `4:memory:/path` of version 1, `0::/path` of version 2 (cgroups(7)).
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let one = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (version, path) = match one {
        Some((_, path)) => (Version::One, path),
        None => (Version::Two, lines().find(|(controllers, _)| controllers.is_empty())?.1),
    };
    let (root, mount) = mounts.lines().find_map(|line| mount_of(line, version))?;
    // In a container the mount may show a part of the hierarchy only, and the path may lie outside of it.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let own = if below.components().any(|part| part.as_os_str() == "..") {
        mount.clone()
    } else {
        mount.join(below)
    };
    Some((version, mount, own))
}

/// Root and mount point of a line of mountinfo (proc_pid_mountinfo(5)) that mounts the memory hierarchy.
fn mount_of(line: &str, version: Version) -> Option<(&str, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let matches = match version {
        Version::One => kind.next()? == "cgroup" && kind.nth(1)?.split(',').any(|option| option == "memory"),
        Version::Two => kind.next()? == "cgroup2",
    };
    let mut place = place.split(' ').skip(3);
    matches.then_some((place.next()?, PathBuf::from(place.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_1_is_found_in_a_hybrid_setup() {
        let found = find("9:name=systemd:/\n4:memory:/a/b\n0::/\n", HYBRID).unwrap();
        let mount = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(found, (Version::One, mount.clone(), mount.join("a/b")));
    }

    #[test]
    fn version_2_is_found_when_it_alone_is_there() {
        let mounts = "29 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let mount = PathBuf::from("/sys/fs/cgroup");
        assert_eq!(find("0::/pod/c1\n", mounts), Some((Version::Two, mount.clone(), mount.join("pod/c1"))));
        assert_eq!(find("0::/\n", mounts), Some((Version::Two, mount.clone(), mount)));
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_understood() {
        let mounts = "35 31 0:32 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let mount = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(find("4:memory:/docker/c1\n", mounts), Some((Version::One, mount.clone(), mount.clone())));
        assert_eq!(find("4:memory:/../other\n", mounts), Some((Version::One, mount.clone(), mount)));
    }

    #[test]
    fn the_watch_is_close_only_near_the_limit() {
        let (limit, mib) = (400 << 20, 1 << 20);
        assert_eq!(pause(limit, 100 * mib), Duration::from_millis(250));
        assert_eq!(pause(limit, 300 * mib), Duration::from_millis(50));
        assert_eq!(pause(limit, 380 * mib), Duration::from_millis(10));
        assert_eq!(margin(limit), 8 << 20);
        assert_eq!(margin(4000 << 20), 80 << 20);
    }

    #[test]
    fn numbers_are_read_from_the_kernels_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.current", "1000000\n");
        write("memory.stat", "anon 5\ninactive_file 400000\n");
        write("memory.events", "low 0\noom 3\noom_kill 2\n");
        write("memory.max", "max\n");
        let group = dir.path().to_owned();
        let cgroup = Cgroup { version: Version::Two, own: group.clone(), limited: group };
        assert_eq!((cgroup.used(), cgroup.oom_kills(), cgroup.limit()), (600_000, 2, None));
        write("memory.max", "2000000\n");
        assert_eq!(cgroup.limit(), Some(2_000_000));
        assert!(cgroup.is_near_limit());
    }
}
