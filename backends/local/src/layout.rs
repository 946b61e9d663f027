//! Where things lie in the data folder.
//!
//! ```text
//! DATA_DIR/            0755
//!   functions/NS/NAME/  0755  built code, readable for handlers under a uid of their own
//!   private/            0700  hidden from every handler as a whole: it holds the proxy token
//!     proxy-token
//!     secrets.key             what the API encrypts secrets with
//!     reports/NS/NAME/token   report tokens
//!     spool/NS/NAME/          records that wait
//!     builds/NS/NAME/         what builds came to, and their logs
//!     output/NS/NAME/         what supervisors print
//!     cache/NS/               downloads of installers, and what they installed
//!     run/                    sockets
//! ```

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sless_backend::FunctionRef;

/// The longest path that a Unix socket's address takes is 107 bytes; names of sockets need some of them.
const SOCKET_FOLDER_MAX: usize = 80;

/// The data folder. Relative paths are made absolute: children run in other folders.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    run: PathBuf,
}

impl Layout {
    /// Makes the folders that every host needs.
    ///
    /// `runtime_dir` is where sockets go if the data folder's path is too long for them (`XDG_RUNTIME_DIR`,
    /// or a temporary folder).
    ///
    /// # Errors
    /// When a folder cannot be made, or is somebody else's.
    pub fn prepare(root: &Path, runtime_dir: &Path) -> io::Result<Self> {
        make(root, 0o755)?;
        let root = root.canonicalize()?;
        make(&root.join("functions"), 0o755)?;
        make_private(&root.join("private"))?;
        let mut run = root.join("private/run");
        if run.as_os_str().len() > SOCKET_FOLDER_MAX {
            run = runtime_dir.join(format!("sless-{}-{}", nix::unistd::geteuid(), tag(&root)));
        }
        make_private(&run)?;
        Ok(Self { root, run })
    }

    /// Removes what a host that was killed has left behind: sockets that nobody listens on, and the folders of builds.
    ///
    /// # Errors
    /// When something is there that cannot be removed.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for socket in entries(&self.run)? {
            // A supervisor of that host may still have calls to finish.
            let refused =
                UnixStream::connect(&socket).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
            if refused {
                gone(fs::remove_file(&socket))?;
            }
        }
        for namespace in entries(&self.root.join("private/cache"))? {
            for folder in entries(&namespace)? {
                if folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"build-")) {
                    gone(fs::remove_dir_all(folder))?;
                }
            }
        }
        Ok(())
    }

    /// Sets what this data folder's host makes outside of it apart from what others make.
    #[must_use]
    pub fn tag(&self) -> String {
        tag(&self.root)
    }

    /// What no handler may see.
    #[must_use]
    pub fn private(&self) -> PathBuf {
        self.root.join("private")
    }

    /// The folder of the sockets; its path is short enough for them.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    pub(crate) fn proxy_token(&self) -> PathBuf {
        self.root.join("private/proxy-token")
    }

    pub(crate) fn code(&self, f: &FunctionRef) -> PathBuf {
        self.of("functions", f)
    }

    pub(crate) fn builds(&self, f: &FunctionRef) -> PathBuf {
        self.of("private/builds", f)
    }

    pub(crate) fn report_token(&self, f: &FunctionRef) -> PathBuf {
        self.of("private/reports", f).join("token")
    }

    pub(crate) fn spool(&self, f: &FunctionRef) -> PathBuf {
        self.of("private/spool", f)
    }

    pub(crate) fn output(&self, f: &FunctionRef) -> PathBuf {
        self.of("private/output", f)
    }

    pub(crate) fn cache(&self, f: &FunctionRef) -> PathBuf {
        self.root.join("private/cache").join(f.namespace.as_str())
    }

    fn of(&self, kind: &str, f: &FunctionRef) -> PathBuf {
        self.root.join(kind).join(f.namespace.as_str()).join(f.name.as_str())
    }

    /// Makes the folders of a function.
    pub(crate) fn prepare_function(&self, f: &FunctionRef) -> io::Result<()> {
        let code = self.code(f);
        if let Some(namespace) = code.parent() {
            make(namespace, 0o755)?;
        }
        make(&code, 0o755)?;
        for kind in ["private/builds", "private/reports", "private/spool", "private/output"] {
            make(&self.of(kind, f), 0o700)?;
        }
        make(&self.cache(f), 0o700)
    }

    /// Removes all that a function has, its namespace's folders too where they are empty then.
    pub(crate) fn remove_function(&self, f: &FunctionRef) -> io::Result<()> {
        for kind in ["functions", "private/builds", "private/reports", "private/spool", "private/output"] {
            let folder = self.of(kind, f);
            gone(fs::remove_dir_all(&folder))?;
            if let Some(namespace) = folder.parent() {
                // Not empty: other functions live there.
                let _ = fs::remove_dir(namespace);
            }
        }
        Ok(())
    }
}

fn tag(root: &Path) -> String {
    let mut hash = DefaultHasher::new();
    root.hash(&mut hash);
    format!("{:016x}", hash.finish())
}

/// What is in a folder; nothing if it is not there.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Not being there any more counts as success.
pub(crate) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn make(folder: &Path, mode: u32) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(folder)?;
    // The umask may have taken bits away that another uid needs.
    fs::set_permissions(folder, Permissions::from_mode(mode))
}

/// A folder that is ours alone, also if it was there before: in a folder like `/tmp` somebody may have put one.
fn make_private(folder: &Path) -> io::Result<()> {
    make(folder, 0o700)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        let problem = format!("{} is not a folder of this user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn private_things_are_private_and_sockets_have_short_paths() {
        let temp = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(&temp.path().join("data"), temp.path()).unwrap();
        assert_eq!(mode(&layout.private()), 0o700);
        assert_eq!(mode(&layout.root.join("functions")), 0o755);
        assert!(layout.run().starts_with(layout.private()));
        let long = temp.path().join("x".repeat(90));
        let layout = Layout::prepare(&long, temp.path()).unwrap();
        assert!(layout.run().starts_with(temp.path()) && layout.run().as_os_str().len() <= SOCKET_FOLDER_MAX);
        assert_eq!(mode(layout.run()), 0o700);
    }

    #[test]
    fn what_a_killed_host_left_is_removed_and_what_is_used_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(temp.path(), temp.path()).unwrap();
        let (dead, alive) = (layout.run().join("a.sock"), layout.run().join("b.sock"));
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let _listener = std::os::unix::net::UnixListener::bind(&alive).unwrap();
        let cache = layout.private().join("cache/ns");
        for folder in ["build-x/tmp", "pip"] {
            fs::create_dir_all(cache.join(folder)).unwrap();
        }
        layout.sweep().unwrap();
        assert!(!dead.exists() && alive.exists());
        assert!(!cache.join("build-x").exists() && cache.join("pip").exists());
    }

    #[test]
    fn a_function_leaves_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(temp.path(), temp.path()).unwrap();
        let f = FunctionRef { namespace: "ns".parse().unwrap(), name: "f".parse().unwrap() };
        layout.prepare_function(&f).unwrap();
        fs::write(layout.report_token(&f), "x").unwrap();
        layout.remove_function(&f).unwrap();
        layout.remove_function(&f).unwrap();
        assert!(!temp.path().join("functions/ns").exists() && !layout.report_token(&f).exists());
    }
}
