//! What goes to standard output. A reader that goes away (`| head`) ends the command quietly.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::error::CliError;

/// Writes `bytes` as they are.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(source) => Err(CliError::File { action: "write to", path: "standard output".into(), source }),
        Ok(()) => Ok(()),
    }
}

/// A line on standard error. Nobody reading it is no reason to end: `eprintln!` would panic.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// How far something is, for somebody who watches; programs that read our errors are not bothered with it.
pub(crate) fn progress(text: &str) {
    if io::stderr().is_terminal() {
        note(text);
    }
}

pub(crate) fn line(text: &str) -> Result<(), CliError> {
    raw(format!("{text}\n").as_bytes())
}

pub(crate) fn json(value: &Value) -> Result<(), CliError> {
    line(&format!("{value:#}"))
}

/// Columns as wide as their longest cell; the last one is not filled up.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), CliError> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|h| h.len())).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<_> = head.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut shown = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            shown.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    raw(text.as_bytes())
}

/// A field of an object as a cell: `-` for what is not there.
pub(crate) fn cell(item: &Value, field: &str) -> String {
    match item.get(field) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}
