//! Records outlive the supervisor that made them, and a disk without room.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sless_protocol::event::{News, Status};
use sless_supervisor::report::Reporter;

use crate::sink::*;

/// A supervisor's life in a process of its own, to be killed.
fn child(test: &str, spool: &Path, wrap: &[&str]) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut words: Vec<_> = wrap.iter().map(Into::into).collect();
    words.push(this.into_os_string());
    Command::new(&words[0])
        .args(&words[1..])
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("REPORT_SPOOL", spool)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for(child: &mut Child, word: &str) {
    let out = child.stdout.take().unwrap();
    assert!(
        BufReader::new(out).lines().any(|line| line.unwrap().contains(word)),
        "the child did not say {word}"
    );
}

fn spool_of_child() -> std::path::PathBuf {
    std::env::var_os("REPORT_SPOOL").unwrap().into()
}

#[test]
#[ignore = "run by a_killed_supervisors_records_are_delivered_and_its_open_calls_ended"]
fn child_that_is_killed() {
    local(async {
        // Nobody listens there.
        let reporter = Reporter::start(config("http://127.0.0.1:9/", Some(spool_of_child())), console());
        for n in 0..20 {
            call(&reporter, &format!("done-{n}"), b"line\n", b"{}");
        }
        let mut open_call = open(&reporter, "open", b"{}");
        open_call.stdout(b"last words\n");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut timed_out = open(&reporter, "timed-out", b"{}");
        let mut info = finished(b"");
        info.status = Status::Timeout;
        timed_out.provisional(&info);
        timed_out.stdout(b"after the limit\n");
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("killme");
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_killed_supervisors_records_are_delivered_and_its_open_calls_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut killed = child("recovery::child_that_is_killed", folder.path(), &[]);
    wait_for(&mut killed, "killme");
    killed.kill().unwrap();
    killed.wait().unwrap();
    // A line that was being written.
    let dir = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mut segment = std::fs::OpenOptions::new().append(true).open(dir.join("000001.ndjson")).unwrap();
    std::io::Write::write_all(&mut segment, b"{\"v\":1,\"invocation_id\":\"torn").unwrap();

    local(async {
        let sink = Sink::tcp().await;
        let reporter = Reporter::start(config(&sink.address(), Some(folder.path().to_owned())), console());
        until("all have ended", || sink.finished().len() == 22).await;
        let ids = sink.finished();
        assert_eq!(ids[..20], (0..20).map(|n| format!("done-{n}")).collect::<Vec<_>>());
        assert_eq!(sink.logs("open"), ["last words"]);
        for (id, wanted) in [("open", Status::Crashed), ("timed-out", Status::Timeout)] {
            let events: Vec<_> = sink.events().into_iter().filter(|e| e.invocation_id == id).collect();
            let seqs: Vec<_> = events.iter().map(|e| e.seq).collect();
            assert_eq!(seqs, (0..u32::try_from(events.len()).unwrap()).collect::<Vec<_>>(), "{id}");
            let News::Finished(f) = &events.last().unwrap().news else { panic!("{events:?}") };
            assert_eq!(f.status, wanted, "{id}");
        }
        assert!(reporter.flush(Duration::from_secs(10)).await);
        until("the folder is gone", || std::fs::read_dir(folder.path()).unwrap().count() == 1).await;
        reporter.close();
        drop(reporter);
    });
}

#[test]
fn a_folder_whose_supervisor_lives_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut alive = child("recovery::child_that_is_killed", folder.path(), &[]);
    wait_for(&mut alive, "killme");
    local(async {
        let sink = Sink::tcp().await;
        let reporter = Reporter::start(config(&sink.address(), Some(folder.path().to_owned())), console());
        call(&reporter, "mine", b"", b"");
        until("mine is there", || sink.finished() == ["mine"]).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(sink.finished(), ["mine"]);
        reporter.close();
    });
    alive.kill().unwrap();
    alive.wait().unwrap();
}

#[test]
fn what_a_supervisor_could_not_deliver_is_the_next_ones() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let sink = Sink::tcp().await;
        sink.set_down(true);
        let first = Reporter::start(config(&sink.address(), Some(folder.path().to_owned())), console());
        for n in 0..10 {
            call(&first, &format!("call-{n}"), b"line\n", b"");
        }
        assert!(!first.flush(Duration::from_millis(50)).await);
        first.close();
        drop(first);
        tokio::time::sleep(Duration::from_millis(10)).await;
        sink.set_down(false);
        let next = Reporter::start(config(&sink.address(), Some(folder.path().to_owned())), console());
        until("all are there", || sink.finished().len() == 10).await;
        assert_eq!(sink.events().len(), 30);
        next.close();
    });
}

#[test]
#[ignore = "run by a_full_disk_slows_no_call_and_loses_no_outcome"]
fn child_on_a_full_disk() {
    local(async {
        let sink = Sink::tcp().await;
        sink.set_down(true);
        let mut config = config(&sink.address(), Some(spool_of_child()));
        config.spool_limit = 32 << 20;
        let reporter = Reporter::start(config, console());
        let began = std::time::Instant::now();
        for n in 0..5_000 {
            call(&reporter, &format!("call-{n}"), b"line\n", &[b'x'; 1_000]);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(reporter.counts().spool_bytes <= 9 << 20);
        sink.set_down(false);
        assert!(reporter.flush(Duration::from_secs(20)).await);
        assert_eq!(sink.finished(), (0..5_000).map(|n| format!("call-{n}")).collect::<Vec<_>>());
        println!("all there");
    });
}

#[test]
fn a_full_disk_slows_no_call_and_loses_no_outcome() {
    let folder = tempfile::tempdir().unwrap();
    // No file may grow past a few KiB: what a write then gets is an error, as on a full disk, for root too.
    let wrap = ["sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"];
    let mut full = child("recovery::child_on_a_full_disk", folder.path(), &wrap);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut full.stdout.take().unwrap(), &mut said).unwrap();
    assert!(full.wait().unwrap().success() && said.contains("all there"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_made_costs_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, []).unwrap();
    local(async {
        let sink = Sink::tcp().await;
        let reporter = Reporter::start(config(&sink.address(), Some(file.join("spool"))), console());
        call(&reporter, "a", b"line\n", b"");
        assert!(reporter.flush(Duration::from_secs(10)).await);
        assert_eq!(sink.finished(), ["a"]);
        reporter.close();
    });
}
