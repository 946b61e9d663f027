//! Stands for the API: takes batches of records at once, so that what is measured is the sender.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::http;

#[derive(Debug, Default)]
struct Counts {
    batches: AtomicU64,
    bytes: AtomicU64,
    finished: AtomicU64,
}

/// An empty body asks for the counts; any other one is a batch of events, a line each.
pub async fn run(port: &str) -> io::Result<()> {
    let counts = Arc::new(Counts::default());
    http::serve(port, move |body| {
        let counts = Arc::clone(&counts);
        async move {
            if body.is_empty() {
                let [batches, bytes, finished] = [&counts.batches, &counts.bytes, &counts.finished].map(|count| count.load(Relaxed));
                return Some(Bytes::from(format!(r#"{{"batches":{batches},"bytes":{bytes},"finished":{finished}}}"#)));
            }
            counts.batches.fetch_add(1, Relaxed);
            counts.bytes.fetch_add(body.len() as u64, Relaxed);
            counts.finished.fetch_add(finished(&body), Relaxed);
            Some(Bytes::from_static(b"{}"))
        }
    })
    .await
}

/// How many lines are `finished` events. The type stands in the first part of a line, before any text of the handler's.
fn finished(body: &[u8]) -> u64 {
    const KEY: &[u8] = br#""type":"finished""#;
    let lines = body.split(|byte| *byte == b'\n');
    lines.filter(|line| line[..line.len().min(256)].windows(KEY.len()).any(|part| part == KEY)).count() as u64
}
