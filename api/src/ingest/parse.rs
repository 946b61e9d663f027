//! Reads a batch: one event a line, those of an attempt merged.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use sless_protocol::event::{Status, VERSION};
use uuid::Uuid;

use crate::store::{Attempt, Batch, Finished, LogLines, Started};
use sless_backend::Moment;

/// What a batch holds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) batch: Batch,
    /// Lines that were understood.
    pub(crate) taken: u64,
    /// Lines that were not.
    pub(crate) refused: u64,
}

/// An event as it comes. Bodies stay as they are: they are kept and given back, not looked into.
#[derive(Deserialize)]
struct Line<'a> {
    v: u32,
    #[serde(borrow)]
    invocation_id: Cow<'a, str>,
    seq: u32,
    attempt: u32,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    revision: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    trigger: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    path: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pod: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
    #[serde(borrow, default)]
    lines: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<Status>,
    http_status: Option<u16>,
    duration_ms: Option<f64>,
    queue_ms: Option<f64>,
    init_ms: Option<f64>,
    cpu_ms: Option<f64>,
    max_rss_bytes: Option<u64>,
    #[serde(default)]
    log_bytes: u64,
    #[serde(default)]
    log_dropped_bytes: u64,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Reads all lines; those that can't be read are counted. Of two `started` or two `finished` of an attempt the first counts, but
/// any `finished` replaces one that is `lost`.
pub(crate) fn parse(body: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut known: HashMap<(Uuid, u32), usize> = HashMap::new();
    for line in body.split(|b| *b == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace)) {
        match take(line, &mut parsed.batch, &mut known) {
            Some(()) => parsed.taken += 1,
            None => parsed.refused += 1,
        }
    }
    parsed
}

fn take(line: &[u8], batch: &mut Batch, known: &mut HashMap<(Uuid, u32), usize>) -> Option<()> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    // Older ones are understood for good: who sends them may have been away for long. A newer one's may mean something else.
    if !(1..=VERSION).contains(&line.v) || line.attempt == 0 {
        return None;
    }
    let id = Uuid::try_parse(&line.invocation_id).ok()?;
    let attempt = line.attempt;
    match &*line.kind {
        "started" => {
            let at = Moment::parse(line.time.as_deref()?)?;
            let started = Started {
                at,
                revision: line.revision?.into_owned(),
                trigger: line.trigger?.into_owned(),
                method: line.method.unwrap_or_default().into_owned(),
                path: line.path.unwrap_or_default().into_owned(),
                pod: line.pod.unwrap_or_default().into_owned(),
                request: text(line.request),
            };
            let row = row(batch, known, id, attempt, at)?;
            row.started.get_or_insert(started);
        }
        "log" => {
            let lines = line.lines.map(RawValue::get).filter(|lines| lines.starts_with('['))?.to_owned();
            // Lines are shown, and removed, with their record: so they have one, also if its `started` never comes.
            if !known.contains_key(&(id, attempt)) {
                row(batch, known, id, attempt, first_time(&lines).or_else(|| made_at(&id))?)?;
            }
            batch.logs.push(LogLines { id, attempt, seq: line.seq, lines });
        }
        "finished" => {
            let at = Moment::parse(line.time.as_deref()?)?;
            let status = line.status?;
            let duration_ms = line.duration_ms.unwrap_or_default();
            let finished = Finished {
                at,
                status: status.as_str(),
                http_status: line.http_status,
                duration_ms,
                queue_ms: line.queue_ms,
                init_ms: line.init_ms,
                cpu_ms: line.cpu_ms,
                max_rss_bytes: line.max_rss_bytes.map(clamp),
                log_bytes: clamp(line.log_bytes),
                log_dropped_bytes: clamp(line.log_dropped_bytes),
                result: text(line.result),
                error: text(line.error),
            };
            // Until its `started` is here, the record begins when this says that it did.
            #[expect(
                clippy::cast_possible_truncation,
                reason = "saturates; a duration of 292,000 years is no matter"
            )]
            let began = Moment(at.0.saturating_sub((duration_ms * 1000.0) as i64));
            let row = row(batch, known, id, attempt, began)?;
            if row.finished.as_ref().is_none_or(|f| f.status == Status::Lost.as_str()) {
                row.finished = Some(finished);
            }
        }
        _ => return None,
    }
    Some(())
}

fn row<'b>(
    batch: &'b mut Batch,
    known: &mut HashMap<(Uuid, u32), usize>,
    id: Uuid,
    attempt: u32,
    seen_at: Moment,
) -> Option<&'b mut Attempt> {
    let index = *known.entry((id, attempt)).or_insert_with(|| {
        batch.attempts.push(Attempt { id, attempt, started: None, finished: None, seen_at });
        batch.attempts.len() - 1
    });
    batch.attempts.get_mut(index)
}

/// When the first of these lines was read.
fn first_time(lines: &str) -> Option<Moment> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        time: Cow<'a, str>,
    }
    let lines: Vec<&RawValue> = serde_json::from_str(lines).ok()?;
    let first: Line<'_> = serde_json::from_str(lines.first()?.get()).ok()?;
    Moment::parse(&first.time)
}

/// The time in an id of version 7.
fn made_at(id: &Uuid) -> Option<Moment> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
    micros.checked_add(i64::from(nanos / 1000)).map(Moment)
}

