//! What a namespace's secret gives to installers: the way to package indexes that are not public.
//!
//! Its keys are variables of the installers' environment (`PIP_INDEX_URL`, `npm_config_registry`, or any that a `.npmrc` or
//! `requirements.txt` names), or files of their home folder. They are there while an installer runs and at no other time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::masks::Masks;

/// Keys that are files in the installers' home folder.
const FILES: [(&str, &str); 3] =
    [("NPMRC", ".npmrc"), ("NETRC", ".netrc"), ("PIP_CONF", ".config/pip/pip.conf")];

/// Variables that decide what the programs before the cage load or run: those would be out of it.
const REFUSED: [&str; 9] =
    ["PATH", "HOME", "TMPDIR", "ENV", "BASH_ENV", "IFS", "GCONV_PATH", "LOCPATH", "RES_OPTIONS"];
const REFUSED_BEGINNINGS: [&str; 4] = ["LD_", "GLIBC_", "MALLOC_", "SLESS_"];

/// See the module.
#[derive(Clone, Default)]
pub struct IndexAccess {
    variables: BTreeMap<String, String>,
    files: Vec<(&'static str, String)>,
    refused: Vec<String>,
}

/// Names alone: values are never printed.
impl std::fmt::Debug for IndexAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexAccess").field("variables", &self.variables.keys()).finish_non_exhaustive()
    }
}

impl IndexAccess {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut access = Self::default();
        for (name, value) in values {
            let file = FILES.iter().find(|(key, _)| *key == name);
            let refused = REFUSED.contains(&name.as_str())
                || REFUSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
            match file {
                Some((_, path)) => access.files.push((*path, value)),
                None if refused => access.refused.push(name),
                None => {
                    access.variables.insert(name, value);
                }
            }
        }
        access
    }

    /// Keys that no installer is given.
    pub(crate) fn refused(&self) -> &[String] {
        &self.refused
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.variables.iter().map(|(name, value)| (name.into(), value.into()))
    }

    /// Writes the files into the installers' home folder.
    pub(crate) fn furnish(&self, home: &Path) -> io::Result<()> {
        for (path, text) in &self.files {
            let path = home.join(path);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(text.as_bytes())?;
            // The last line of such a file counts only with its end.
            file.write_all(b"\n")?;
        }
        Ok(())
    }

    /// What must not be seen of it.
    pub(crate) fn masks(&self) -> Masks {
        let mut masks = Masks::default();
        for (name, value) in &self.variables {
            masks.variable(name, value);
        }
        for (path, text) in &self.files {
            masks.file(path, text);
        }
        masks
    }

    /// What of it decides which packages are found, without what is secret in it.
    pub(crate) fn identity(&self, masks: &Masks) -> String {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value));
        let all = variables.chain(self.files.iter().map(|(path, text)| (*path, text)));
        all.map(|(name, value)| format!("{name}={}\n", masks.apply(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn access(values: &[(&str, &str)]) -> IndexAccess {
        IndexAccess::new(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn keys_become_variables_or_files_and_dangerous_ones_nothing() {
        let access =
            access(&[("PIP_INDEX_URL", "https://i"), ("NPMRC", "a=b"), ("LD_PRELOAD", "/x"), ("PATH", "/x")]);
        let names: Vec<_> = access.variables().map(|(name, _)| name).collect();
        assert_eq!(names, ["PIP_INDEX_URL"]);
        assert_eq!(access.refused(), ["LD_PRELOAD", "PATH"]);
        let home = tempfile::tempdir().unwrap();
        access.furnish(home.path()).unwrap();
        let file = home.path().join(".npmrc");
        assert_eq!(fs::read_to_string(&file).unwrap(), "a=b\n");
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn another_token_is_the_same_index_and_another_host_is_not() {
        let of = |url: &str| {
            let access = access(&[("PIP_INDEX_URL", url)]);
            access.identity(&access.masks())
        };
        assert_eq!(of("https://me:token-one@a.example/simple"), of("https://me:token-two@a.example/simple"));
        assert_ne!(of("https://me:token-one@a.example/simple"), of("https://me:token-one@b.example/simple"));
        assert!(!of("https://me:token-one@a.example/simple").contains("token-one"));
    }
}
