//! Uploaded zips in a folder: `{namespace}/{function}/{sha256}.zip`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sless_backend::{CodeError, CodeStore, FunctionRef};
use sless_core::Digest;
use tokio::task::spawn_blocking;

/// See the module.
#[derive(Debug, Clone)]
pub struct DirStore {
    root: PathBuf,
}

impl DirStore {
    /// The folder is made with the first upload.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn folder(&self, function: &FunctionRef) -> PathBuf {
        self.root.join(function.namespace.as_str()).join(function.name.as_str())
    }

    fn file(&self, function: &FunctionRef, sha256: &Digest) -> PathBuf {
        self.folder(function).join(format!("{sha256}.zip"))
    }
}

fn failed(action: String) -> impl FnOnce(io::Error) -> CodeError {
    move |source| CodeError::Failed { action, source }
}

/// Runs `work`, which blocks, on a thread where that is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CodeError> + Send + 'static,
) -> Result<T, CodeError> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(CodeError::Failed {
            action: "use the code store".to_owned(),
            source: io::Error::other(error),
        }),
    }
}

/// A copy that is either whole or not there, also after a crash.
fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    let folder = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut temp = tempfile::Builder::new().prefix(".upload-").tempfile_in(folder)?;
    io::copy(&mut File::open(from)?, temp.as_file_mut())?;
    temp.as_file().sync_all()?;
    temp.persist(to).map_err(|e| e.error)?;
    File::open(folder)?.sync_all()
}

#[async_trait]
impl CodeStore for DirStore {
    async fn put_if_absent(
        &self,
        function: &FunctionRef,
        sha256: &Digest,
        from: &Path,
    ) -> Result<(), CodeError> {
        let (to, from) = (self.file(function, sha256), from.to_owned());
        blocking(move || {
            if to.exists() {
                return Ok(());
            }
            copy_whole(&from, &to).map_err(failed(format!("keep the code in {}", to.display())))
        })
        .await
    }

    async fn get(&self, function: &FunctionRef, sha256: &Digest) -> Result<File, CodeError> {
        let (path, sha256) = (self.file(function, sha256), *sha256);
        blocking(move || match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CodeError::NotFound(sha256)),
            other => other.map_err(failed(format!("open {}", path.display()))),
        })
        .await
    }

    async fn delete(&self, function: &FunctionRef, sha256: &Digest) -> Result<(), CodeError> {
        let path = self.file(function, sha256);
        blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(format!("remove {}", path.display()))(error))
            }
            _ => {
                // The function's folder goes with its last zip; one that is not empty stays, which is no error.
                if let Some(folder) = path.parent() {
                    let _ = fs::remove_dir(folder);
                }
                Ok(())
            }
        })
        .await
    }

    async fn list(&self, function: &FunctionRef) -> Result<Vec<Digest>, CodeError> {
        let folder = self.folder(function);
        blocking(move || {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other.map_err(failed(format!("list {}", folder.display())))?,
            };
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            Ok(names.filter_map(|name| name.strip_suffix(".zip")?.parse().ok()).collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_a_code_store() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("code");
        sless_backend::code_suite::run(&DirStore::new(&root), folder.path()).await;
        let left: Vec<_> = fs::read_dir(root.join("default")).unwrap().collect();
        assert!(left.is_empty(), "a function's folder goes with its last zip: {left:?}");
    }
}
