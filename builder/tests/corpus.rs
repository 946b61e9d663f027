//! The archives of `corpus/`, each with what has to be answered to it; `corpus/make.py` writes them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sless_builder::{IntakeError, Limits, candidates, inspect, unpack};

#[derive(Deserialize)]
struct Case {
    file: String,
    why: String,
    #[serde(default = "python")]
    runtime: String,
    #[serde(default = "handle")]
    entrypoint: String,
    /// A part of the message; empty: any.
    refused: Option<String>,
    files: Option<usize>,
    content_sha256: Option<String>,
}

fn python() -> String {
    "python3.11".to_owned()
}

fn handle() -> String {
    "handler.handle".to_owned()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&fs::read(folder().join("cases.json")).unwrap()).unwrap()
}

/// What is wrong with the answer to `case`, if anything.
fn judge(case: &Case) -> Result<(), String> {
    let path = folder().join(&case.file);
    let handlers = candidates(&case.runtime.parse().unwrap(), &case.entrypoint.parse().unwrap());
    let seen = inspect(File::open(&path).unwrap(), &handlers, &Limits::default());
    let place = tempfile::tempdir().unwrap();
    let code = place.path().join("code");
    let unpacked = unpack(File::open(&path).unwrap(), &code, &handlers, &Limits::default());
    match (&case.refused, seen) {
        (None, Ok(contents)) => {
            let hash = Some(contents.content_sha256.to_string());
            if (Some(contents.files), &hash) != (case.files, &case.content_sha256) {
                return Err(format!("it holds {} files with {hash:?}", contents.files));
            }
            unpacked.map_err(|e| format!("it was not unpacked: {e}"))?;
        }
        (Some(part), Err(error)) => {
            let message = error.to_string();
            if !error.is_the_senders() || matches!(error, IntakeError::Io(_)) {
                return Err(format!("this is told as a fault of this machine: {message}"));
            }
            if !message.contains(part) || message.contains(|c: char| c.is_control()) {
                return Err(format!("it was refused with {message:?}"));
            }
            if unpacked.is_ok() || code.exists() {
                return Err("it was unpacked though it is refused".to_owned());
            }
        }
        (None, Err(error)) => return Err(format!("it was refused: {error}")),
        (Some(_), Ok(contents)) => return Err(format!("it was taken: {contents:?}")),
    }
    // Nothing may have been written beside the folder, whatever the names say.
    let written: Vec<_> =
        fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    if written.iter().all(|name| name == "code") { Ok(()) } else { Err(format!("{written:?} was written")) }
}

#[test]
fn each_archive_is_answered_as_its_case_says() {
    let wrong: Vec<String> = cases()
        .iter()
        .filter_map(|case| judge(case).err().map(|why| format!("{} ({}): {why}", case.file, case.why)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_archive_has_a_case_and_each_case_an_archive() {
    let named: BTreeSet<String> = cases().into_iter().map(|case| case.file).collect();
    let there =
        fs::read_dir(folder()).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let there: BTreeSet<String> = there.filter(|name| name.ends_with(".zip")).collect();
    assert_eq!(named, there);
}