fn text(value: Option<&RawValue>) -> Option<String> {
    value.map(RawValue::get).filter(|text| *text != "null").map(str::to_owned)
}

/// SQLite's integers have a sign.
fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0193a000-0000-7000-8000-000000000001";

    fn started() -> String {
        format!(
            r#"{{"v":1,"invocation_id":"{ID}","seq":0,"type":"started","time":"2026-01-01T00:00:00.000Z","namespace":"other","function":"other","revision":"r1","trigger":"http","attempt":1,"method":"POST","path":"/a\"b","pod":"p","request":{{"raw_query":"","headers":[],"size":3,"text":"a\u0000b","truncated":false}}}}"#
        )
    }

    fn finished(status: &str) -> String {
        format!(
            r#"{{"v":1,"invocation_id":"{ID}","seq":2,"type":"finished","time":"2026-01-01T00:00:01.500Z","attempt":1,"status":"{status}","http_status":200,"duration_ms":1500,"queue_ms":0.02,"init_ms":null,"cpu_ms":1.1,"max_rss_bytes":13107200,"result":{{"text":"\ufffd"}},"error":null,"log_bytes":3,"log_dropped_bytes":0}}"#
        )
    }

    #[test]
    fn the_events_of_an_attempt_become_one_row_in_any_order() {
        for lines in [[started(), finished("success")], [finished("success"), started()]] {
            let parsed = parse(lines.join("\n").as_bytes());
            assert_eq!((parsed.taken, parsed.refused, parsed.batch.attempts.len()), (2, 0, 1));
            let row = &parsed.batch.attempts[0];
            let (s, f) = (row.started.as_ref().unwrap(), row.finished.as_ref().unwrap());
            assert_eq!(
                (s.revision.as_str(), s.path.as_str(), f.status, f.http_status),
                ("r1", "/a\"b", "success", Some(200))
            );
            assert!(s.request.as_ref().unwrap().contains(r"a\u0000b"), "kept as it came");
            assert_eq!((f.result.as_deref(), f.error.as_deref()), (Some(r#"{"text":"\ufffd"}"#), None));
            assert_eq!(row.seen_at.rfc3339(), "2026-01-01T00:00:00.000000Z");
        }
    }

    #[test]
    fn the_first_end_counts_unless_it_is_lost() {
        let end = |statuses: &[&str]| {
            let lines: Vec<_> = statuses.iter().map(|s| finished(s)).collect();
            parse(lines.join("\n").as_bytes()).batch.attempts[0].finished.as_ref().unwrap().status
        };
        assert_eq!(end(&["timeout", "success"]), "timeout");
        assert_eq!(end(&["lost", "success", "error"]), "success");
    }

    #[test]
    fn a_bad_line_is_counted_and_blocks_nothing() {
        let log = format!(
            r#"{{"v":1,"invocation_id":"{ID}","seq":1,"type":"log","attempt":1,"lines":[{{"text":"hi"}}]}}"#
        );
        let bad = [
            "{",
            "[]",
            "\u{fffd}",
            r#"{"v":1}"#,
            &log.replace("\"v\":1", "\"v\":2"),
            &log.replace(ID, "x"),
            &log.replace("[{", "{").replace("}]", "}"),
            &log.replace("\"log\"", "\"news\""),
            &log.replace("\"attempt\":1", "\"attempt\":0"),
            &started().replace("2026-01-01T", "then "),
            &finished("splendid"),
        ];
        let body = format!("{}\n\n{log}\r\n{}\n", bad.join("\n"), started());
        let parsed = parse(body.as_bytes());
        assert_eq!((parsed.taken, parsed.refused), (2, bad.len() as u64));
        assert_eq!(parsed.batch.logs[0].lines, r#"[{"text":"hi"}]"#);
    }

    #[test]
    fn lines_alone_make_a_row_that_begins_with_the_first_of_them() {
        let log = |lines: &str| {
            format!(r#"{{"v":1,"invocation_id":"{ID}","seq":1,"type":"log","attempt":2,"lines":{lines}}}"#)
        };
        let begun = |lines: &str| {
            let parsed = parse(log(lines).as_bytes());
            assert_eq!((parsed.taken, parsed.batch.logs.len(), parsed.batch.attempts.len()), (1, 1, 1));
            let row = &parsed.batch.attempts[0];
            assert_eq!((row.attempt, row.started.is_some(), row.finished.is_some()), (2, false, false));
            row.seen_at.rfc3339()
        };
        let line = r#"{"time":"2026-01-01T00:00:00.5Z","stream":"stdout","text":"a"}"#;
        assert_eq!(begun(&format!("[{line},{{}}]")), "2026-01-01T00:00:00.500000Z");
        for without in ["[]", "[{}]", "[1]"] {
            assert!(begun(without).starts_with("2024-12-"), "then the id's: {}", begun(without));
        }
        let parsed =
            parse([log("[]"), started().replace("\"attempt\":1", "\"attempt\":2")].join("\n").as_bytes());
        assert_eq!(parsed.batch.attempts.len(), 1);
        assert!(parsed.batch.attempts[0].started.is_some());
    }

    proptest! {
        #[test]
        fn every_line_is_either_taken_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let lines = body.split(|b| *b == b'\n').filter(|l| !l.iter().all(u8::is_ascii_whitespace)).count() as u64;
            let parsed = parse(&body);
            prop_assert_eq!(parsed.taken + parsed.refused, lines);
        }
    }
}
