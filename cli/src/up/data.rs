//! What the host itself keeps in the data folder: its lock, its token, its address.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sless_backend::Secret;
use uuid::Uuid;

use crate::error::CliError;
use crate::folder;

/// The data folder, held by this process alone.
#[derive(Debug)]
pub(crate) struct Data {
    folder: PathBuf,
    /// Locked as long as it is open, so also a host that is killed lets go of it.
    _lock: File,
}

/// Where the admin token comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    Given,
    Kept(PathBuf),
    Made(PathBuf),
}

impl Data {
    /// Takes the folder, whose private part is there already.
    pub(crate) fn lock(folder: &Path) -> Result<Self, CliError> {
        let path = folder.join("private/lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(CliError::file("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: file }),
            Err(TryLockError::WouldBlock) => Err(CliError::Refused(format!(
                "another host runs on the data folder {}; end it, or set DATA_DIR to another one",
                folder.display()
            ))),
            Err(TryLockError::Error(e)) => Err(CliError::file("lock", &path)(e)),
        }
    }

    /// The admin token: `given`, or the one in the folder, which is made if there is none.
    pub(crate) fn token(&self, given: Option<&str>) -> Result<(Secret, TokenSource), CliError> {
        if let Some(given) = given {
            let given = given.trim();
            if given.is_empty() || !given.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(CliError::Refused(
                    "API_TOKEN must be of visible ASCII characters, without spaces".to_owned(),
                ));
            }
            return Ok((Secret::new(given), TokenSource::Given));
        }
        let path = folder::token_file(&self.folder);
        match fs::read_to_string(&path) {
            Ok(token) if !token.trim().is_empty() => {
                return Ok((Secret::new(token.trim()), TokenSource::Kept(path)));
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(CliError::file("read", path)(e)),
            _ => {}
        }
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        write_private(&path, &token).map_err(CliError::file("write the admin token to", &path))?;
        Ok((Secret::new(token), TokenSource::Made(path)))
    }

    /// Lets the command line find this host.
    pub(crate) fn keep_url(&self, url: &str) -> Result<(), CliError> {
        let path = folder::url_file(&self.folder);
        write_private(&path, url).map_err(CliError::file("write", &path))
    }

    /// No host answers there.
    pub(crate) fn forget_url(&self) {
        // At worst a command is refused there.
        let _ = fs::remove_file(folder::url_file(&self.folder));
    }

    /// A folder for uploads on their way in; what an earlier host has left in it is removed.
    pub(crate) fn uploads(&self) -> Result<PathBuf, CliError> {
        let path = self.folder.join("private/uploads");
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(CliError::file("empty", path)(e)),
            _ => {}
        }
        fs::create_dir(&path).map_err(CliError::file("make", &path))?;
        Ok(path)
    }
}

pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn data() -> (tempfile::TempDir, Data) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("private")).unwrap();
        let data = Data::lock(folder.path()).unwrap();
        (folder, data)
    }

    #[test]
    fn a_token_is_made_once_and_kept_private() {
        let (folder, data) = data();
        let path = folder::token_file(folder.path());
        let (token, source) = data.token(None).unwrap();
        assert_eq!(source, TokenSource::Made(path.clone()));
        assert_eq!(data.token(None).unwrap(), (token, TokenSource::Kept(path.clone())));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(data.token(Some("abc")).unwrap(), (Secret::new("abc"), TokenSource::Given));
        assert!(data.token(Some("a b")).is_err() && data.token(Some("")).is_err());
    }

    #[test]
    fn a_folder_has_one_host() {
        let (folder, data) = data();
        let error = Data::lock(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another host") && error.contains("DATA_DIR"), "{error}");
        drop(data);
        Data::lock(folder.path()).unwrap();
    }
}
