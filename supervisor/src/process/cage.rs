//! What keeps handlers from the supervisor's secrets.
//!
//! With Landlock a worker may do to files whatever its user may, except beneath the folders that are hidden from it. Landlock knows
//! only permissions, no prohibitions: so every sibling along the way to a hidden folder is allowed, and the folders on the
//! way themselves are not. What appears in those later is therefore out of reach too; hidden folders belong where
//! handlers need not create files. Signals and abstract sockets stay inside the cage where the kernel can do that.
//!
//! Without Landlock, a supervisor that runs as root gives its workers another uid; then the file modes must do it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::sys;

/// "Nobody" in distroless images, and nobody's files anywhere.
const WORKER: sys::Identity = sys::Identity { uid: 65_532, gid: 65_532 };

/// Access rights of Landlock (`linux/landlock.h`), by the version that brought them.
mod access {
    pub(super) const EXECUTE: u64 = 1 << 0;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    /// All of version 1.
    pub(super) const FIRST: u64 = (1 << 13) - 1;
    /// Version 2: links and renames from one folder to another; not possible at all before.
    pub(super) const REFER: u64 = 1 << 13;
    /// Version 3.
    pub(super) const TRUNCATE: u64 = 1 << 14;
    /// Version 5.
    pub(super) const IOCTL_DEV: u64 = 1 << 15;
    /// Those that concern a file itself and not what is in a folder.
    pub(super) const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

    /// Version 6.
    pub(super) const SCOPE_ABSTRACT_SOCKETS: u64 = 1 << 0;
    pub(super) const SCOPE_SIGNALS: u64 = 1 << 1;

    pub(super) fn known_to(version: u32) -> u64 {
        let later = [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)];
        later.into_iter().filter(|(since, _)| version >= *since).fold(FIRST, |all, (_, access)| all | access)
    }
}

/// What to do if there is no way to keep the secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CageMode {
    /// Do not start.
    Require,
    /// Say so once, and run.
    Warn,
}

/// The cage is not what it should be; the text says why and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Warning(String);

#[derive(Debug, thiserror::Error)]
pub enum CageError {
    /// Nothing here can keep a handler from the hidden folders.
    #[error("handlers cannot be kept from the tokens: {0}")]
    Open(Warning),
    #[error("cannot hide {}", .path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("cannot build the Landlock ruleset")]
    Ruleset { source: io::Error },
}

/// What every worker is put into, built once.
#[derive(Debug)]
pub struct Cage {
    ruleset: Option<OwnedFd>,
    identity: Option<sys::Identity>,
}

impl Cage {
    /// A cage from which none of `hidden` (files or folders, which may not exist yet) can be read or written.
    ///
    /// # Errors
    /// [`CageError::Open`] only with [`CageMode::Require`]; with [`CageMode::Warn`] it is a warning.
    pub fn build(hidden: &[PathBuf], mode: CageMode) -> Result<(Cage, Option<Warning>), CageError> {
        match sys::landlock_version() {
            Ok(version) => {
                let ruleset = Some(build_ruleset(&resolve_all(hidden)?, version)?);
                Ok((Cage { ruleset, identity: None }, None))
            }
            Err(_) => Self::build_without_landlock(hidden, mode),
        }
    }

    /// What [`Cage::build`] gives on a kernel without Landlock.
    pub fn build_without_landlock(
        hidden: &[PathBuf],
        mode: CageMode,
    ) -> Result<(Cage, Option<Warning>), CageError> {
        let hidden = resolve_all(hidden)?;
        let identity = sys::is_root().then_some(WORKER);
        let exposed = hidden.iter().find(|path| is_exposed(path));
        let warning = match (identity, exposed) {
            (Some(_), None) => None,
            (Some(_), Some(path)) => Some(format!(
                "this kernel has no Landlock, and {} can be read by every user: take the rights of others from it",
                path.display()
            )),
            (None, _) => Some(
                "this kernel has no Landlock, and only root can give workers a uid of their own: \
                 use a kernel from 5.13 on with Landlock in its `lsm=` list, or run the supervisor as root"
                    .to_owned(),
            ),
        };
        match (warning.map(Warning), mode) {
            (Some(warning), CageMode::Require) => Err(CageError::Open(warning)),
            (warning, _) => Ok((Cage { ruleset: None, identity }, warning)),
        }
    }

