//! A folder as a zip: the same content gives the same bytes.

use std::fs::{self, File};
use std::io::{self, Cursor, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::error::CliError;

/// What editors, tools and version control leave in a folder; never part of a function.
const LEFT_OUT: [&str; 8] =
    [".git", ".hg", ".svn", ".DS_Store", "__MACOSX", "__pycache__", ".venv", ".sless"];

/// A function's folder, packed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) zip: Vec<u8>,
    pub(crate) files: usize,
}

/// Packs all files of `folder`. `node_modules` stays out where the `package.json` beside it names dependencies: the host installs them.
pub(crate) fn pack(folder: &Path) -> Result<Packed, CliError> {
    let found = files(folder)?;
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, path) in &found {
        let mut file = File::open(path).map_err(CliError::file("read", path))?;
        let mode = file.metadata().map_err(CliError::file("read", path))?.permissions().mode();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(DateTime::default())
            .unix_permissions(if mode & 0o111 == 0 { 0o644 } else { 0o755 });
        let mut pack = || -> io::Result<u64> {
            zip.start_file(name.as_str(), options)?;
            io::copy(&mut file, &mut zip)
        };
        pack().map_err(CliError::file("pack", path))?;
    }
    let files = found.len();
    let finish = || -> io::Result<Vec<u8>> {
        let mut bytes = zip.finish()?.into_inner();
        bytes.flush()?;
        Ok(bytes)
    };
    Ok(Packed { zip: finish().map_err(CliError::file("pack", folder))?, files })
}

/// What would be packed, by the name in the zip.
pub(crate) fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut found = Vec::new();
    collect(folder, "", &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> Result<(), CliError> {
    let entries = fs::read_dir(folder).map_err(CliError::file("read the folder", folder))?;
    let installed = has_dependencies(&folder.join("package.json"));
    for entry in entries {
        let entry = entry.map_err(CliError::file("read the folder", folder))?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            return Err(CliError::Refused(format!("{}: its name is not UTF-8; rename it", path.display())));
        };
        if LEFT_OUT.contains(&name.as_str()) || installed && name == "node_modules" {
            continue;
        }
        let inner = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(CliError::file("read", &path))?;
        if kind.is_dir() {
            collect(&path, &format!("{inner}/"), found)?;
        } else if kind.is_file() {
            found.push((inner, path));
        } else {
            return Err(CliError::Refused(format!(
                "{} is neither file nor folder (a link, a socket, …); only those can be deployed: copy what it stands for in its place",
                path.display()
            )));
        }
    }
    Ok(())
}

fn has_dependencies(manifest: &Path) -> bool {
    let manifest: Option<Value> =
        fs::read(manifest).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let names = |field: &str| manifest.as_ref()?.get(field)?.as_object().map(|names| !names.is_empty());
    ["dependencies", "optionalDependencies"].iter().any(|field| names(field) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        let zips: Vec<_> = [["b.py", "a/c.py"], ["a/c.py", "b.py"]]
            .iter()
            .map(|names| {
                let folder = tempfile::tempdir().unwrap();
                fs::create_dir(folder.path().join("a")).unwrap();
                for name in names {
                    fs::write(folder.path().join(name), name).unwrap();
                }
                for left_out in [".git", "__pycache__", "node_modules"] {
                    fs::create_dir(folder.path().join(left_out)).unwrap();
                    fs::write(folder.path().join(left_out).join("x"), "x").unwrap();
                }
                fs::write(folder.path().join("package.json"), r#"{"dependencies": {"a": "1"}}"#).unwrap();
                pack(folder.path()).unwrap()
            })
            .collect();
        assert_eq!((zips[0].files, &zips[0].zip), (3, &zips[1].zip));
    }

    #[test]
    fn what_is_packed_is_what_the_host_takes() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("handler.py"), "x").unwrap();
        fs::write(folder.path().join("run"), "#!").unwrap();
        fs::set_permissions(folder.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        let packed = pack(folder.path()).unwrap();
        let handlers =
            sless_builder::candidates(&"python3.11".parse().unwrap(), &"handler.handle".parse().unwrap());
        let contents =
            sless_builder::inspect(Cursor::new(packed.zip), &handlers, &Default::default()).unwrap();
        assert_eq!(contents.files, 2);
    }

    #[test]
    fn a_link_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let error = pack(folder.path()).unwrap_err().to_string();
        assert!(error.contains("link is neither file nor folder"), "{error}");
    }
}
