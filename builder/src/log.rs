//! The log of a build: JSON lines, as those of an invocation's log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

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
    written: usize,
    /// The last lines; those of them that are not in the file yet are counted by `unwritten`.
    tail: VecDeque<LogLine>,
    unwritten: usize,
    left_out: usize,
}

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        Ok(Self { file, written: 0, tail: VecDeque::new(), unwritten: 0, left_out: 0 })
    }

    pub(crate) fn line(&mut self, stream: &str, bytes: &[u8]) -> io::Result<()> {
        let bytes = bytes.get(..LINE_BYTES).unwrap_or(bytes);
        let line = LogLine {
            time: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true),
            stream: stream.to_owned(),
            text: String::from_utf8_lossy(bytes).trim_end().to_owned(),
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
        self.file.sync_data()
    }

    /// What of the last lines tells best why an installer failed.
    pub(crate) fn reason(&self) -> String {
        let noise = |text: &str| text.is_empty() || text.contains("A complete log of this run");
        let of_error = |text: &str| {
            ["ERROR:", "error:", "npm error", "npm ERR!"].iter().any(|start| text.starts_with(start))
        };
        let texts = || self.tail.iter().map(|line| line.text.trim()).filter(|text| !noise(text));
        let mut last: Vec<_> = texts().filter(|text| of_error(text)).collect();
        if last.is_empty() {
            last = texts().collect();
        }
        let from = last.len().saturating_sub(4);
        let cut = |text: &&str| text.chars().take(300).collect::<String>();
        last.get(from..).unwrap_or_default().iter().map(cut).collect::<Vec<_>>().join("; ")
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
        let mut log = Log::create(&path).unwrap();
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

    #[test]
    fn the_reason_is_what_the_installer_calls_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::create(&folder.path().join("log")).unwrap();
        for line in
            ["Looking in links", "ERROR: No matching distribution found for six==99", "[notice] a new pip"]
        {
            log.line("stderr", line.as_bytes()).unwrap();
        }
        assert_eq!(log.reason(), "ERROR: No matching distribution found for six==99");
    }
}
