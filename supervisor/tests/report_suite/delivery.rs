//! Records reach the API, whatever it answers.

use std::time::{Duration, Instant};

use crate::sink::*;
use sless_protocol::event::News;
use sless_supervisor::report::Reporter;

#[test]
fn a_call_is_told_in_order_over_tcp_and_over_a_unix_socket() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        for sink in [Sink::tcp().await, Sink::unix(folder.path().join("socket")).await] {
            let reporter =
                Reporter::start(config(&sink.address(), Some(folder.path().join("spool"))), console());
            let mut record = open(&reporter, "a", b"{}");
            record.stdout(b"one\ntwo");
            record.stderr(b"err\n");
            record.finish(&finished(b"{\"r\":1}"));
            assert!(reporter.flush(Duration::from_secs(10)).await);
            let events = sink.events();
            assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(sink.logs("a"), ["one", "err", "two"]);
            let News::Finished(f) = &events[2].news else { panic!("{events:?}") };
            assert_eq!((f.log_bytes, f.log_dropped_bytes, f.duration_ms), (11, 0, 1.5));
            let counts = reporter.counts();
            assert_eq!(
                (counts.events.delivered, counts.spool_bytes, counts.stdout_bytes, counts.stderr_bytes),
                (3, 0, 7, 4)
            );
            reporter.close();
        }
    });
}

#[test]
fn lines_arrive_while_the_call_runs() {
    local(async {
        let sink = Sink::tcp().await;
        let reporter = Reporter::start(config(&sink.address(), None), console());
        let mut record = open(&reporter, "a", b"");
        let began = Instant::now();
        record.stdout(b"started\n");
        until("the line is there", || sink.logs("a") == ["started"]).await;
        assert!(began.elapsed() < Duration::from_secs(2));
        record.finish(&finished(b""));
        until("the end is there", || sink.finished() == ["a"]).await;
    });
}

#[test]
fn records_wait_for_an_api_that_is_away_and_come_in_order() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        for spool in [None, Some(folder.path().to_owned())] {
            let sink = Sink::tcp().await;
            sink.set_down(true);
            let reporter = Reporter::start(config(&sink.address(), spool), console());
            let ids: Vec<_> = (0..2_000).map(|n| format!("call-{n}")).collect();
            for id in &ids {
                call(&reporter, id, b"line\n", &[b'x'; 500]);
            }
            until("an attempt failed", || reporter.counts().events.retried > 0).await;
            assert!(sink.events().is_empty());
            sink.set_down(false);
            assert!(reporter.flush(Duration::from_secs(20)).await);
            assert_eq!(sink.finished(), ids);
            assert_eq!(reporter.counts().events.delivered, 6_000);
            assert!(sink.batches().iter().all(|b| *b <= 256 * 1024));
            reporter.close();
        }
    });
}

#[test]
fn a_batch_that_is_too_large_is_halved_and_an_event_that_is_too_large_loses_its_text() {
    local(async {
        let sink = Sink::tcp().await;
        sink.set_down(true);
        let reporter = Reporter::start(config(&sink.address(), None), console());
        for n in 0..50 {
            call(&reporter, &format!("call-{n}"), b"", if n == 20 { &[b'x'; 60_000] } else { b"small" });
        }
        sink.set_max_body(Some(2_000));
        sink.set_down(false);
        assert!(reporter.flush(Duration::from_secs(20)).await);
        assert_eq!(sink.finished().len(), 50);
        let events = sink.events();
        let large = events.iter().find(|e| e.invocation_id == "call-20" && e.seq == 1).unwrap();
        let News::Finished(f) = &large.news else { panic!("{large:?}") };
        let result = f.result.as_ref().unwrap();
        assert_eq!(
            (result.size, result.body.text.as_deref(), result.body.truncated),
            (60_000, Some(""), true)
        );
        assert_eq!(reporter.counts().events.lost, 0);

        sink.set_max_body(Some(300));
        call(&reporter, "log", &[b'l'; 5_000], b"");
        sink.set_max_body(Some(400));
        assert!(reporter.flush(Duration::from_secs(20)).await);
        let counts = reporter.counts().events;
        assert!(sink.logs("log").is_empty(), "{counts:?}");
        let events = sink.events();
        let News::Finished(f) = &events.last().unwrap().news else { panic!("{events:?}") };
        assert_eq!((f.log_bytes, f.log_dropped_bytes), (0, 5_000));
    });
}

#[test]
fn the_token_is_read_anew_after_a_401_and_each_time() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, " first\n").unwrap();
        let sink = Sink::tcp().await;
        sink.set_wanted_token("second");
        let mut config = config(&sink.address(), None);
        config.token_file = Some(token.clone());
        let reporter = Reporter::start(config, console());
        call(&reporter, "a", b"", b"");
        until("the first token is refused", || reporter.counts().events.retried > 0).await;
        std::fs::write(folder.path().join("new"), "second").unwrap();
        std::fs::rename(folder.path().join("new"), &token).unwrap();
        assert!(reporter.flush(Duration::from_secs(20)).await);
        assert_eq!(
            (sink.finished(), sink.tokens()),
            (vec!["a".to_owned()], vec!["Bearer second".to_owned()])
        );
    });
}

#[test]
fn refused_lines_are_counted_and_block_nothing() {
    local(async {
        let sink = Sink::tcp().await;
        sink.set_refused(1);
        let reporter = Reporter::start(config(&sink.address(), None), console());
        call(&reporter, "a", b"", b"");
        assert!(reporter.flush(Duration::from_secs(10)).await);
        let events = reporter.counts().events;
        assert_eq!((events.delivered, events.refused), (1, 1));
    });
}

#[test]
fn a_slow_api_gets_fuller_batches() {
    local(async {
        let sink = Sink::tcp().await;
        sink.set_delay(Duration::from_millis(200));
        let reporter = Reporter::start(config(&sink.address(), None), console());
        for n in 0..100 {
            call(&reporter, &format!("call-{n}"), b"", b"");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(reporter.flush(Duration::from_secs(20)).await);
        assert!(sink.batches().len() <= 6, "{:?}", sink.batches());
    });
}

#[test]
fn flush_gives_up_at_its_limit() {
    local(async {
        let sink = Sink::tcp().await;
        sink.set_down(true);
        let reporter = Reporter::start(config(&sink.address(), None), console());
        assert!(reporter.flush(Duration::ZERO).await, "nothing waits");
        call(&reporter, "a", b"", b"");
        assert!(!reporter.flush(Duration::ZERO).await);
        let began = Instant::now();
        assert!(!reporter.flush(Duration::from_millis(300)).await);
        assert!(began.elapsed() < Duration::from_secs(2));
    });
}
