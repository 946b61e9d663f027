//! Archives that people and attackers send.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[allow(dead_code, reason = "each test file uses what it needs of it")]
mod support;

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::PermissionsExt;

use sless_builder::{Contents, IntakeError, Limits, NameProblem, candidates, inspect, unpack};
use sless_core::Entrypoint;
use support::{Entry, file, pack};

fn handlers() -> Vec<String> {
    candidates(&"python3.11".parse().unwrap(), &Entrypoint::default())
}

fn look(zip: &[u8]) -> Result<Contents, IntakeError> {
    inspect(Cursor::new(zip), &handlers(), &Limits::default())
}

fn refused(entries: &[Entry<'_>]) -> IntakeError {
    look(&pack(entries)).unwrap_err()
}

fn unpacked(zip: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let handlers = handlers();
    unpack(Cursor::new(zip), &folder.path().join("code"), &handlers, &Limits::default()).unwrap();
    folder
}

fn mode(folder: &tempfile::TempDir, path: &str) -> u32 {
    fs::metadata(folder.path().join("code").join(path)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn odd_archives_are_put_right() {
    let plain = look(&pack(&[file("handler.py", "x = 1"), file("lib/util.py", "y")])).unwrap();
    assert_eq!((plain.files, plain.size_bytes), (2, 6));
    let same = [
        pack(&[
            file("project/", ""),
            file("project/lib/util.py", "y"),
            file("project/handler.py", "x = 1"),
            file("__MACOSX/project/._handler.py", "\0"),
        ]),
        pack(&[
            file("./handler.py", "x = 1"),
            file("lib\\util.py", "y"),
            file("empty/", ""),
            file(".git/HEAD", "z"),
            file("lib/.DS_Store", "z"),
        ]),
        pack(&[
            Entry { mode: 0, ..file("handler.py", "x = 1") },
            Entry { mode: 0o100_600, ..file("lib/util.py", "y") },
        ]),
    ];
    for zip in same {
        assert_eq!(look(&zip).unwrap(), plain);
        let folder = unpacked(&zip);
        assert_eq!(fs::read(folder.path().join("code/handler.py")).unwrap(), b"x = 1");
        assert_eq!(fs::read(folder.path().join("code/lib/util.py")).unwrap(), b"y");
        assert_eq!(
            (mode(&folder, ""), mode(&folder, "lib"), mode(&folder, "handler.py")),
            (0o755, 0o755, 0o644)
        );
    }
}

#[test]
fn the_content_hash_is_that_of_its_documentation() {
    use sha2::{Digest, Sha256};
    let of = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let zip = pack(&[file("handler.py", "x"), Entry { mode: 0o100_755, ..file("a/run", "y") }]);
    let listing = format!("a/run\0x\0{}\nhandler.py\0-\0{}\n", of(b"y"), of(b"x"));
    assert_eq!(look(&zip).unwrap().content_sha256.to_string(), of(listing.as_bytes()));
}

#[test]
fn executable_files_stay_so_and_lost_bits_are_guessed_from_the_content() {
    let zip = pack(&[
        file("handler.py", "#!/usr/bin/env python3"),
        Entry { mode: 0o100_700, ..file("kept", "x") },
        Entry { mode: 0, ..file("script", "#!/bin/sh") },
        Entry { mode: 0, ..file("elf", "\x7fELF…") },
        Entry { mode: 0, ..file("text", "plain") },
    ]);
    let folder = unpacked(&zip);
    let modes = ["handler.py", "kept", "script", "elf", "text"].map(|name| mode(&folder, name));
    assert_eq!(modes, [0o644, 0o755, 0o755, 0o755, 0o644]);
}

#[test]
fn names_that_lead_elsewhere_are_refused_by_name() {
    for (name, problem) in [
        ("../handler.py", NameProblem::Escapes),
        ("a\\..\\..\\up.py", NameProblem::Escapes),
        ("/etc/x", NameProblem::Absolute),
        ("C:\\x.py", NameProblem::Drive),
        (".sless/python/six.py", NameProblem::Reserved),
    ] {
        let error = refused(&[file("handler.py", "x"), file(name, "x")]);
        assert!(matches!(&error, IntakeError::Name { problem: p, .. } if *p == problem), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn only_files_and_folders_are_taken() {
    for (mode, kind) in [
        (0o120_777, "link"),
        (0o020_666, "device"),
        (0o060_666, "device"),
        (0o010_666, "pipe"),
        (0o140_666, "socket"),
    ] {
        let error = refused(&[file("handler.py", "x"), Entry { mode, ..file("odd", "/etc/passwd") }]);
        assert!(matches!(&error, IntakeError::Special { .. }) && error.to_string().contains(kind), "{error}");
    }
}

#[test]
fn two_entries_for_one_path_are_refused() {
    for second in ["handler.py", "./handler.py", ".\\handler.py"] {
        let error = refused(&[file("handler.py", "x"), file(second, "y")]);
        // The zip reader names the second of two equal raw names only by the count.
        assert!(matches!(error, IntakeError::Duplicate { .. } | IntakeError::Twice), "{error}");
    }
    let error = refused(&[file("handler.py", "x"), file("lib", "x"), file("lib/a.py", "y")]);
    assert!(matches!(&error, IntakeError::Conflict { name } if name == "lib"), "{error}");
}

#[test]
fn a_missing_handler_says_where_one_was_found() {
    assert!(matches!(look(&pack(&[])).unwrap_err(), IntakeError::Empty));
    assert!(matches!(refused(&[file("sub/", "")]), IntakeError::Empty));
    let nowhere = refused(&[file("main.py", "x")]).to_string();
    assert!(nowhere.contains("looked for handler.py"), "{nowhere}");
    let both = refused(&[file("a/handler.py", "x"), file("b/handler.py", "x")]).to_string();
    assert!(both.contains("`a/handler.py` and `b/handler.py`"), "{both}");
}

#[test]
fn what_is_no_zip_is_said_to_be_none() {
    let whole = pack(&[file("handler.py", "x")]);
    for junk in [&b""[..], b"not a zip", &whole[..whole.len() - 30], &whole[..20]] {
        assert!(matches!(look(junk), Err(IntakeError::NotAZip(_))), "{:?}", look(junk));
    }
    let mut damaged = whole.clone();
    damaged[30 + "handler.py".len()] ^= 1;
    assert!(matches!(look(&damaged), Err(IntakeError::Corrupt { .. })), "{:?}", look(&damaged));
}

#[test]
fn headers_that_lie_about_lengths_are_not_believed() {
    let error = look(&pack(&[Entry { claimed: 100_000, ..file("handler.py", "x") }]));
    assert!(error.is_err() || error.unwrap().size_bytes == 1);
}

#[test]
fn bombs_are_stopped_while_they_are_read() {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for name in ["handler.py", "zeros"] {
        zip.start_file(name, options).unwrap();
        for _ in 0..if name == "zeros" { 96 } else { 0 } {
            zip.write_all(&vec![0; 1 << 20]).unwrap();
        }
    }
    let bomb = zip.finish().unwrap().into_inner();
    assert!(matches!(look(&bomb), Err(IntakeError::Ratio { .. })), "{:?}", look(&bomb));
    let handlers = handlers();
    let small = Limits { total_bytes: 1 << 20, ..Limits::default() };
    assert!(matches!(inspect(Cursor::new(&bomb), &handlers, &small), Err(IntakeError::TooLarge { .. })));
    let few = Limits { entries: 1, ..Limits::default() };
    assert!(matches!(inspect(Cursor::new(&bomb), &handlers, &few), Err(IntakeError::TooMany { .. })));

    let folder = tempfile::tempdir().unwrap();
    unpack(Cursor::new(&bomb), &folder.path().join("code"), &handlers, &Limits::default()).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn overlapping_entries_are_refused() {
    let mut zip = pack(&[file("handler.py", "x = 1"), file("b", "x = 1")]);
    // The second entry of the directory is made to point at the first one's data.
    let second = zip.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    zip[second + 42..second + 46].copy_from_slice(&0u32.to_le_bytes());
    assert!(look(&zip).is_err(), "{:?}", look(&zip));
}
