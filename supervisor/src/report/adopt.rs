//! What supervisors before left in the spool folder: their lines are delivered, their open calls ended.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::event::{self, Head, Key, Kind};
use super::segment::{CURSOR, Dir, LOCK, boot_id};
use super::spool::{CARRIED, PROVISIONAL, split};
use super::time::Stamp;

/// A file in a process' folder: its memory was short, so what it left open ended for want of memory.
pub(super) const OUT_OF_MEMORY: &str = "out_of_memory";

/// One folder whose supervisor is gone; locked by us now.
#[derive(Debug)]
pub(super) struct Left {
    path: PathBuf,
    lock: File,
    /// Number, length, and up to where it is delivered.
    pub(super) files: Vec<(u64, u64, u64)>,
    /// Lines that end its open calls, where no file could take them.
    pub(super) ends: Vec<u8>,
    pub(super) open_calls: usize,
}

impl Left {
    /// Takes its parts: the folder goes away with its last file.
    pub(super) fn into_dir(self) -> Dir {
        let next_no = self.files.last().map_or(1, |f| f.0 + 1);
        Dir::locked(self.path, self.lock, next_no)
    }
}

/// Looks at all folders below `base` that nobody holds. Blocking.
pub(super) fn scan(base: &Path) -> io::Result<Vec<Left>> {
    let mut paths: Vec<_> = std::fs::read_dir(base)?.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let Ok(lock) = File::options().read(true).write(true).open(path.join(LOCK)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        match read(&path, lock) {
            Ok(left) => found.push(left),
            Err(error) => {
                tracing::error!(%error, folder = %path.display(), "spool of an earlier supervisor cannot be read");
            }
        }
    }
    Ok(found)
}

#[derive(Default)]
struct Call {
    started: Option<String>,
    last_seq: u32,
    log_bytes: u64,
    provisional: Option<Vec<u8>>,
    over: bool,
    /// Its `started` was moved, so lines of it may be missing.
    carried: bool,
}

fn read(path: &Path, lock: File) -> io::Result<Left> {
    let cursor = cursor(path);
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?.path();
        let number = entry.file_stem().and_then(|s| s.to_str()?.parse::<u64>().ok());
        match (number, entry.extension().and_then(|x| x.to_str())) {
            (Some(number), Some("ndjson")) => numbers.push(number),
            (_, Some("tmp")) => std::fs::remove_file(entry)?,
            _ => {}
        }
    }
    numbers.sort_unstable();
    let (mut files, mut calls) = (Vec::new(), HashMap::<Key, Call>::new());
    let mut last_sign = modified_ms(&path.join(LOCK));
    for number in numbers {
        let file = path.join(format!("{number:06}.ndjson"));
        let mut lines = std::fs::read(&file)?;
        // A line that was being written when the supervisor died has no end.
        lines.truncate(memchr::memrchr(b'\n', &lines).map_or(0, |at| at + 1));
        last_sign = last_sign.max(modified_ms(&file));
        for line in split(&lines) {
            look_at(line, &mut calls);
        }
        let length = lines.len() as u64;
        let sent = match cursor {
            Some((no, _)) if number < no => length,
            Some((no, offset)) if number == no => offset.min(length),
            _ => 0,
        };
        files.push((number, length, sent));
    }
    let mut open: Vec<_> = calls.into_iter().filter(|(_, c)| !c.over && c.started.is_some()).collect();
    open.sort_by(|a, b| a.1.started.cmp(&b.1.started));
    let status = if path.join(OUT_OF_MEMORY).exists() {
        "out_of_memory"
    } else if std::fs::read_to_string(path.join(LOCK)).is_ok_and(|then| !then.is_empty() && then != boot_id())
    {
        // The machine went away under it.
        "lost"
    } else {
        "crashed"
    };
    let mut ends = Vec::new();
    for (key, call) in &open {
        end(&mut ends, key, call, status, last_sign);
    }
    if !ends.is_empty() {
        let number = files.last().map_or(1, |f| f.0 + 1);
        let file = path.join(format!("{number:06}.ndjson"));
        match std::fs::write(&file, &ends) {
            Ok(()) => files.push((number, std::mem::take(&mut ends).len() as u64, 0)),
            Err(_) => {
                let _ = std::fs::remove_file(&file);
            }
        }
    }
    Ok(Left { path: path.to_owned(), lock, files, ends, open_calls: open.len() })
}

fn look_at(line: &[u8], calls: &mut HashMap<Key, Call>) {
    let (sign, line) = match line.first() {
        Some(&sign @ (PROVISIONAL | CARRIED)) => (sign, &line[1..]),
        _ => (0, line),
    };
    let Some(head) = Head::of(line) else { return };
    let call = calls.entry(head.key()).or_default();
    if sign == PROVISIONAL {
        call.provisional = Some(line.to_vec());
        return;
    }
    call.carried |= sign == CARRIED;
    call.last_seq = call.last_seq.max(head.seq);
    match head.kind {
        Kind::Started => call.started = Some(time_of(line).unwrap_or_default()),
        Kind::Log => call.log_bytes += event::logged_bytes(line),
        Kind::Finished => call.over = true,
    }
}

fn time_of(line: &[u8]) -> Option<String> {
    let marker = b",\"time\":\"";
    let at = memchr::memmem::find(line, marker)? + marker.len();
    Some(String::from_utf8_lossy(line.get(at..at + 24)?).into_owned())
}

/// When a file was written last, in Unix milliseconds; 0 if that cannot be known.
fn modified_ms(path: &Path) -> u64 {
    let modified = path.metadata().and_then(|m| m.modified()).ok();
    let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Where lines were delivered and are gone, a `seq` must not meet one of theirs.
const SEQ_GAP: u32 = 1 << 20;

fn end(out: &mut Vec<u8>, key: &Key, call: &Call, status: &str, last_sign: u64) {
    let seq = call.last_seq.saturating_add(if call.carried { SEQ_GAP } else { 1 });
    if let Some(line) = call.provisional.as_ref().and_then(|line| event::with_seq(line, seq)) {
        out.extend_from_slice(&line);
        return;
    }
    let started = call.started.as_deref().and_then(super::time::parse).unwrap_or(last_sign);
    let (kind, message) = match status {
        "out_of_memory" => ("OutOfMemory", "memory ran out, and the supervisor ended with its worker"),
        "lost" => ("Lost", "the machine went away before the end was known"),
        _ => ("WorkerExited", "the supervisor ended before the call did"),
    };
    let mut stamp = Stamp::default();
    let line = format!(
        "{{\"v\":1,\"invocation_id\":\"{}\",\"attempt\":{},\"seq\":{seq},\"type\":\"finished\",\"time\":\"{}\",\"status\":\"{status}\",\
         \"http_status\":null,\"duration_ms\":{},\"queue_ms\":0,\"init_ms\":null,\"cpu_ms\":null,\"max_rss_bytes\":null,\"result\":null,\
         \"error\":{{\"type\":\"{kind}\",\"message\":\"{message}\",\"traceback\":null}},\"log_bytes\":{},\"log_dropped_bytes\":0}}\n",
        String::from_utf8_lossy(&key.0),
        key.1,
        String::from_utf8_lossy(stamp.at(last_sign.max(started))),
        last_sign.saturating_sub(started),
        call.log_bytes,
    );
    out.extend_from_slice(line.as_bytes());
}

/// File number and offset up to where all is delivered.
fn cursor(path: &Path) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(path.join(CURSOR)).ok()?;
    let (no, offset) = text.trim_end().split_once(' ')?;
    Some((no.parse().ok()?, offset.parse().ok()?))
}
