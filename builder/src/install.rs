//! Which commands install a function's dependencies.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::local;
use crate::name::OWN_FOLDER;
use crate::shared::Shared;

/// One installer's run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Install {
    /// What messages call it.
    pub(crate) tool: &'static str,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The folder that it makes, as the function's folder has it.
    pub(crate) product: PathBuf,
    /// `None`: it needs the whole folder, and what it makes is this function's alone.
    pub(crate) shared: Option<Shared>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("package.json is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("read the function's manifest")]
    Io(#[from] io::Error),
}

/// What has to be installed for the function in `folder`, `None` if nothing.
///
/// `cache` is a folder that outlives the build; it must not be shared by functions that do not trust each other.
pub(crate) fn plan(runtime: &str, folder: &Path, cache: &Path) -> Result<Option<Install>, ManifestError> {
    match runtime {
        python if python.starts_with("python") => Ok(requirements(python, folder, cache)?),
        node if node.starts_with("nodejs") => packages(folder, cache),
        _ => Ok(None),
    }
}

fn requirements(python: &str, folder: &Path, cache: &Path) -> io::Result<Option<Install>> {
    const MANIFEST: &str = "requirements.txt";
    if !folder.join(MANIFEST).is_file() {
        return Ok(None);
    }
    let text = fs::read(folder.join(MANIFEST))?;
    let product = Path::new(OWN_FOLDER).join("python");
    // -P: a `json.py` of the author's must not shadow the standard library in the installer itself.
    let arguments =
        ["-P", "-m", "pip", "install", "--no-input", "--progress-bar", "off", "--no-warn-script-location"];
    let mut command = vec![OsString::from(python)];
    command.extend(arguments.map(OsString::from));
    command.extend(["--target".into(), product.clone().into(), "-r".into(), MANIFEST.into()]);
    let environment = vec![
        ("PIP_CACHE_DIR", cache.join("pip").into()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
        ("PIP_ROOT_USER_ACTION", "ignore".into()),
        ("PYTHONUNBUFFERED", "1".into()),
    ];
    let shared =
        (!local::requirements(&String::from_utf8_lossy(&text))).then(|| Shared { inputs: vec![MANIFEST] });
    Ok(Some(Install { tool: "pip", command, environment, product, shared }))
}

fn packages(folder: &Path, cache: &Path) -> Result<Option<Install>, ManifestError> {
    const MANIFEST: &str = "package.json";
    let manifest = match fs::read(folder.join(MANIFEST)) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let manifest: Value =
        serde_json::from_slice(manifest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&manifest))?;
    let names =
        |field: &str| manifest.get(field).and_then(Value::as_object).is_some_and(|found| !found.is_empty());
    if !names("dependencies") && !names("optionalDependencies") {
        // `{"type": "module"}` and the like: nothing to install, so npm is not needed either.
        return Ok(None);
    }
    // What npm itself would take.
    let lock =
        ["npm-shrinkwrap.json", "package-lock.json"].into_iter().find(|name| folder.join(name).is_file());
    let how = if lock.is_some() { "ci" } else { "install" };
    let command = ["npm", how, "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier"];
    let environment = vec![
        ("npm_config_cache", cache.join("npm").into()),
        // A line for each request: an index that refuses is named in no error.
        ("npm_config_loglevel", "http".into()),
        ("NO_COLOR", "1".into()),
    ];
    let locked = match lock {
        Some(name) => String::from_utf8_lossy(&fs::read(folder.join(name))?).into_owned(),
        None => String::new(),
    };
    // npm builds a package that has this file, also without a script that says so.
    let builds = folder.join("binding.gyp").exists();
    let settings = Some(".npmrc").filter(|name| folder.join(name).is_file());
    let shared = (!builds && !local::package(&manifest, &locked))
        .then(|| Shared { inputs: [MANIFEST].into_iter().chain(lock).chain(settings).collect() });
    let command = command.map(OsString::from).to_vec();
    Ok(Some(Install { tool: "npm", command, environment, product: "node_modules".into(), shared }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(runtime: &str, files: &[(&str, &str)]) -> Result<Option<Install>, ManifestError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        plan(runtime, folder.path(), Path::new("/cache"))
    }

    #[test]
    fn each_language_has_its_manifest() {
        let python =
            plan_of("python3.11", &[("requirements.txt", "six"), ("package.json", "{")]).unwrap().unwrap();
        assert_eq!((python.tool, &python.command[0]), ("pip", &OsString::from("python3.11")));
        let node = [("package.json", r#"{"dependencies": {"a": "1"}}"#), ("requirements.txt", "six")];
        assert_eq!(plan_of("nodejs20", &node).unwrap().unwrap().command[..2], ["npm", "install"]);
        let locked = [node[0], ("package-lock.json", "{}")];
        assert_eq!(plan_of("nodejs20", &locked).unwrap().unwrap().command[..2], ["npm", "ci"]);
    }

    #[test]
    fn without_dependencies_nothing_runs() {
        assert_eq!(plan_of("python3.11", &[]).unwrap(), None);
        assert_eq!(plan_of("nodejs20", &[("package.json", r#"{"type": "module"}"#)]).unwrap(), None);
        let only_dev = [("package.json", r#"{"devDependencies": {"jest": "1"}, "dependencies": {}}"#)];
        assert_eq!(plan_of("nodejs20", &only_dev).unwrap(), None);
    }

    #[test]
    fn a_broken_manifest_is_the_authors_to_mend() {
        let error = plan_of("nodejs20", &[("package.json", "{\"dependencies\": {,}}")]).unwrap_err();
        assert!(error.to_string().starts_with("package.json is not valid JSON:"), "{error}");
    }
}
