//! `sless backup` and `sless restore`: all that a host needs to go on elsewhere, as one `.tar.gz`.
//!
//! The host may run meanwhile. Nothing is stopped for it; instead each kind of file is taken so that what is in the archive fits
//! together:
//! - The database is a snapshot that SQLite makes. Zips are taken before it and, those that are new, after it: a revision in the
//!   snapshot has its code.
//! - A build's record counts only if it was there before its code was copied and is still there afterwards: then the code is whole.
//! - What lies in PostgreSQL or S3 is not taken; whoever makes the backup is told, and again whoever restores it.
//! - What is only on its way (sockets, uploads, caches, what supervisors print) stays behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::args::{Backup, Format, Restore};
use crate::error::{CliError, chain};
use crate::folder;
use crate::print;
use crate::up::Stores;

const DATABASE: &str = "private/sless.db";
const BUILDS: &str = "private/builds";
/// Taken before the database and once more after it.
const CODE: &str = "private/code";
/// Of `private/`: not taken, or taken in its turn.
const APART: [&str; 9] = ["run", "lock", "uploads", "cache", "output", "url", "builds", "code", "sless.db"];

type Archive = tar::Builder<GzEncoder<BufWriter<File>>>;

pub(crate) async fn backup(what: &Backup, output: Format) -> Result<ExitCode, CliError> {
    let data = folder::data_dir(what.data_dir.as_deref());
    if !data.join("private").is_dir() {
        return Err(CliError::Refused(format!(
            "{} is no data folder of a host; name it with --data-dir or DATA_DIR",
            data.display()
        )));
    }
    let stores = Stores::read(&data)?;
    // One that is left of the time before PostgreSQL would only mislead.
    let has_database = stores.postgres.is_none() && data.join(DATABASE).is_file();
    let fresh = beside(&what.file, "partial");
    let snapshot = beside(&what.file, "database");
    let made = write(&data, &fresh, &snapshot, has_database).await;
    // Whatever came of it.
    let _ = fs::remove_file(&snapshot);
    let made =
        made.and_then(|()| fs::rename(&fresh, &what.file).map_err(CliError::file("write", &what.file)));
    if made.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    made?;
    let size = fs::metadata(&what.file).map_err(CliError::file("read", &what.file))?.len();
    if let Some(place) = &stores.postgres {
        print::note(&format!(
            "not in it: functions, tokens, secrets and records, which are in PostgreSQL at {place}; back that up with pg_dump"
        ));
    }
    if let Some(place) = &stores.s3 {
        print::note(&format!("not in it: uploaded code, which is in {place}; copy the bucket as well"));
    }
    match output {
        Format::Json => {
            let elsewhere = json!({"postgres": stores.postgres, "s3": stores.s3});
            print::json(&json!({"file": what.file, "size": size, "elsewhere": elsewhere}))?;
        }
        Format::Text => print::line(&format!(
            "{} is backed up to {} ({size} bytes); keep it as safe as the folder, it holds the host's keys",
            data.display(),
            what.file.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `FILE.WHAT`, in the same folder.
fn beside(file: &Path, what: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{what}"));
    name.into()
}

async fn write(data: &Path, to: &Path, snapshot: &Path, has_database: bool) -> Result<(), CliError> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to);
    let file = file.map_err(CliError::file("write", to))?;
    let mut archive = tar::Builder::new(GzEncoder::new(BufWriter::new(file), Compression::fast()));
    archive.follow_symlinks(false);
    let failed = || CliError::file("back up", data);

    let mut taken = BTreeSet::new();
    add(&mut archive, data, Path::new(CODE), &mut taken).map_err(failed())?;
    if has_database {
        // Made here, for SQLite would let others read it. It takes an empty file.
        let private = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(snapshot);
        private.map_err(CliError::file("write", snapshot))?;
        let made = sless_api::snapshot(&data.join(DATABASE), snapshot).await;
        made.map_err(|e| CliError::Host(format!("copy the database: {}", chain(&e))))?;
        archive.append_path_with_name(snapshot, DATABASE).map_err(failed())?;
    }
    add(&mut archive, data, Path::new(CODE), &mut taken).map_err(failed())?;
    let before = read_all(data, Path::new(BUILDS)).map_err(failed())?;
    add(&mut archive, data, Path::new("functions"), &mut taken).map_err(failed())?;
    add_whole_builds(&mut archive, data, before).map_err(failed())?;
    for entry in fs::read_dir(data.join("private")).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name();
        let name = Path::new(&name);
        // With those of the database's own: `sless.db-wal`.
        let apart = name.to_str().is_some_and(|name| APART.contains(&name) || name.starts_with("sless.db"));
        if !apart {
            add(&mut archive, data, &Path::new("private").join(name), &mut taken).map_err(failed())?;
        }
    }
    let file = archive.into_inner().and_then(GzEncoder::finish).map_err(failed())?;
    let file = file.into_inner().map_err(|e| failed()(e.into_error()))?;
    file.sync_all().map_err(failed())
}

/// Adds a file, or a folder with all in it, once. What goes away meanwhile was not needed.
fn add(archive: &mut Archive, data: &Path, name: &Path, taken: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let path = data.join(name);
    let Some(found) = there(fs::symlink_metadata(&path))? else { return Ok(()) };
    if found.is_dir() {
        if taken.insert(name.to_owned()) {
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&found);
            header.set_size(0);
            archive.append_data(&mut header, name, io::empty())?;
        }
        let Some(entries) = there(fs::read_dir(&path))? else { return Ok(()) };
        for entry in entries {
            add(archive, data, &name.join(entry?.file_name()), taken)?;
        }
        return Ok(());
    }
    if !taken.insert(name.to_owned()) {
        return Ok(());
    }
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&found);
    if found.is_symlink() {
        let Some(target) = there(fs::read_link(&path))? else { return Ok(()) };
        header.set_size(0);
        return archive.append_link(&mut header, name, target);
    }
    // Sockets and such belong to processes.
    if !found.is_file() {
        return Ok(());
    }
    let Some(file) = there(File::open(&path))? else { return Ok(()) };
    // As long as it is now: a file that grows meanwhile would not fit its header, and what was cut is filled up.
    let size = file.metadata()?.len();
    header.set_size(size);
    archive.append_data(&mut header, name, file.chain(io::repeat(0)).take(size))
}

