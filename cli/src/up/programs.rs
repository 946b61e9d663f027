//! Finds the supervisor and the runtimes that belong to this program.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::CliError;

const SUPERVISOR: &str = "sless-supervisor";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) supervisor: PathBuf,
    pub(crate) runtimes_dir: PathBuf,
}

impl Programs {
    /// What was named, else what lies where an installation or a source tree has it.
    pub(crate) fn find(supervisor: Option<&OsStr>, runtimes_dir: Option<&Path>) -> Result<Self, CliError> {
        let own = env::current_exe().map_err(CliError::file("find", "this program"))?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        Self::find_from(folder, supervisor, runtimes_dir)
    }

    fn find_from(
        own: &Path,
        supervisor: Option<&OsStr>,
        runtimes_dir: Option<&Path>,
    ) -> Result<Self, CliError> {
        let supervisor = supervisor.map_or_else(|| own.join(SUPERVISOR), PathBuf::from);
        let found = supervisor.canonicalize().ok().filter(|path| path.is_file());
        let supervisor = found.ok_or_else(|| {
            CliError::Refused(format!(
                "the program {} is not there; put it beside `sless`, or name it in SUPERVISOR",
                supervisor.display()
            ))
        })?;
        let places = match runtimes_dir {
            Some(given) => vec![given.to_owned()],
            None => places(own),
        };
        let has_runtimes = |place: &PathBuf| !sless_backend_local::runtimes(place).is_empty();
        let runtimes =
            places.iter().find(|place| has_runtimes(place)).and_then(|place| place.canonicalize().ok());
        let runtimes_dir = runtimes.ok_or_else(|| {
            let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            CliError::Refused(format!(
                "no runtimes in {}; name the folder that has one folder for each, with its runtime.json, in RUNTIMES_DIR",
                looked.join(", ")
            ))
        })?;
        Ok(Self { supervisor, runtimes_dir })
    }
}

/// Beside the program, as `/usr/local/share` has it, and in a source tree that it was built in (`target/release`).
fn places(own: &Path) -> Vec<PathBuf> {
    let mut places = vec![own.join("runtimes")];
    if let Some(above) = own.parent() {
        places.extend([above.join("runtimes"), above.join("share/sless/runtimes")]);
        if let Some(tree) = above.parent().filter(|tree| tree.join("Cargo.toml").is_file()) {
            places.push(tree.join("runtimes"));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        root
    }

    #[test]
    fn an_installation_and_a_source_tree_are_found() {
        for (own, runtimes, more) in [
            ("bin", "share/sless/runtimes", "x"),
            ("bin", "bin/runtimes", "x"),
            ("target/release", "runtimes", "Cargo.toml"),
        ] {
            let description = format!("{runtimes}/python3.11/runtime.json");
            let root = tree(&[&format!("{own}/{SUPERVISOR}"), &description, more]);
            let found = Programs::find_from(&root.path().join(own), None, None).unwrap();
            let root = root.path().canonicalize().unwrap();
            assert_eq!(
                found,
                Programs { supervisor: root.join(own).join(SUPERVISOR), runtimes_dir: root.join(runtimes) }
            );
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let root = tree(&["bin/x"]);
        let error = Programs::find_from(&root.path().join("bin"), None, None).unwrap_err().to_string();
        assert!(error.contains("sless-supervisor is not there") && error.contains("SUPERVISOR"), "{error}");
        let root = tree(&[&format!("bin/{SUPERVISOR}")]);
        let error = Programs::find_from(&root.path().join("bin"), None, None).unwrap_err().to_string();
        assert!(error.contains("share/sless/runtimes") && error.contains("RUNTIMES_DIR"), "{error}");
    }
}
