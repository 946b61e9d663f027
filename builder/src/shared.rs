//! Installed dependencies that functions of one namespace share.
//!
//! An install that can be shared sees the manifest and the lock file alone, in a folder of its own; what it gives is kept under
//! a key made of those, the runtime and the index, and copied into each function that has the same. Copied and not linked: a
//! handler that writes into its folder changes nobody else's.

use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use sless_core::Digest;

/// Kept per namespace, the ones used last.
const KEPT: usize = 16;
/// One that was used so lately may be in the middle of being copied.
const IN_USE: Duration = Duration::from_secs(60 * 60);
/// Another version of what a key means, or of how installers are called, makes other keys.
const VERSION: &str = "1";

/// What an install that can be shared sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    /// Files of the function's folder.
    pub(crate) inputs: Vec<&'static str>,
}

/// The name of what `shared` gives for the function in `folder`.
pub(crate) fn key(shared: &Shared, folder: &Path, runtime: &str, index: &str) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for text in [VERSION, std::env::consts::ARCH, runtime, index] {
        part(text.as_bytes());
    }
    for name in &shared.inputs {
        part(name.as_bytes());
        part(&fs::read(folder.join(name))?);
    }
    Ok(Digest::new(hash.finalize().into()))
}

/// The folder of the namespace's installs.
#[derive(Debug)]
pub(crate) struct Store(PathBuf);

impl Store {
    /// `cache`: the folder of the namespace's downloads.
    pub(crate) fn new(cache: &Path) -> Self {
        Self(cache.join("installed"))
    }

    /// What was installed before, marked as used.
    pub(crate) fn find(&self, key: &Digest) -> Option<PathBuf> {
        let found = self.0.join(key.to_string());
        // Also the test whether it is there.
        File::open(&found).and_then(|folder| folder.set_modified(SystemTime::now())).ok()?;
        Some(found)
    }

    /// Takes over the whole folder `made`, which lies on the same file system.
    pub(crate) fn keep(&self, key: &Digest, made: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.0)?;
        let place = self.0.join(key.to_string());
        match fs::rename(made, &place) {
            // Another build of the same was quicker: theirs is as good.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => other?,
        }
        File::open(&place)?.set_modified(SystemTime::now())?;
        self.prune()?;
        Ok(place)
    }

    fn prune(&self) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b"build-") {
                continue;
            }
            all.push((entry.metadata()?.modified()?, entry.path()));
        }
        all.sort();
        let surplus = all.len().saturating_sub(KEPT);
        for (used, path) in all.into_iter().take(surplus) {
            if used.elapsed().is_ok_and(|ago| ago > IN_USE) {
                // A name that `find` does not know, first: half of a folder is nothing to be found.
                let doomed = tempfile::Builder::new().prefix("build-").tempdir_in(&self.0)?;
                fs::rename(&path, doomed.path().join("old"))?;
            }
        }
        Ok(())
    }
}

/// Copies a tree: contents, execute bits, links as links, and times, as Python's byte code counts only for a source of its time.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &target)?;
            let times = FileTimes::new().set_modified(entry.metadata()?.modified()?);
            File::open(target)?.set_times(times)?;
        }
        // Sockets and pipes that a script has left are of no use to a handler.
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_contents_bits_links_and_times() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("a"), root.path().join("b/c"));
        fs::create_dir_all(from.join("bin")).unwrap();
        fs::write(from.join("bin/run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("bin/run"), Permissions::from_mode(0o755)).unwrap();
        symlink("bin/run", from.join("link")).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(from.join("bin/run")).unwrap().set_modified(old).unwrap();
        copy(&from, &to).unwrap();
        let copied = fs::metadata(to.join("bin/run")).unwrap();
        assert_eq!((copied.permissions().mode() & 0o777, copied.modified().unwrap()), (0o755, old));
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("bin/run"));
    }

    #[test]
    fn old_installs_go_and_used_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(root.path());
        let key = |n: u8| Digest::new([n; 32]);
        for n in 0..20 {
            let made = root.path().join("made");
            fs::create_dir(&made).unwrap();
            fs::write(made.join("file"), [n]).unwrap();
            let kept = store.keep(&key(n), &made).unwrap();
            File::open(kept).unwrap().set_modified(SystemTime::now() - IN_USE * 2).unwrap();
        }
        assert!(store.find(&key(2)).is_none() && store.find(&key(10)).is_some());
        let again = root.path().join("made");
        fs::create_dir(&again).unwrap();
        fs::write(again.join("file"), "other").unwrap();
        let kept = store.keep(&key(10), &again).unwrap();
        assert_eq!(fs::read(kept.join("file")).unwrap(), [10], "the first one counts");
    }

    #[test]
    fn the_key_is_of_manifest_runtime_and_index() {
        let root = tempfile::tempdir().unwrap();
        let shared = Shared { inputs: vec!["requirements.txt"] };
        let of = |text: &str, runtime: &str, index: &str| {
            fs::write(root.path().join("requirements.txt"), text).unwrap();
            key(&shared, root.path(), runtime, index).unwrap()
        };
        let first = of("six", "python3.11", "");
        fs::write(root.path().join("handler.py"), "other code").unwrap();
        assert_eq!(of("six", "python3.11", ""), first);
        assert_ne!(of("six==1", "python3.11", ""), first);
        assert_ne!(of("six", "python3.12", ""), first);
        assert_ne!(of("six", "python3.11", "PIP_INDEX_URL=x"), first);
    }
}
