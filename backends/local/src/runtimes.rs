//! Which runtimes are installed.

use std::fs;
use std::path::Path;

use sless_core::Runtime;

/// The folders of `folder` that hold a `runtime.json`, by name.
#[must_use]
pub fn installed(folder: &Path) -> Vec<Runtime> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<Runtime> = entries
        .flatten()
        .filter(|entry| entry.path().join("runtime.json").is_file())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_a_folder_with_its_description() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["b1", "a1", "Not a name", "empty"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        for name in ["b1", "a1", "Not a name"] {
            fs::write(temp.path().join(name).join("runtime.json"), "{}").unwrap();
        }
        let names: Vec<_> = installed(temp.path()).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a1", "b1"]);
        assert!(installed(&temp.path().join("nowhere")).is_empty());
    }
}
