//! The log of a build: JSON lines, as those of an invocation's log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::masks::Masks;
use crate::reason::reason;

/// Kept of a build's output; the end is kept in any case (see [`Log::finish`]).
const LIMIT_BYTES: usize = 1 << 20;
/// Lines that are remembered for the end of the log and for the reason of a failure.
const TAIL_LINES: usize = 100;
/// A longer line is cut.
const LINE_BYTES: usize = 16 << 10;

/// One line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// RFC 3339, UTC.
    pub time: String,
    /// `stdout` or `stderr`; the builder's own lines are `stdout`.
    pub stream: String,
    pub text: String,
}

#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    masks: Masks,
    written: usize,
    /// The last lines; those of them that are not in the file yet are counted by `unwritten`.
    tail: VecDeque<LogLine>,
    unwritten: usize,
    left_out: usize,
}

impl Log {
    pub(crate) fn new(file: File, masks: Masks) -> Self {
        Self { file, masks, written: 0, tail: VecDeque::new(), unwritten: 0, left_out: 0 }
    }

    pub(crate) fn line(&mut self, stream: &str, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        // Before anything is cut: half of a secret would not be found.
        let mut text = self.masks.apply(text.trim_end());
        text.truncate(text.floor_char_boundary(LINE_BYTES));
        let line = LogLine {
            time: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true),
            stream: stream.to_owned(),
            text,
        };
        if self.written + line.text.len() <= LIMIT_BYTES && self.unwritten == 0 {
            self.written += line.text.len() + 1;
            self.put(&line)?;
        } else {
            self.unwritten += 1;
        }
        self.tail.push_back(line);
        if self.tail.len() > TAIL_LINES {
            self.tail.pop_front();
            if self.unwritten > self.tail.len() {
                self.unwritten -= 1;
                self.left_out += 1;
            }
        }
        Ok(())
    }

    fn put(&mut self, line: &LogLine) -> io::Result<()> {
        let mut json = serde_json::to_vec(line)?;
        json.push(b'\n');
        self.file.write_all(&json)
    }

    /// Writes the last lines of a log that went past its limit, and how many are missing before them.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let start = self.tail.len() - self.unwritten;
        let rest: Vec<_> = self.tail.range(start..).cloned().collect();
        self.unwritten = 0;
        if self.left_out > 0
            && let Some(first) = rest.first()
        {
            let text = format!("… {} lines left out", std::mem::take(&mut self.left_out));
            self.put(&LogLine { text, ..first.clone() })?;
        }
        rest.iter().try_for_each(|line| self.put(line))?;
        match self.file.sync_data() {
            // What is no file of a disk's, such as a pipe.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => other,
        }
    }

    /// What of the last lines tells best why an installer failed.
    pub(crate) fn reason(&self) -> String {
        let texts: Vec<_> = self.tail.iter().map(|line| line.text.trim()).collect();
        reason(&texts)
    }
}

/// Reads a build's log back. Lines that cannot be read (a host that was killed while it wrote one) are left out.
///
/// # Errors
/// When the file cannot be read; one that is not there is an empty log.
pub fn read_log(path: &Path) -> io::Result<Vec<LogLine>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut lines = Vec::new();
    for line in BufReader::new(file.take(64 << 20)).split(b'\n') {
        lines.extend(serde_json::from_slice(&line?));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_keeps_its_beginning_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::new(File::create(&path).unwrap(), Masks::default());
        for n in 0..200_000 {
            log.line("stdout", format!("line number {n}").as_bytes()).unwrap();
        }
        log.finish().unwrap();
        let lines = read_log(&path).unwrap();
        assert_eq!(lines[0].text, "line number 0");
        assert_eq!(lines[lines.len() - 1].text, "line number 199999");
        let cut = lines.iter().position(|line| line.text.starts_with('…')).unwrap();
        assert_eq!(lines.len() - cut - 1, TAIL_LINES);
        let missing: usize = lines[cut].text.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(missing + lines.len() - 1, 200_000);
    }
}