    pub(super) fn ruleset(&self) -> Option<BorrowedFd<'_>> {
        self.ruleset.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn identity(&self) -> Option<sys::Identity> {
        self.identity
    }
}

/// The real places of `hidden`. Both the name and what it leads to count: in a mounted secret, `token` leads to the folder of the
/// present version, and the next version comes beside that.
fn resolve_all(hidden: &[PathBuf]) -> Result<BTreeSet<PathBuf>, CageError> {
    let mut places = BTreeSet::new();
    for path in hidden {
        let failed = |source| CageError::Path { path: path.clone(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            let message = "this would hide every file there is: name a folder below";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
        };
        places.insert(resolve(parent).map_err(failed)?.join(name));
        places.insert(resolve(&path).map_err(failed)?);
    }
    Ok(places)
}

/// As `canonicalize`, for paths whose last parts do not exist yet too.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(resolve(parent)?.join(name))
        }
        (result, ..) => result,
    }
}

fn build_ruleset(hidden: &BTreeSet<PathBuf>, version: u32) -> Result<OwnedFd, CageError> {
    let handled = access::known_to(version);
    let scoped = if version >= 6 { access::SCOPE_ABSTRACT_SOCKETS | access::SCOPE_SIGNALS } else { 0 };
    let attributes = sys::RulesetAttributes { handled_access_fs: handled, handled_access_net: 0, scoped };
    let ruleset = sys::landlock_ruleset(attributes).map_err(|source| CageError::Ruleset { source })?;
    let mut to_visit = vec![PathBuf::from("/")];
    while let Some(path) = to_visit.pop() {
        if hidden.contains(&path) {
            continue;
        }
        if !hidden.iter().any(|place| place.starts_with(&path)) {
            allow(ruleset.as_fd(), &path, handled).map_err(|source| CageError::Ruleset { source })?;
        } else if let Ok(entries) = fs::read_dir(&path) {
            to_visit.extend(entries.flatten().map(|entry| entry.path()));
        }
        // A folder that we may not list: nothing in it can be allowed, and little would be if it could.
    }
    Ok(ruleset)
}

/// Allows all that there is beneath `path`; nothing if it has vanished, or is a symbolic link, whose target counts by itself.
fn allow(ruleset: BorrowedFd<'_>, path: &Path, handled: u64) -> io::Result<()> {
    let Ok(data) = fs::symlink_metadata(path) else { return Ok(()) };
    if data.is_symlink() {
        return Ok(());
    }
    let rights = if data.is_dir() { handled } else { handled & access::OF_FILES };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let Ok(file) = sys::open_path(&name) else { return Ok(()) };
    sys::landlock_allow(ruleset, file.as_fd(), rights)
}

/// Whether the file modes let every user read `path`.
fn is_exposed(path: &Path) -> bool {
    let mode = |path: &Path| fs::metadata(path).map(|data| data.permissions().mode());
    mode(path).is_ok_and(|mode| mode & 0o004 != 0)
        && path.ancestors().skip(1).all(|folder| mode(folder).is_ok_and(|mode| mode & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_that_the_version_knows() {
        assert_eq!(access::known_to(1), 0x1fff);
        assert_eq!(access::known_to(3), 0x7fff);
        assert_eq!(access::known_to(7), 0xffff);
    }

    #[test]
    fn a_link_hides_itself_and_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(dir.join("now")).unwrap();
        fs::write(dir.join("now/token"), "x").unwrap();
        std::os::unix::fs::symlink("now/token", dir.join("token")).unwrap();
        let places = resolve_all(&[dir.join("token"), dir.join("later/spool")]).unwrap();
        assert_eq!(
            places,
            BTreeSet::from([dir.join("token"), dir.join("now/token"), dir.join("later/spool")])
        );
    }

    #[test]
    fn the_root_cannot_be_hidden() {
        assert!(matches!(resolve_all(&["/".into()]), Err(CageError::Path { .. })));
    }

    #[test]
    fn modes_along_the_whole_way_decide_who_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, file) = (dir.path().join("a"), dir.path().join("a/b"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "x").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(dir.path(), 0o755);
        set(&folder, 0o755);
        set(&file, 0o644);
        assert!(is_exposed(&file));
        set(&folder, 0o700);
        assert!(!is_exposed(&file));
        set(&folder, 0o711);
        set(&file, 0o600);
        assert!(!is_exposed(&file));
    }
}
