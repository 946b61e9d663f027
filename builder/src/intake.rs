//! Reads an uploaded zip, which nothing vouches for.
//!
//! Two passes: the directory alone decides about names, kinds, the top folder and the handler's file;
//! then every byte is read once, under limits that count what really comes out.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use sha2::{Digest as _, Sha256};
use sless_core::Digest;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::entry::{self, Location};
use crate::name::{self, NameProblem, Named};

const CHUNK: usize = 64 * 1024;

/// How much an archive may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// All files together, unpacked.
    pub total_bytes: u64,
    /// Files and folders.
    pub entries: usize,
    /// Unpacked bytes for each byte of the archive, once `free_bytes` are exceeded.
    pub ratio: u64,
    /// An archive that unpacks to no more than this is never a bomb, whatever its ratio.
    pub free_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { total_bytes: 1 << 30, entries: 200_000, ratio: 200, free_bytes: 64 << 20 }
    }
}

/// Why an archive is not taken. All but [`IntakeError::Io`] are the sender's to mend, and say how.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error("this is no zip archive, or it is cut off: {0}")]
    NotAZip(String),
    #[error("the archive is empty: it holds no file")]
    Empty,
    #[error("the entry {} is refused: {problem}", Shown(name))]
    Name { name: String, problem: NameProblem },
    #[error("the entry {} is a {kind}; only files and folders can be deployed", Shown(name))]
    Special { name: String, kind: &'static str },
    #[error("the archive has two entries for {}", Shown(name))]
    Duplicate { name: String },
    #[error("the archive has two entries for one and the same name; pack it anew")]
    Twice,
    #[error("{} is a file, and a folder of the same name is in the archive too", Shown(name))]
    Conflict { name: String },
    #[error("the archive's entries overlap, as those of a zip bomb do")]
    Overlap,
    #[error("the archive has {found} entries; {limit} are allowed")]
    TooMany { found: usize, limit: usize },
    #[error("the archive unpacks to more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the archive unpacks to more than {ratio} times its size, as a zip bomb does")]
    Ratio { ratio: u64 },
    #[error("the entry {} is encrypted", Shown(name))]
    Encrypted { name: String },
    #[error("the entry {} cannot be read: {why}", Shown(name))]
    Corrupt { name: String, why: String },
    #[error("{}", MissingHandler { looked_for, found, there })]
    MissingHandler { looked_for: Vec<String>, found: Vec<String>, there: Vec<String> },
    #[error("read or write the archive's content")]
    Io(#[from] io::Error),
}

impl IntakeError {
    /// Whether the archive is at fault, and not this machine.
    pub fn is_the_senders(&self) -> bool {
        !matches!(self, Self::Io(_))
    }
}

/// A name as it can stand in a message: escaped, and cut where somebody overdoes it.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        write!(f, "`{}`", characters.by_ref().take(200).filter(|c| !c.is_control()).collect::<String>())?;
        if characters.next().is_some() { write!(f, " …") } else { Ok(()) }
    }
}

struct MissingHandler<'a> {
    looked_for: &'a [String],
    found: &'a [String],
    /// Some of the files at the top.
    there: &'a [String],
}

impl fmt::Display for MissingHandler<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no handler file: looked for {} at the top of the archive", self.looked_for.join(", "))?;
        match self.found {
            [] => {
                let there: Vec<_> = self.there.iter().map(|path| Shown(path).to_string()).collect();
                let there = if there.is_empty() { "no file".to_owned() } else { there.join(", ") };
                write!(
                    f,
                    "; there is {there}; put it there, or set entrypoint to FILE.FUNCTION of the file that has the handler"
                )
            }
            found => {
                let found: Vec<_> = found.iter().map(|path| Shown(path).to_string()).collect();
                write!(
                    f,
                    "; there is {}: zip the folder that holds it, or name it in entrypoint",
                    found.join(" and ")
                )
            }
        }
    }
}

