//! An archive of any bytes is either refused or unpacks into its folder, as the same content.
#![no_main]

use std::fs;
use std::io::Cursor;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sless_builder::{Limits, candidates, inspect, unpack};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { total_bytes: 1 << 20, entries: 200, ratio: 20, free_bytes: 1 << 16 };
    let (Ok(runtime), Ok(entrypoint)) = ("python3.11".parse(), "handler.handle".parse()) else { return };
    // An archive without a handler is taken, too: what comes after the look for it is to be reached.
    for handlers in [candidates(&runtime, &entrypoint), Vec::new()] {
        let Ok(contents) = inspect(Cursor::new(bytes), &handlers, &limits) else { continue };
        assert!(contents.size_bytes <= limits.total_bytes && contents.files <= limits.entries);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("code");
        let unpacked = unpack(Cursor::new(bytes), &target, &handlers, &limits).expect("it was inspected");
        assert_eq!(unpacked, contents);
        assert_eq!(count(&target), contents.files);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing lies beside it");
    }
});

fn count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("a folder");
    let of = |entry: fs::DirEntry| {
        let kind = entry.file_type().expect("a kind");
        assert!(kind.is_file() || kind.is_dir());
        if kind.is_dir() { count(&entry.path()) } else { 1 }
    };
    entries.map(|entry| of(entry.expect("an entry"))).sum()
}
