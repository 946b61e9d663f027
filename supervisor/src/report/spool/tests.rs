use super::*;

fn started(id: usize, text: &str) -> Vec<u8> {
    format!("{{\"v\":1,\"invocation_id\":\"{id}\",\"attempt\":1,\"seq\":0,\"type\":\"started\",\"request\":{{\"size\":9,\"text\":\"{text}\",\"truncated\":false}}}}\n").into_bytes()
}

fn log(id: usize, text: &str) -> Vec<u8> {
    format!("{{\"v\":1,\"invocation_id\":\"{id}\",\"attempt\":1,\"seq\":1,\"type\":\"log\",\"lines\":[{{\"text\":\"{text}\"}}]}}\n").into_bytes()
}

fn finished(id: usize, text: &str, kept: usize) -> Vec<u8> {
    format!("{{\"v\":1,\"invocation_id\":\"{id}\",\"attempt\":1,\"seq\":2,\"type\":\"finished\",\"result\":{{\"size\":9,\"text\":\"{text}\",\"truncated\":false}},\"log_bytes\":{kept},\"log_dropped_bytes\":0}}\n").into_bytes()
}

fn end(call: u64) -> Line {
    Line::Finished { call, provisional: false }
}

/// All that is delivered, in order.
fn drain(spool: &mut Spool) -> Vec<serde_json::Value> {
    let mut all = Vec::new();
    while let Some(batch) = spool.next_batch(10_000) {
        all.extend(split(&batch.body).map(|l| serde_json::from_slice::<serde_json::Value>(l).unwrap()));
        spool.delivered(&batch);
    }
    assert_eq!(spool.pending(), 0);
    all
}

fn of<'a>(all: &'a [serde_json::Value], kind: &str) -> Vec<&'a serde_json::Value> {
    all.iter().filter(|e| e["type"] == kind).collect()
}

fn files(base: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for dir in std::fs::read_dir(base).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            names.push(file.unwrap().file_name().into_string().unwrap());
        }
    }
    names.sort();
    names
}

/// `n` calls, each with 100 bytes of log, request and result.
fn calls(spool: &mut Spool, ids: std::ops::Range<usize>) {
    let text = "x".repeat(99);
    for id in ids {
        spool.append(Line::Started(id as u64), &started(id, &text));
        spool.append(Line::Log, &log(id, &text));
        spool.append(end(id as u64), &finished(id, &text, 100));
    }
}

#[test]
fn past_the_limit_log_lines_go_first_then_texts_then_the_oldest_outcomes() {
    for folder in [None, Some(tempfile::tempdir().unwrap())] {
        let base = folder.as_ref().map(|f| f.path().to_owned());
        // About 700 bytes a call with all, 510 without log, 310 without texts.
        let mut spool = Spool::new(base.clone(), 600_000);
        calls(&mut spool, 0..1_000);
        assert!(spool.pending() <= 600_000);
        let all = drain(&mut spool);
        let (logs, ends) = (of(&all, "log"), of(&all, "finished"));
        assert_eq!((ends.len(), spool.lost()), (1_000, 0));
        assert!(!logs.is_empty() && logs.len() < 1_000, "{}", logs.len());
        assert_eq!(logs[0]["invocation_id"], (1_000 - logs.len()).to_string(), "the oldest go first");
        let dropped: u64 = ends.iter().map(|e| e["log_dropped_bytes"].as_u64().unwrap()).sum();
        assert_eq!(dropped, (1_000 - logs.len()) as u64 * 100);
        assert!(
            ends.iter().all(|e| e["result"]["truncated"] == false),
            "no text went while there were log lines"
        );

        let mut spool = Spool::new(base.clone(), 600_000);
        calls(&mut spool, 0..1_400);
        let all = drain(&mut spool);
        let ends = of(&all, "finished");
        assert_eq!((ends.len(), spool.lost()), (1_400, 0));
        let cut = ends.iter().filter(|e| e["result"]["truncated"] == true).count();
        assert!(cut > 0 && ends[..cut].iter().all(|e| e["result"]["text"] == ""), "{cut}");
        assert!(ends[cut..].iter().all(|e| e["result"]["truncated"] == false), "the oldest go first");

        let mut spool = Spool::new(base, 600_000);
        calls(&mut spool, 0..5_000);
        assert!(spool.pending() <= 600_000);
        let all = drain(&mut spool);
        let ends = of(&all, "finished");
        assert!(spool.lost() > 0);
        assert_eq!(ends.len() as u64 + spool.lost(), 5_000);
        let first = 5_000 - ends.len();
        let wanted = (first..5_000).map(|id| id.to_string());
        assert!(ends.iter().map(|e| e["invocation_id"].as_str().unwrap()).eq(wanted), "the newest are left");
        assert!(of(&all, "started").len() >= ends.len());
    }
}

#[test]
fn what_is_on_its_way_is_not_shed() {
    let mut spool = Spool::new(None, 200_000);
    calls(&mut spool, 0..100);
    let batch = spool.next_batch(2_000).unwrap();
    calls(&mut spool, 100..2_000);
    spool.delivered(&batch);
    let mut all: Vec<serde_json::Value> =
        split(&batch.body).map(|l| serde_json::from_slice(l).unwrap()).collect();
    all.extend(drain(&mut spool));
    let ends = of(&all, "finished").len() as u64;
    assert_eq!(ends + spool.lost(), 2_000, "none twice, none forgotten");
}

#[test]
fn a_failed_batch_comes_again_also_after_something_was_shed() {
    let mut spool = Spool::new(None, 200_000);
    calls(&mut spool, 0..100);
    let first = spool.next_batch(2_000).unwrap();
    calls(&mut spool, 100..400);
    spool.failed();
    assert_eq!(spool.next_batch(2_000).unwrap().body, first.body);
    spool.failed();
    drain(&mut spool);
}

#[test]
fn the_started_of_an_open_call_stays_until_its_finished_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::new(Some(folder.path().to_owned()), 1 << 20);
    spool.append(Line::Started(9_999), &started(9_999, "open"));
    for round in 0..20 {
        calls(&mut spool, round * 100..round * 100 + 100);
        drain(&mut spool);
    }
    let held = |folder: &std::path::Path| {
        let mut text = String::new();
        for dir in std::fs::read_dir(folder).unwrap() {
            for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
                text.push_str(&std::fs::read_to_string(file.unwrap().path()).unwrap());
            }
        }
        text
    };
    let text = held(folder.path());
    assert!(text.len() < 100_000, "what is delivered is removed: {}", text.len());
    assert_eq!(text.matches("\"invocation_id\":\"9999\"").count(), 1);
    spool.append(end(9_999), &finished(9_999, "", 0));
    assert!(held(folder.path()).contains("\"type\":\"started\",\"request\":{\"size\":9,\"text\":\"open\""));
    assert_eq!(of(&drain(&mut spool), "finished").len(), 1);
    drop(spool);
    assert_eq!(files(folder.path()), [""; 0], "an empty spool leaves nothing");
}

#[test]
fn a_provisional_end_is_not_delivered() {
    let mut spool = Spool::new(None, 1 << 20);
    spool.append(Line::Started(1), &started(1, ""));
    spool.append(Line::Provisional(1), &[b"~", &finished(1, "provisional", 0)[..]].concat());
    spool.append(Line::Finished { call: 1, provisional: true }, &finished(1, "whole", 0));
    let all = drain(&mut spool);
    assert_eq!((all.len(), &all[1]["result"]["text"]), (2, &"whole".into()));
}