/// `None` if it is no longer there.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The files below a folder, with their contents; they are small.
fn read_all(data: &Path, name: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![name.to_owned()];
    while let Some(name) = todo.pop() {
        let Some(entries) = there(fs::read_dir(data.join(&name)))? else { continue };
        for entry in entries {
            let entry = entry?;
            let name = name.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                todo.push(name);
            } else if let Some(bytes) = there(fs::read(entry.path()))? {
                found.insert(name, bytes);
            }
        }
    }
    Ok(found)
}

fn add_whole_builds(
    archive: &mut Archive,
    data: &Path,
    before: BTreeMap<PathBuf, Vec<u8>>,
) -> io::Result<()> {
    let after = read_all(data, Path::new(BUILDS))?;
    for (name, bytes) in before {
        if after.get(&name) != Some(&bytes) {
            continue;
        }
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes.as_slice())?;
    }
    Ok(())
}

pub(crate) fn restore(what: &Restore, output: Format) -> Result<ExitCode, CliError> {
    let data = folder::data_dir(what.data_dir.as_deref());
    let empty = match fs::read_dir(&data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    };
    if !empty {
        return Err(CliError::Refused(format!(
            "{} is there and not empty; move it away, or name another folder with --data-dir",
            data.display()
        )));
    }
    let file = File::open(&what.file).map_err(CliError::file("read", &what.file))?;
    // Beside the folder, and then in one step in its place: half of a backup is never taken for a whole one.
    let partial = beside(&data, "restoring");
    if let Some(above) = data.parent() {
        fs::create_dir_all(above).map_err(CliError::file("make", above))?;
    }
    fs::create_dir(&partial).map_err(CliError::file("make", &partial))?;
    let unpacked = unpack(file, &partial).map_err(CliError::file("restore from", &what.file));
    let placed = unpacked.and_then(|()| fs::rename(&partial, &data).map_err(CliError::file("make", &data)));
    if placed.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    placed?;
    let stores = Stores::read(&data)?;
    if let Some(place) = &stores.postgres {
        print::note(&format!(
            "it needs its database, which was in PostgreSQL at {place}: set DATABASE_URL, and restore that first if it is lost"
        ));
    }
    if let Some(place) = &stores.s3 {
        print::note(&format!(
            "it needs the uploaded code, which was in {place}: set S3_BUCKET and S3_ENDPOINT"
        ));
    }
    match output {
        Format::Json => {
            let elsewhere = json!({"postgres": stores.postgres, "s3": stores.s3});
            print::json(&json!({"data_dir": data, "elsewhere": elsewhere}))?;
        }
        Format::Text => print::line(&format!(
            "{} is restored; start the host with: sless up --data-dir {}",
            data.display(),
            data.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn unpack(file: File, to: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    archive.set_preserve_permissions(true);
    archive.unpack(to)?;
    // The archive ends before the stream does: a stream that was cut is found out only at its own end.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    if !to.join("private").is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no backup of a data folder"));
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(to.join("private"), fs::Permissions::from_mode(0o700))
}
