//! Reads a folder that somebody hostile may have written, and may still write to: every step is by descriptor and never through a link.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};

/// Why a folder can't become a layer.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{}: is a {kind}; only files, folders and links inside of the folder can be packed", path.display())]
    Special { path: PathBuf, kind: &'static str },
    #[error("{}: is a link to {}, which leads out of the folder; copy what it means instead", path.display(), target.display())]
    Escapes { path: PathBuf, target: PathBuf },
    #[error("{}: changed while it was read", path.display())]
    Changed { path: PathBuf },
    #[error("the folder has more than {limit} {what}")]
    TooLarge { limit: u64, what: &'static str },
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What lies at a path.
#[derive(Debug)]
pub(crate) enum Node {
    Folder,
    File { file: File, size: u64, executable: bool },
    Link { target: PathBuf },
}

/// Calls `each` for all that lies below `root`, in the order of the paths' bytes part by part, a folder before what is in it.
pub(crate) fn walk<E: From<TreeError>>(
    root: &Path,
    mut each: impl FnMut(&Path, Node) -> Result<(), E>,
) -> Result<(), E> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = open(root, flags, Mode::empty()).map_err(|e| failed(root, e))?;
    below(folder, Path::new(""), &mut each)
}

fn failed(path: &Path, error: Errno) -> TreeError {
    TreeError::Io { path: path.to_owned(), source: error.into() }
}

fn below<E: From<TreeError>>(
    folder: OwnedFd,
    at: &Path,
    each: &mut impl FnMut(&Path, Node) -> Result<(), E>,
) -> Result<(), E> {
    for name in names(&folder, at)? {
        let path = at.join(&name);
        match open_node(folder.as_fd(), &name, &path)? {
            Opened::Folder(inner) => {
                each(&path, Node::Folder)?;
                below(inner, &path, each)?;
            }
            Opened::Other(node) => each(&path, node)?,
        }
    }
    Ok(())
}

/// The names in a folder, in order: what the file system gives has none.
fn names(folder: &OwnedFd, at: &Path) -> Result<Vec<OsString>, TreeError> {
    let failed = |e| failed(at, e);
    let copy = folder.try_clone().map_err(|source| TreeError::Io { path: at.to_owned(), source })?;
    let mut dir = Dir::from_fd(copy).map_err(failed)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = OsStr::from_bytes(entry.map_err(failed)?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

enum Opened {
    Folder(OwnedFd),
    Other(Node),
}

fn open_node(folder: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<Opened, TreeError> {
    let failed = |e| failed(path, e);
    let name = CString::new(name.as_bytes()).map_err(|_| TreeError::Changed { path: path.to_owned() })?;
    let name = name.as_c_str();
    let seen = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
    let kind = SFlag::from_bits_truncate(seen.st_mode & SFlag::S_IFMT.bits());
    if kind == SFlag::S_IFLNK {
        let target = PathBuf::from(readlinkat(folder, name).map_err(failed)?);
        if !stays_inside(path, &target) {
            return Err(TreeError::Escapes { path: path.to_owned(), target });
        }
        return Ok(Opened::Other(Node::Link { target }));
    }
    if kind != SFlag::S_IFDIR && kind != SFlag::S_IFREG {
        return Err(TreeError::Special { path: path.to_owned(), kind: word(kind) });
    }
    // NONBLOCK: were it a pipe by now, opening it would wait for ever.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = openat(folder, name, flags, Mode::empty()).map_err(failed)?;
    let found = fstat(&opened).map_err(failed)?;
    if (found.st_dev, found.st_ino) != (seen.st_dev, seen.st_ino) {
        return Err(TreeError::Changed { path: path.to_owned() });
    }
    if kind == SFlag::S_IFDIR {
        return Ok(Opened::Folder(opened));
    }
    let size = u64::try_from(found.st_size).unwrap_or_default();
    Ok(Opened::Other(Node::File { file: File::from(opened), size, executable: found.st_mode & 0o111 != 0 }))
}

fn word(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFBLK | SFlag::S_IFCHR => "device",
        SFlag::S_IFIFO => "pipe",
        SFlag::S_IFSOCK => "socket",
        _ => "thing of an unknown kind",
    }
}

/// By its text alone: what it leads to may be another link, which is judged by itself.
fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut depth = link.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn seen(root: &Path) -> Result<Vec<String>, TreeError> {
        let mut seen = Vec::new();
        walk(root, |path, node| {
            seen.push(format!(
                "{} {}",
                path.display(),
                match node {
                    Node::Folder => "folder".to_owned(),
                    Node::File { size, executable, .. } => format!("file {size} {executable}"),
                    Node::Link { target } => format!("link {}", target.display()),
                }
            ));
            Ok::<_, TreeError>(())
        })?;
        Ok(seen)
    }

    #[test]
    fn all_is_seen_in_order_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("b/c")).unwrap();
        std::fs::write(at("b/c/x"), "12").unwrap();
        std::fs::write(at("a.b"), "").unwrap();
        symlink("c", at("b/d")).unwrap();
        symlink("../a.b", at("b/e")).unwrap();
        let expected = [
            "a.b file 0 false",
            "b folder",
            "b/c folder",
            "b/c/x file 2 false",
            "b/d link c",
            "b/e link ../a.b",
        ];
        assert_eq!(seen(root.path()).unwrap(), expected);
    }

    #[test]
    fn a_link_that_leads_out_is_refused() {
        for target in ["/etc/passwd", "..", "a/../../x", "../../../etc"] {
            let root = tempfile::tempdir().unwrap();
            symlink(target, root.path().join("odd")).unwrap();
            let error = seen(root.path()).unwrap_err();
            assert!(
                matches!(&error, TreeError::Escapes { .. }) && error.to_string().contains("odd"),
                "{error}"
            );
        }
    }

    #[test]
    fn pipes_are_refused_without_being_opened() {
        let root = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&root.path().join("p"), Mode::S_IRWXU).unwrap();
        let error = seen(root.path()).unwrap_err();
        assert!(error.to_string().contains("is a pipe"), "{error}");
    }

    #[test]
    fn a_root_that_is_a_link_is_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("real")).unwrap();
        symlink("real", place.path().join("link")).unwrap();
        assert!(seen(&place.path().join("link")).is_err());
    }
}