/// What an archive turned out to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// SHA-256 over what is deployed and nothing else: for each file, in the order of the
    /// paths' bytes, a line `PATH NUL X NUL HASH LF`, where `X` is `x` for an executable file and `-` for
    /// others, and `HASH` the SHA-256 of the file's bytes in hexadecimal.
    pub content_sha256: Digest,
    pub files: usize,
    pub size_bytes: u64,
}

/// Where the files go while they are read.
pub(crate) trait Sink {
    fn folder(&mut self, path: &str) -> io::Result<()>;
    fn begin(&mut self, path: &str) -> io::Result<()>;
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn end(&mut self, executable: bool) -> io::Result<()>;
}

struct Nowhere;

impl Sink for Nowhere {
    fn folder(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn begin(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn end(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the whole archive and says what it holds; keeps nothing.
///
/// `handlers` are the files of which one must be there (see [`crate::candidates`]).
///
/// # Errors
/// Every reason for which the archive would not be deployed.
pub fn inspect(
    archive: impl Read + Seek,
    handlers: &[String],
    limits: &Limits,
) -> Result<Contents, IntakeError> {
    read(archive, handlers, limits, &mut Nowhere)
}

/// One entry that is kept.
struct Kept {
    index: usize,
    folder: bool,
    /// The permission bits that the archive has; 0 where an archiver lost them.
    mode: u32,
}

pub(crate) fn read(
    mut archive: impl Read + Seek,
    handlers: &[String],
    limits: &Limits,
    sink: &mut impl Sink,
) -> Result<Contents, IntakeError> {
    let size = archive.seek(SeekFrom::End(0))?;
    let mut zip = ZipArchive::new(archive).map_err(|e| opening(&e))?;
    let plan = plan(&mut zip, handlers, limits)?;
    let budget = limits.total_bytes.min(size.saturating_mul(limits.ratio).max(limits.free_bytes));
    let over = || match budget == limits.total_bytes {
        true => IntakeError::TooLarge { limit: limits.total_bytes },
        false => IntakeError::Ratio { ratio: limits.ratio },
    };
    let (mut total, mut files, mut content) = (0u64, 0, Sha256::new());
    let mut chunk = vec![0; CHUNK];
    for (path, kept) in &plan {
        if kept.folder {
            sink.folder(path)?;
            continue;
        }
        sink.begin(path)?;
        let corrupt = |e: &dyn fmt::Display| IntakeError::Corrupt { name: path.clone(), why: e.to_string() };
        let mut file = zip.by_index(kept.index).map_err(|e| corrupt(&e))?;
        let (mut hash, mut length, mut starts) = (Sha256::new(), 0u64, [0; 4]);
        loop {
            let n = match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(corrupt(&e)),
            };
            let bytes = &chunk[..n];
            for (i, byte) in bytes.iter().enumerate().take(4) {
                let at = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(i);
                if let Some(place) = starts.get_mut(at) {
                    *place = *byte;
                }
            }
            length += n as u64;
            total += n as u64;
            if total > budget {
                return Err(over());
            }
            hash.update(bytes);
            sink.write(bytes)?;
        }
        let executable = kept.mode & 0o111 != 0 || kept.mode == 0 && is_program(starts);
        sink.end(executable)?;
        files += 1;
        content.update(path.as_bytes());
        content.update(if executable { b"\0x\0" } else { b"\0-\0" });
        content.update(Digest::new(hash.finalize().into()).to_string());
        content.update(b"\n");
    }
    Ok(Contents { content_sha256: Digest::new(content.finalize().into()), files, size_bytes: total })
}

/// What the directory says, put right: path → entry, in the order of the paths' bytes.
fn plan<R: Read + Seek>(
    zip: &mut ZipArchive<R>,
    handlers: &[String],
    limits: &Limits,
) -> Result<BTreeMap<String, Kept>, IntakeError> {
    if zip.len() > limits.entries {
        return Err(IntakeError::TooMany { found: zip.len(), limit: limits.entries });
    }
    let mut plan = BTreeMap::new();
    for index in 0..zip.len() {
        let entry = zip.by_index_data(index).map_err(|e| opening(&e))?;
        // The raw bytes first: many archivers write UTF-8 and do not say so.
        let name = match std::str::from_utf8(entry.name_raw()) {
            Ok(name) => name.to_owned(),
            Err(_) => entry.name().map_err(|e| opening(&e))?.into_owned(),
        };
        let mode = entry.external_attributes() >> 16;
        if let Some(kind) = special(mode) {
            return Err(IntakeError::Special { name, kind });
        }
        let (path, folder) = match name::repair(&name) {
            Ok(Named::Path { path, folder }) => (path, folder || mode & 0o170_000 == 0o040_000),
            Ok(Named::Ignored) => continue,
            Err(problem) => return Err(IntakeError::Name { name, problem }),
        };
        if entry.encrypted() {
            return Err(IntakeError::Encrypted { name });
        }
        let kept = Kept { index, folder, mode: mode & 0o777 };
        if let Some(earlier) = plan.insert(path, kept)
            && !(folder && earlier.folder)
        {
            return Err(IntakeError::Duplicate { name });
        }
    }
    if plan.values().all(|kept| kept.folder) {
        return Err(IntakeError::Empty);
    }
    // The reader keeps one entry of each raw name, so the second one is only known by the count.
    if zip.has_duplicate_names() {
        return Err(IntakeError::Twice);
    }
    if zip.has_overlapping_entries().map_err(|e| opening(&e))? {
        return Err(IntakeError::Overlap);
    }
    if let Some(name) = conflict(&plan) {
        return Err(IntakeError::Conflict { name });
    }
    let plan = strip(plan, handlers)?;
    if let Some(path) = plan.keys().find(|path| name::is_reserved(path)) {
        return Err(IntakeError::Name { name: path.clone(), problem: NameProblem::Reserved });
    }
    Ok(plan)
}

/// Takes the single top folder away, if that is where the handler is.
fn strip(plan: BTreeMap<String, Kept>, handlers: &[String]) -> Result<BTreeMap<String, Kept>, IntakeError> {
    match entry::locate(plan.keys().map(String::as_str), handlers) {
        Location::Top => Ok(plan),
        Location::Elsewhere(found) => {
            let top = plan.iter().filter(|(path, kept)| !kept.folder && !path.contains('/'));
            let there = top.take(5).map(|(path, _)| path.clone()).collect();
            Err(IntakeError::MissingHandler { looked_for: handlers.to_vec(), found, there })
        }
        Location::BelowSingleFolder(folder) => Ok(plan
            .into_iter()
            .filter_map(|(path, kept)| {
                let below = path.strip_prefix(&folder)?.strip_prefix('/')?;
                Some((below.to_owned(), kept))
            })
            .collect()),
    }
}

/// A file that something else needs to be a folder.
fn conflict(plan: &BTreeMap<String, Kept>) -> Option<String> {
    plan.keys().find_map(|path| {
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('/') {
            if plan.get(parent).is_some_and(|kept| !kept.folder) {
                return Some(parent.to_owned());
            }
            above = parent;
        }
        None
    })
}

/// Kinds that only Unix archivers write (`S_IFMT` in the upper half of the external attributes).
fn special(mode: u32) -> Option<&'static str> {
    match mode & 0o170_000 {
        0 | 0o100_000 | 0o040_000 => None,
        0o120_000 => Some("symbolic link"),
        0o020_000 | 0o060_000 => Some("device"),
        0o010_000 => Some("named pipe"),
        0o140_000 => Some("socket"),
        _ => Some("special file"),
    }
}

/// A script with an interpreter line, or an ELF binary: what must have been executable before its mode was lost.
fn is_program(starts: [u8; 4]) -> bool {
    starts.starts_with(b"#!") || starts == *b"\x7fELF"
}

fn opening(error: &ZipError) -> IntakeError {
    IntakeError::NotAZip(error.to_string())
}
