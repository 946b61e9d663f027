//! The transcripts in `testdata/`: the codec makes `NAME.supervisor.bin` and `NAME.worker.bin` from `NAME.json`
//! and reads them back. `SLESS_BLESS=1` writes the `.bin` files anew; the shims' own tests run against the same files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::path::{Path, PathBuf};

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;
use sless_protocol::frame::{Decoder, EventKind, FromWorker, ToWorker, Usage};
use sless_protocol::handshake::{Hello, Raised, Ready};

#[derive(Deserialize)]
struct Transcript {
    frames: Vec<Frame>,
}

/// One frame; what a kind does not have is absent. Fields for one runtime alone are not looked at here.
#[derive(Deserialize)]
struct Frame {
    from: String,
    kind: String,
    call: u32,
    event: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    pair: u16,
    #[serde(default)]
    status: u16,
    head: Option<Box<RawValue>>,
    body: Option<String>,
    body_base64: Option<String>,
}

impl Frame {
    /// The head without the spaces between its tokens, keys in their order.
    fn head(&self) -> Bytes {
        let raw = self.head.as_ref().unwrap_or_else(|| panic!("{} needs a head", self.kind)).get();
        let (mut out, mut quoted, mut escaped) = (String::with_capacity(raw.len()), false, false);
        for c in raw.chars() {
            if quoted || !c.is_ascii_whitespace() {
                out.push(c);
            }
            quoted ^= c == '"' && !escaped;
            escaped = quoted && c == '\\' && !escaped;
        }
        out.into()
    }

    fn body(&self) -> Bytes {
        match (&self.body, &self.body_base64) {
            (Some(text), None) => text.clone().into(),
            (None, Some(text)) => base64::prelude::BASE64_STANDARD.decode(text).unwrap().into(),
            _ => panic!("{} needs either body or body_base64", self.kind),
        }
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|f| f == name)
    }

    fn usage(&self) -> Usage {
        Usage { spawned: self.flag("spawned"), retire: self.flag("retire"), ..Usage::default() }
    }

    fn supervisor_frame(&self) -> ToWorker {
        let call = self.call;
        match self.kind.as_str() {
            "HELLO" => ToWorker::Hello { head: self.head() },
            "INVOKE" => ToWorker::Invoke {
                call,
                event: match self.event.as_deref() {
                    Some("json") => EventKind::Json,
                    Some("form") => EventKind::Form,
                    Some("text") => EventKind::Text,
                    Some("bytes") => EventKind::Bytes,
                    Some("query") => EventKind::Query,
                    other => panic!("unknown event kind {other:?}"),
                },
                waiting: self.flag("waiting"),
                pair: self.pair,
                head: self.head(),
                body: self.body(),
            },
            "GO" => ToWorker::Go { call, pair: self.pair },
            other => panic!("the supervisor sends no {other}"),
        }
    }

    fn worker_frame(&self) -> FromWorker {
        let (call, usage, status) = (self.call, self.usage(), self.status);
        match self.kind.as_str() {
            "READY" => FromWorker::Ready { head: self.head() },
            "INIT_FAILED" => FromWorker::InitFailed { head: self.head() },
            "RESULT" => FromWorker::Result { call, usage, status, head: self.head(), body: self.body() },
            "STREAM" => FromWorker::Stream { call, status, head: self.head() },
            "CHUNK" => FromWorker::Chunk { call, data: self.body() },
            "END" => FromWorker::End { call, usage },
            "ERROR" => FromWorker::Error { call, usage, head: self.head() },
            "SKIPPED" => FromWorker::Skipped { call, usage },
            "WAIT" => FromWorker::Wait { call },
            other => panic!("a worker sends no {other}"),
        }
    }
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn transcripts() -> Vec<(String, Transcript)> {
    let mut found: Vec<_> = std::fs::read_dir(testdata())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let parsed = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}.json: {e}"));
            (name, parsed)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 7, "only {} transcripts in {}", found.len(), testdata().display());
    found
}

fn compare_or_bless(name: &str, made: &[u8]) {
    let path = testdata().join(name);
    if std::env::var_os("SLESS_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}; SLESS_BLESS=1 writes it"));
    assert!(kept == made, "{name} is not what the codec makes of its .json; SLESS_BLESS=1 writes it anew");
}

#[test]
fn each_transcript_is_what_the_codec_makes_and_reads() {
    for (name, transcript) in transcripts() {
        let (mut down, mut up) = (BytesMut::new(), BytesMut::new());
        let (mut sent, mut answered) = (Vec::new(), Vec::new());
        for frame in &transcript.frames {
            match frame.from.as_str() {
                "supervisor" => {
                    sent.push(frame.supervisor_frame());
                    sent.last().unwrap().encode(&mut down);
                }
                "worker" => {
                    answered.push(frame.worker_frame());
                    answered.last().unwrap().encode(&mut up);
                }
                other => panic!("{name}: a frame is from supervisor or worker, not {other}"),
            }
        }
        compare_or_bless(&format!("{name}.supervisor.bin"), &down);
        compare_or_bless(&format!("{name}.worker.bin"), &up);

        let read: Vec<_> = std::iter::from_fn(|| ToWorker::decode(&mut down).unwrap()).collect();
        assert_eq!(read, sent, "{name}");
        let mut decoder = Decoder::new(1 << 20);
        let read: Vec<_> = std::iter::from_fn(|| decoder.decode(&mut up).unwrap()).collect();
        assert_eq!(read, answered, "{name}");
        assert!(down.is_empty() && up.is_empty(), "{name}: bytes are left over");
    }
}

#[test]
fn heads_are_what_the_handshake_types_say() {
    for (name, transcript) in transcripts() {
        for frame in &transcript.frames {
            let head = || frame.head();
            let checked = match frame.kind.as_str() {
                "HELLO" => serde_json::from_slice::<Hello>(&head()).map(|_| ()),
                "READY" => serde_json::from_slice::<Ready>(&head()).map(|_| ()),
                "INIT_FAILED" | "ERROR" => serde_json::from_slice::<Raised>(&head()).map(|_| ()),
                "RESULT" | "STREAM" => serde_json::from_slice::<Vec<(String, String)>>(&head()).map(|_| ()),
                _ => Ok(()),
            };
            checked.unwrap_or_else(|e| panic!("{name}: head of {}: {e}", frame.kind));
        }
    }
}
