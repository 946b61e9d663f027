//! Puts an archive's files into a folder of their own.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::intake::{self, Contents, IntakeError, Limits, Sink};

/// Unpacks `archive` into `folder`, which must not exist yet and is there only once it is whole.
///
/// Folders get mode 0755, files 0644 or 0755, whatever the umask and the archive say: the handler may run
/// under another uid.
///
/// # Errors
/// As [`crate::inspect`]; nothing is left behind then.
pub fn unpack(
    archive: impl Read + Seek,
    folder: &Path,
    handlers: &[String],
    limits: &Limits,
) -> Result<Contents, IntakeError> {
    let parent = folder.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let fresh = tempfile::Builder::new().prefix(".unpack-").tempdir_in(parent)?;
    let contents = intake::read(
        archive,
        handlers,
        limits,
        &mut Folder { root: fresh.path(), made: String::new(), open: None },
    )?;
    fs::set_permissions(fresh.path(), Permissions::from_mode(0o755))?;
    fs::rename(fresh.path(), folder)?;
    // It has moved away: there is nothing left to remove under the old name.
    let _moved = fresh.keep();
    Ok(contents)
}

/// Writes below a folder that was empty and that nobody else writes to, so no component of a path can be a
/// link; the paths have been through [`crate::name::repair`].
struct Folder<'a> {
    root: &'a Path,
    /// The folder that was made last: files come in the order of their paths.
    made: String,
    open: Option<File>,
}

impl Folder<'_> {
    fn make(&mut self, path: &str) -> io::Result<()> {
        if self.made == path {
            return Ok(());
        }
        let mut at = self.root.to_owned();
        for part in path.split('/') {
            at.push(part);
            match fs::create_dir(&at) {
                Ok(()) => fs::set_permissions(&at, Permissions::from_mode(0o755))?,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        path.clone_into(&mut self.made);
        Ok(())
    }
}

impl Sink for Folder<'_> {
    fn folder(&mut self, path: &str) -> io::Result<()> {
        self.make(path)
    }

    fn begin(&mut self, path: &str) -> io::Result<()> {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.make(folder)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(self.root.join(path))?;
        self.open = Some(file);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn end(&mut self, executable: bool) -> io::Result<()> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.open.take().map_or(Ok(()), |file| file.set_permissions(Permissions::from_mode(mode)))
    }
}
