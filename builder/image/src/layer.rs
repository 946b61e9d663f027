//! A folder as one layer of an image: <https://github.com/opencontainers/image-spec/blob/main/layer.md>.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::tree::{Node, TreeError, walk};

/// Of the layers that [`pack`] makes. containerd reads them since 1.5.
pub const MEDIA_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// What zstd calls its default: the same result in a tenth of gzip's time.
const LEVEL: i32 = 3;

/// What a layer is called by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// `sha256:…` of the compressed bytes: its name in a registry and in the manifest.
    pub digest: String,
    /// `sha256:…` of the bytes before compression, for the image's configuration.
    pub diff_id: String,
    /// Of the compressed bytes.
    pub size: u64,
}

/// Writes the content of `root` to `out`, as a layer that has it below `prefix` (`app`, without slashes at its ends).
///
/// Times are 0, the owner is root, modes are 0755 and 0644: the digest depends on names, bytes, links and execute bits alone.
///
/// # Errors
/// [`TreeError`], when something in it can't be packed, when it unpacks to more than `most_bytes`, or when `out` can't be written.
pub fn pack(root: &Path, prefix: &Path, most_bytes: u64, out: impl Write) -> Result<Layer, TreeError> {
    let io = |source| TreeError::Io { path: root.to_owned(), source };
    let mut outer = Hashing::new(out);
    let compressor = zstd::Encoder::new(&mut outer, LEVEL).map_err(io)?;
    let mut tar = Builder::new(Hashing::new(compressor));

    let mut above = PathBuf::new();
    for part in prefix.components() {
        above.push(part);
        append(&mut tar, &above, EntryType::Directory, 0o755, &mut io::empty(), 0).map_err(io)?;
    }
    let mut left = most_bytes;
    walk(root, |path, node| {
        let name = prefix.join(path);
        let failed = |source| TreeError::Io { path: path.to_owned(), source };
        match node {
            Node::Folder => {
                append(&mut tar, &name, EntryType::Directory, 0o755, &mut io::empty(), 0).map_err(failed)
            }
            Node::Link { target } => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, &name, &target).map_err(failed)
            }
            Node::File { file, size, executable } => {
                left =
                    left.checked_sub(size).ok_or(TreeError::TooLarge { limit: most_bytes, what: "bytes" })?;
                let mode = if executable { 0o755 } else { 0o644 };
                // A file that grows or shrinks meanwhile would break the archive.
                let mut exactly = Exactly { inner: file, left: size };
                append(&mut tar, &name, EntryType::Regular, mode, &mut exactly, size).map_err(|e| {
                    match e.kind() {
                        io::ErrorKind::UnexpectedEof => TreeError::Changed { path: path.to_owned() },
                        _ => failed(e),
                    }
                })
            }
        }
    })?;
    let (compressor, diff_id) = tar.into_inner().map_err(io)?.finish();
    compressor.finish().map_err(io)?;
    let size = outer.written;
    let (mut out, digest) = outer.finish();
    out.flush().map_err(io)?;
    Ok(Layer { digest, diff_id, size })
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn append(
    tar: &mut Builder<impl Write>,
    name: &Path,
    kind: EntryType,
    mode: u32,
    content: &mut impl Read,
    size: u64,
) -> io::Result<()> {
    tar.append_data(&mut header(kind, mode, size), name, content)
}

/// As many bytes as were announced, no more and no fewer.
struct Exactly<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let (part, _) = buffer.split_at_mut(most);
        let n = self.inner.read(part)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        Ok(n)
    }
}

/// Hashes what passes through.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    written: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), written: 0 }
    }

    fn finish(self) -> (W, String) {
        let mut name = "sha256:".to_owned();
        for byte in self.hash.finalize() {
            // Writing to a String can't fail.
            let _ = write!(name, "{byte:02x}");
        }
        (self.inner, name)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        let (taken, _) = bytes.split_at(n);
        self.hash.update(taken);
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    use super::*;

    const MOST: u64 = 1 << 20;

    fn tree(order: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in order {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
        }
        fs::set_permissions(root.path().join("bin/run"), Permissions::from_mode(0o700)).unwrap();
        symlink("run", root.path().join("bin/link")).unwrap();
        root
    }

    fn packed(root: &Path) -> (Layer, Vec<u8>) {
        let mut out = Vec::new();
        let layer = pack(root, Path::new("app/code"), MOST, &mut out).unwrap();
        (layer, out)
    }

    #[test]
    fn equal_content_gives_an_equal_digest_whatever_its_times_order_and_modes() {
        let one = tree(&["handler.py", "bin/run", "lib/a.py"]);
        let two = tree(&["lib/a.py", "bin/run", "handler.py"]);
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        fs::File::open(two.path().join("handler.py")).unwrap().set_modified(old).unwrap();
        fs::set_permissions(two.path().join("lib/a.py"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(packed(one.path()), packed(two.path()));
        fs::set_permissions(two.path().join("lib/a.py"), Permissions::from_mode(0o755)).unwrap();
        assert_ne!(packed(one.path()).0.digest, packed(two.path()).0.digest);
    }

    #[test]
    fn names_and_digests_are_those_of_the_bytes() {
        let root = tree(&["handler.py", "bin/run"]);
        let (layer, bytes) = packed(root.path());
        let sum = |bytes: &[u8]| format!("sha256:{:x}", Sha256::digest(bytes));
        assert_eq!((layer.size, &layer.digest), (bytes.len() as u64, &sum(&bytes)));
        let plain = zstd::decode_all(&*bytes).unwrap();
        assert_eq!(layer.diff_id, sum(&plain));
        let mut archive = tar::Archive::new(&*plain);
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!(
                    (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                    (0, 0, 0)
                );
                format!("{} {:o}", entry.path().unwrap().display(), header.mode().unwrap())
            })
            .collect();
        let expected = [
            "app 755",
            "app/code 755",
            "app/code/bin 755",
            "app/code/bin/link 777",
            "app/code/bin/run 755",
            "app/code/handler.py 644",
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn long_names_and_large_files_are_taken_until_the_limit() {
        let root = tempfile::tempdir().unwrap();
        let name = "n".repeat(200);
        fs::create_dir(root.path().join(&name)).unwrap();
        fs::write(root.path().join(&name).join("x".repeat(200)), vec![7; 300_000]).unwrap();
        let mut out = Vec::new();
        pack(root.path(), Path::new("app"), 300_000, &mut out).unwrap();
        let error = pack(root.path(), Path::new("app"), 299_999, &mut out).unwrap_err();
        assert!(matches!(error, TreeError::TooLarge { .. }), "{error}");
    }
}
