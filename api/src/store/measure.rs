//! How fast the stores are; the numbers are in `docs/performance.md`. In each database: a million records with their log lines go in,
//! in transactions as the writer makes them, then questions are asked of them.
//!
//! `SLESS_TEST_DATABASE_URL=postgres://… cargo test -p sless-api measure -- --ignored --nocapture --test-threads 1`

use std::time::{Duration, Instant};

use super::suite::{Place, function, in_postgres};
use super::*;

const RECORDS: u64 = 1_000_000;
const FUNCTIONS: u64 = 100;
/// Of one transaction.
const BATCH: u64 = 2000;
const TIMES: u64 = 200;

/// No two questions are for the same, nor do they come in an order.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn at(n: u64) -> Moment {
    Moment(1_760_000_000_000_000 + i64::try_from(n).unwrap() * 100_000)
}

/// As in version 7: the time first, then what is random.
fn id(n: u64) -> Uuid {
    Uuid::from_u64_pair(((at(n).0.unsigned_abs() / 1000) << 16) | 0x7000, (1 << 63) | scattered(n))
}

fn owner(n: u64) -> String {
    // Every other record is that of one function.
    format!("f{}", if n.is_multiple_of(2) { 0 } else { scattered(n) % FUNCTIONS })
}

fn record(n: u64) -> Attempt {
    let request = format!(
        r#"{{"raw_query":"","headers":[["content-type","application/json"],["user-agent","{}"]],"size":40,"text":"{{\"name\":\"{n}\"}}","truncated":false}}"#,
        "x".repeat(80)
    );
    let failed = n.is_multiple_of(1000);
    Attempt {
        id: id(n),
        attempt: 1,
        started: Some(Started {
            at: at(n),
            revision: "0123456789abcdef".into(),
            trigger: if n.is_multiple_of(5000) { "cron" } else { "http" }.into(),
            method: "POST".into(),
            path: "/".into(),
            pod: "pod".into(),
            request: Some(request),
        }),
        finished: Some(Finished {
            at: Moment(at(n).0 + 5000),
            status: if failed { "error" } else { "success" },
            http_status: Some(if failed { 500 } else { 200 }),
            duration_ms: 5.0,
            queue_ms: Some(0.1),
            init_ms: None,
            cpu_ms: Some(1.0),
            max_rss_bytes: Some(20 << 20),
            log_bytes: 80,
            log_dropped_bytes: 0,
            result: Some(format!(
                r#"{{"content_type":"application/json","size":200,"text":"{}"}}"#,
                "y".repeat(200)
            )),
            error: failed.then(|| r#"{"type":"ValueError","message":"m","traceback":"t"}"#.to_owned()),
        }),
        seen_at: at(n),
    }
}

fn lines(n: u64) -> LogLines {
    let lines =
        format!(r#"[{{"time":"2026-01-01T00:00:00.000Z","stream":"stdout","text":"{}"}}]"#, "z".repeat(100));
    LogLines { id: id(n), attempt: 1, seq: 1, lines }
}

async fn asked(what: &str, mut question: impl AsyncFnMut(u64) -> usize) {
    let (mut times, mut found) = (Vec::new(), 0);
    for n in 0..TIMES {
        let began = Instant::now();
        found += question(n).await;
        times.push(began.elapsed());
    }
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let (half, most) = (times[times.len() / 2], times[times.len() * 95 / 100]);
    println!("| {what} | {:.2} | {:.2} | {:.1} |", ms(half), ms(most), found as f64 / TIMES as f64);
}

async fn measure(place: &Place) {
    let store = &*place.open().await;
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    for first in (0..RECORDS).step_by(usize::try_from(BATCH).unwrap()) {
        let mut batches: HashMap<FunctionRef, Batch> = HashMap::new();
        for n in first..first + BATCH {
            let batch = batches.entry(function(&owner(n))).or_default();
            batch.attempts.push(record(n));
            batch.logs.push(lines(n));
        }
        let began = Instant::now();
        store.store_events(batches).await.unwrap();
        slowest = slowest.max(began.elapsed());
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "ingest: {:.0} records/s, each with a row of log lines; slowest transaction {slowest:?}",
        RECORDS as f64 / took
    );
    println!("| question | median ms | 95 % ms | rows |\n|---|---|---|---|");
    let namespace: Namespace = "default".parse().unwrap();
    let all = InvocationFilter::default;
    let page = async |n: u64, filter: InvocationFilter, after| {
        // Now the one that has half of all, now one of the others.
        let name = if n.is_multiple_of(2) { 0 } else { n % FUNCTIONS };
        store.invocations(&function(&format!("f{name}")), &filter, after, 50).await.unwrap().len()
    };
    let somewhere = |n| scattered(n + 1) % RECORDS;
    let with_status = |status: &str| InvocationFilter { status: Some(status.to_owned()), ..all() };
    asked("first page of 50", async |n| page(n, all(), None).await).await;
    asked("a page in the middle", async |n| {
        page(n, all(), Some(After { started_at: at(somewhere(n)), id: id(somewhere(n)) })).await
    })
    .await;
    asked("an hour in the middle", async |n| {
        let (since, until) = (Some(at(somewhere(n))), Some(at(somewhere(n) + 36_000)));
        page(n, InvocationFilter { since, until, ..all() }, None).await
    })
    .await;
    asked("status=success", async |n| page(n, with_status("success"), None).await).await;
    asked("status=error (1 in 1,000)", async |n| page(n, with_status("error"), None).await).await;
    asked("status=running (none)", async |n| page(n, with_status("running"), None).await).await;
    asked("trigger=cron (1 in 5,000)", async |n| {
        page(n, InvocationFilter { trigger: Some("cron".to_owned()), ..all() }, None).await
    })
    .await;
    asked("one record", async |n| {
        usize::from(store.invocation(&namespace, id(somewhere(n))).await.unwrap().is_some())
    })
    .await;
    asked("log of one record", async |n| {
        store.log_lines(&namespace, id(somewhere(n)), 1, None).await.unwrap().len()
    })
    .await;
    let (began, mut gone) = (Instant::now(), 0);
    while gone < 50_000 {
        gone += store.expire(at(0), 100_000).await.unwrap();
    }
    println!("retention: {:.0} records/s removed, by count", gone as f64 / began.elapsed().as_secs_f64());
    store.close().await;
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn sqlite() {
    println!("\nSQLite");
    measure(&Place::Folder(tempfile::tempdir_in("/var/tmp").unwrap())).await;
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn postgres() {
    println!("\nPostgreSQL");
    in_postgres(measure).await;
}
