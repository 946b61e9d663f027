//! Whether a function's folder has changed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::CliError;
use crate::pack;

/// What a folder looks like: names, sizes, times and modes of all that would be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u64);

/// # Errors
/// Only for the folder itself: a file that goes away meanwhile is a change, and what cannot be packed is told by `deploy`.
pub(super) fn stamp(dir: &Path) -> Result<Stamp, CliError> {
    if !dir.is_dir() {
        return Err(CliError::Refused(format!(
            "{} is no folder; name the one that holds the handler",
            dir.display()
        )));
    }
    let mut hasher = DefaultHasher::new();
    match pack::files(dir) {
        Ok(files) => {
            for (name, path) in files {
                name.hash(&mut hasher);
                if let Ok(meta) = path.metadata() {
                    (meta.size(), meta.mtime(), meta.mtime_nsec(), meta.mode(), meta.ino()).hash(&mut hasher);
                }
            }
        }
        Err(error) => error.to_string().hash(&mut hasher),
    }
    Ok(Stamp(hasher.finish()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_of_what_would_be_packed_is_seen_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("handler.py");
        fs::write(&file, "a").unwrap();
        let first = stamp(folder.path()).unwrap();
        fs::create_dir(folder.path().join("__pycache__")).unwrap();
        fs::write(folder.path().join("__pycache__/x"), "x").unwrap();
        assert_eq!(stamp(folder.path()).unwrap(), first);
        // An editor that writes another file and renames it: same size, and the same time on a coarse clock.
        fs::write(folder.path().join("new"), "b").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        let second = stamp(folder.path()).unwrap();
        assert_ne!(second, first);
        fs::remove_file(&file).unwrap();
        assert_ne!(stamp(folder.path()).unwrap(), second);
        assert!(stamp(&folder.path().join("nowhere")).is_err());
    }
}
