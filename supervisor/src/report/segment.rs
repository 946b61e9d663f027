//! A piece of the spool: a file of lines, or the same in memory while there is no file to be had.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

pub(super) const LOCK: &str = "lock";
pub(super) const CURSOR: &str = "cursor";

/// The folder of one supervisor process. Its lock is held as long as the process lives.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) path: PathBuf,
    lock: File,
    cursor: RefCell<Option<File>>,
    next_no: Cell<u64>,
}

impl Dir {
    /// Makes a folder of our own below `base`.
    pub(super) fn create(base: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        let (pid, mut now) = (std::process::id(), super::time::now_ms());
        loop {
            // Folders are delivered in the order of their names.
            let path = base.join(format!("{now:013}-{pid}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    now += 1;
                    continue;
                }
                Err(e) => return Err(e),
            }
            let lock = options().create(true).open(path.join(LOCK))?;
            match lock.try_lock() {
                Ok(()) => {
                    // Tells the next supervisor whether the machine is still the same one.
                    lock.write_all_at(boot_id().as_bytes(), 0)?;
                    return Ok(Self::locked(path, lock, 1));
                }
                // Another supervisor took it for a leftover.
                Err(std::fs::TryLockError::WouldBlock) => now += 1,
                Err(std::fs::TryLockError::Error(e)) => return Err(e),
            }
        }
    }

    pub(super) fn locked(path: PathBuf, lock: File, next_no: u64) -> Self {
        Self { path, lock, cursor: RefCell::new(None), next_no: Cell::new(next_no) }
    }

    /// Leaves a sign of life: the next supervisor takes the latest for the end of what it finds open.
    pub(super) fn touch(&self) {
        // Without it durations of calls that end with their supervisor are guessed shorter.
        let _ = self.lock.set_modified(SystemTime::now());
    }

    /// Writes down up to where all is delivered. A cursor that is behind costs a second delivery, no more.
    fn set_cursor(&self, no: u64, offset: u64) {
        let mut cursor = self.cursor.borrow_mut();
        if cursor.is_none() {
            *cursor = options().create(true).open(self.path.join(CURSOR)).ok();
        }
        if let Some(file) = &*cursor {
            let _ = file.write_all_at(format!("{no:020} {offset:020}\n").as_bytes(), 0);
        }
    }
}

impl Drop for Dir {
    /// Takes the folder away when nothing is left in it.
    fn drop(&mut self) {
        let left = std::fs::read_dir(&self.path).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "ndjson")))
        });
        if !left {
            for name in [CURSOR, LOCK, super::adopt::OUT_OF_MEMORY] {
                let _ = std::fs::remove_file(self.path.join(name));
            }
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

#[derive(Debug)]
enum Store {
    File { dir: Rc<Dir>, no: u64, path: PathBuf, file: Option<File> },
    Memory(Vec<u8>),
}

/// Where a line lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) length: u64,
    /// Segment and offset of the end of the call's `finished`, once it is written.
    pub(super) finished: Option<(u64, u64)>,
}

/// A call's `started`, or its provisional `finished`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Started(u64),
    Provisional(u64),
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) id: u64,
    store: Store,
    pub(super) length: u64,
    /// Delivered up to here.
    pub(super) sent: u64,
    /// How much of it was let go for want of room; above 0 nothing is appended any more.
    pub(super) shed: u8,
    /// Another supervisor's: nothing is appended.
    pub(super) adopted: bool,
    /// Lines that stay until their call is over.
    pub(super) open: HashMap<Mark, Span>,
}

impl Segment {
    pub(super) fn memory(id: u64) -> Self {
        Self {
            id,
            store: Store::Memory(Vec::new()),
            length: 0,
            sent: 0,
            shed: 0,
            adopted: false,
            open: HashMap::new(),
        }
    }

    /// A new file in `dir`.
    pub(super) fn create(id: u64, dir: &Rc<Dir>) -> io::Result<Self> {
        let no = dir.next_no.get();
        let path = dir.path.join(format!("{no:06}.ndjson"));
        let file = options().create_new(true).open(&path)?;
        dir.next_no.set(no + 1);
        let store = Store::File { dir: dir.clone(), no, path, file: Some(file) };
        Ok(Self { id, store, length: 0, sent: 0, shed: 0, adopted: false, open: HashMap::new() })
    }

    /// A file that another supervisor left.
    pub(super) fn adopted(id: u64, dir: &Rc<Dir>, no: u64, length: u64, sent: u64) -> Self {
        let path = dir.path.join(format!("{no:06}.ndjson"));
        let store = Store::File { dir: dir.clone(), no, path, file: None };
        Self { id, store, length, sent: sent.min(length), shed: 0, adopted: true, open: HashMap::new() }
    }

    pub(super) fn in_memory(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    pub(super) fn pending(&self) -> u64 {
        self.length - self.sent
    }

    /// Appends all of `bytes` or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.store {
            Store::Memory(lines) => lines.extend_from_slice(bytes),
            Store::File { path, file, .. } => {
                let file = opened(file, path)?;
                if let Err(e) = file.write_all_at(bytes, self.length) {
                    let _ = file.set_len(self.length);
                    return Err(e);
                }
            }
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn read(&mut self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        match &mut self.store {
            Store::Memory(lines) => {
                let at = usize::try_from(at).map_err(io::Error::other)?;
                lines.get(at..at + length).map(<[u8]>::to_vec).ok_or(io::ErrorKind::UnexpectedEof.into())
            }
            Store::File { path, file, .. } => {
                let mut bytes = vec![0; length];
                opened(file, path)?.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            }
        }
    }

    /// Sets all anew; of a file by a rename, or in place on a full disk, as `bytes` is hardly longer than what was there.
    /// What no disk takes stays in memory.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        let length = bytes.len() as u64;
        self.length = length;
        let Store::File { path, file, .. } = &mut self.store else {
            self.store = Store::Memory(bytes);
            return;
        };
        let beside = path.with_extension("tmp");
        if std::fs::write(&beside, &bytes).and_then(|()| std::fs::rename(&beside, &*path)).is_ok() {
            *file = None;
            return;
        }
        let _ = std::fs::remove_file(&beside);
        let in_place = opened(file, path).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            file.set_len(length)
        });
        if let Err(error) = in_place {
            tracing::warn!(%error, "a file of the spool cannot be written; its records wait in memory");
            let _ = std::fs::remove_file(&*path);
            self.store = Store::Memory(bytes);
        }
    }

    /// All up to `at` is delivered.
    pub(super) fn set_sent(&mut self, at: u64) {
        self.sent = at;
        if let Store::File { dir, no, .. } = &self.store {
            dir.set_cursor(*no, at);
        }
    }

    /// Empties it, so that it is used again.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        match &mut self.store {
            Store::Memory(lines) => *lines = Vec::new(),
            Store::File { path, file, .. } => opened(file, path)?.set_len(0)?,
        }
        self.length = 0;
        self.set_sent(0);
        Ok(())
    }

    /// Closes the file until it is needed again.
    pub(super) fn close(&mut self) {
        if let Store::File { file, .. } = &mut self.store {
            *file = None;
        }
    }

    /// Takes the file away.
    pub(super) fn remove(self) {
        if let Store::File { path, .. } = &self.store {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn opened<'a>(file: &'a mut Option<File>, path: &Path) -> io::Result<&'a File> {
    match file {
        Some(file) => Ok(file),
        None => Ok(file.insert(options().open(path)?)),
    }
}
