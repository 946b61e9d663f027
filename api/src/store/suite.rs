//! What every store must do. Runs for SQLite, and for PostgreSQL if `SLESS_TEST_DATABASE_URL` names one where databases may be made.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use sless_backend::{
    CodeRef, Definitions, FunctionChange, FunctionRef, FunctionRow, Moment, RevisionRow, Secret,
    definitions_suite,
};
use sless_core::{Digest, FunctionSettings};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;

/// Where a store is, so that it can be opened again.
pub(super) enum Place {
    Folder(TempDir),
    /// An empty database of its own.
    Postgres(Secret),
}

impl Place {
    async fn database(&self) -> Opened {
        super::open(&match self {
            Self::Folder(folder) => Database::Sqlite(folder.path().join("sless.db")),
            Self::Postgres(url) => Database::Postgres(url.clone()),
        })
        .await
        .unwrap()
    }

    pub(super) async fn open(&self) -> Arc<dyn Records> {
        self.database().await.records()
    }

    /// With a key that is made for them.
    pub(super) async fn definitions(&self) -> Arc<dyn Upkeep> {
        let folder = tempfile::tempdir().unwrap();
        self.database().await.definitions(Vault::open(&folder.path().join("key")).unwrap())
    }
}

/// Runs `test` in a database that is made for it and removed afterwards.
pub(super) async fn in_postgres(test: impl AsyncFnOnce(&Place)) {
    let Ok(url) = std::env::var("SLESS_TEST_DATABASE_URL") else {
        eprintln!("not run: SLESS_TEST_DATABASE_URL is not set; scripts/test sets it");
        return;
    };
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (run, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let name = format!("sless_test_{run}_{n}_{}", Moment::now().0);
    let admin = async |what: String| {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::query(AssertSqlSafe(what)).execute(&mut connection).await.unwrap();
    };
    admin(format!("CREATE DATABASE {name}")).await;
    let (server, _) = url.split_once('?').unwrap_or((&url, ""));
    let (server, _) = server.rsplit_once('/').unwrap();
    let query = url.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
    test(&Place::Postgres(Secret::new(format!("{server}/{name}{query}")))).await;
    admin(format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

/// Each of them for each store.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod in_sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Place::Folder(tempfile::tempdir().unwrap())).await;
            })*
        }
        mod in_postgres {
            $(#[tokio::test]
            async fn $test() {
                super::in_postgres(super::$test).await;
            })*
        }
    };
}

suite! {
    definitions_are_kept_as_the_port_says,
    revisions_are_kept_as_many_as_are_wanted_and_those_in_use,
    events_in_any_order_and_number_make_one_record,
    the_first_end_counts_but_lost_gives_way,
    one_function_can_not_write_over_the_record_of_another,
    the_last_attempt_is_shown_and_the_earlier_ones_are_listed,
    pages_are_newest_first_and_go_on_where_they_ended,
    a_list_can_be_narrowed,
    log_lines_are_kept_once_in_their_order_and_go_with_their_record,
    old_records_go_and_so_do_those_beyond_the_count,
    everything_is_there_again_when_it_is_opened_again,
    a_functions_log_goes_on_where_it_was_left,
    a_call_that_waits_is_queued_and_what_never_ends_is_lost,
    tokens_are_found_by_their_hashes,
    what_a_secret_holds_is_read_with_its_key_alone,
    texts_come_back_as_they_came,
    a_batch_may_have_an_attempt_twice,
    logs_of_builds_are_kept_for_a_while,
}

pub(super) fn function(name: &str) -> FunctionRef {
    FunctionRef { namespace: "default".parse().unwrap(), name: name.parse().unwrap() }
}

pub(super) async fn insert(definitions: &dyn Definitions, name: &str) -> FunctionRow {
    let runtime = "python3.11".parse().unwrap();
    definitions.insert_function(&function(name), &runtime, &FunctionSettings::default()).await.unwrap()
}

pub(super) fn started(at: i64) -> Started {
    Started {
        at: Moment(at),
        revision: "r1".into(),
        trigger: "http".into(),
        method: "POST".into(),
        path: "/".into(),
        pod: "p".into(),
        request: Some(r#"{"text":"a\u0000b"}"#.into()),
    }
}

pub(super) fn finished(at: i64, status: &'static str) -> Finished {
    Finished {
        at: Moment(at),
        status,
        http_status: Some(200),
        duration_ms: 1.5,
        queue_ms: Some(0.1),
        init_ms: None,
        cpu_ms: None,
        max_rss_bytes: Some(1 << 40),
        log_bytes: 3,
        log_dropped_bytes: 0,
        result: Some("{}".into()),
        error: None,
    }
}

pub(super) fn attempt(n: u128, started: Option<Started>, finished: Option<Finished>) -> Attempt {
    let seen_at = started.as_ref().map_or(Moment(7), |s| s.at);
    Attempt { id: Uuid::from_u128(n), attempt: 1, started, finished, seen_at }
}

async fn write(store: &dyn Records, name: &str, attempts: Vec<Attempt>) {
    let batch = Batch { attempts, logs: Vec::new() };
    store.store_events(HashMap::from([(function(name), batch)])).await.unwrap();
}

pub(super) async fn read(store: &dyn Records, n: u128) -> Option<InvocationRow> {
    store.invocation(&"default".parse().unwrap(), Uuid::from_u128(n)).await.unwrap()
}

async fn listed(
    store: &dyn Records,
    filter: InvocationFilter,
    after: Option<After>,
    limit: u32,
) -> Vec<InvocationRow> {
    store.invocations(&function("f"), &filter, after, limit).await.unwrap()
}

async fn tokens_are_found_by_their_hashes(place: &Place) {
    tokens::suite::run(&*place.open().await).await;
}

/// The definitions of a place, for the suite that they must pass wherever they are.
#[derive(Debug)]
struct Defined(Arc<dyn Upkeep>);

#[async_trait]
impl definitions_suite::Harness for Defined {
    fn definitions(&self) -> &dyn Definitions {
        &*self.0
    }

    async fn finish(&self, function: &FunctionRef) {
        self.0.remove_function(function).await.unwrap();
    }
}

async fn definitions_are_kept_as_the_port_says(place: &Place) {
    definitions_suite::run(&Defined(place.definitions().await)).await;
}

async fn what_a_secret_holds_is_read_with_its_key_alone(place: &Place) {
    let (definitions, other) = (place.definitions().await, place.definitions().await);
    let (namespace, name) = ("default".parse().unwrap(), "db".parse().unwrap());
    let values = BTreeMap::from([("PASSWORD".to_owned(), Secret::new("s3cr3t"))]);
    assert_eq!(definitions.contents(&namespace, &name).await.unwrap(), None);
    definitions.insert_secret(&namespace, &name, &values).await.unwrap();
    assert_eq!(definitions.contents(&namespace, &name).await.unwrap(), Some(Contents::Values(values)));
    assert_eq!(other.contents(&namespace, &name).await.unwrap(), Some(Contents::Unreadable));
    assert_eq!(definitions.unreadable().await.unwrap(), Vec::<String>::new());
    assert_eq!(other.unreadable().await.unwrap(), ["default/db"]);
}

async fn revisions_are_kept_as_many_as_are_wanted_and_those_in_use(place: &Place) {
    let store = &*place.definitions().await;
    let mut row = insert(store, "f").await;
    for n in 0..5_u8 {
        let digest = Digest::new([n; 32]);
        let revision = RevisionRow {
            name: format!("r{n}"),
            settings: row.settings.clone(),
            code: CodeRef { sha256: digest, content_sha256: digest },
            image: None,
            created_at: Moment(i64::from(n)),
        };
        let change = FunctionChange { settings: row.settings.clone(), wanted: Some(revision) };
        row = store.change_function(&row, &change).await.unwrap();
        if n == 0 {
            store.set_active(&function("f"), "r0").await.unwrap();
        }
    }
    let gone: Vec<_> = store.forget_revisions(&row, 2).await.unwrap().into_iter().map(|r| r.name).collect();
    let kept: Vec<_> = store.revisions(&row).await.unwrap().into_iter().map(|r| r.name).collect();
    assert_eq!((gone.len(), kept), (2, vec!["r4".to_owned(), "r3".to_owned(), "r0".to_owned()]));
    let read = store.function(&function("f")).await.unwrap().unwrap();
    assert_eq!(read.version, row.version, "noting what answers is nobody's write");
    assert_eq!(read.active.as_deref(), Some("r0"));
    store.remove_function(&function("f")).await.unwrap();
    assert!(store.function(&function("f")).await.unwrap().is_some(), "only one that is to go can be removed");
    store.delete_function(&row).await.unwrap();
    store.remove_function(&function("f")).await.unwrap();
    assert_eq!(store.revisions(&row).await.unwrap(), vec![]);
}

async fn events_in_any_order_and_number_make_one_record(place: &Place) {
    let store = &*place.open().await;
    let (begin, end) =
        (attempt(1, Some(started(1000)), None), attempt(1, None, Some(finished(2000, "success"))));
    for order in [[&begin, &end], [&end, &begin], [&end, &end]] {
        for one in order {
            write(store, "f", vec![one.clone()]).await;
        }
    }
    let row = read(store, 1).await.unwrap();
    assert_eq!(
        (row.started_at, row.finished_at, row.status.as_deref()),
        (Moment(1000), Some(Moment(2000)), Some("success"))
    );
    assert_eq!((row.request.as_deref(), row.max_rss_bytes), (Some(r#"{"text":"a\u0000b"}"#), Some(1 << 40)));
    assert_eq!(listed(store, InvocationFilter::default(), None, 10).await.len(), 1);
}

async fn the_first_end_counts_but_lost_gives_way(place: &Place) {
    let store = &*place.open().await;
    for status in ["lost", "timeout", "success", "lost"] {
        write(store, "f", vec![attempt(1, None, Some(finished(2000, status)))]).await;
    }
    assert_eq!(read(store, 1).await.unwrap().status.as_deref(), Some("timeout"));
    write(store, "f", vec![attempt(1, Some(started(1000)), Some(finished(9000, "error")))]).await;
    let row = read(store, 1).await.unwrap();
    assert_eq!(
        (row.status.as_deref(), row.finished_at, row.started_at),
        (Some("timeout"), Some(Moment(2000)), Moment(1000))
    );
}

async fn one_function_can_not_write_over_the_record_of_another(place: &Place) {
    let store = &*place.open().await;
    write(store, "f", vec![attempt(1, Some(started(1000)), Some(finished(2000, "success")))]).await;
    write(store, "g", vec![attempt(1, Some(started(10)), Some(finished(20, "error")))]).await;
    let row = read(store, 1).await.unwrap();
    assert_eq!((row.function.as_str(), row.status.as_deref()), ("f", Some("success")));
}

async fn the_last_attempt_is_shown_and_the_earlier_ones_are_listed(place: &Place) {
    let store = &*place.open().await;
    let second = Attempt { attempt: 2, ..attempt(1, Some(started(3000)), Some(finished(4000, "success"))) };
    write(store, "f", vec![second]).await;
    write(store, "f", vec![attempt(1, Some(started(1000)), Some(finished(2000, "error")))]).await;
    assert_eq!(read(store, 1).await.unwrap().attempt, 2);
    let earlier = store.earlier_attempts(&"default".parse().unwrap(), Uuid::from_u128(1)).await.unwrap();
    assert_eq!(
        earlier.iter().map(|r| (r.attempt, r.status.as_deref())).collect::<Vec<_>>(),
        [(1, Some("error"))]
    );
    assert_eq!(listed(store, InvocationFilter::default(), None, 10).await.len(), 1);
}

async fn pages_are_newest_first_and_go_on_where_they_ended(place: &Place) {
    let store = &*place.open().await;
    // Two begin at the same moment; the ids are not in the order of the starts.
    let rows = [(5, 10), (1, 20), (2, 20), (9, 5), (3, 30)];
    write(store, "f", rows.iter().map(|(n, at)| attempt(*n, Some(started(*at)), None)).collect()).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = listed(store, InvocationFilter::default(), after, 2).await;
        let Some(last) = page.last() else { break };
        after = Some(After { started_at: last.started_at, id: last.id });
        seen.extend(page.iter().map(|r| r.id.as_u128()));
        write(store, "f", vec![attempt(100 + seen.len() as u128, Some(started(1000)), None)]).await;
    }
    assert_eq!(seen, [3, 2, 1, 5, 9]);
}

async fn a_list_can_be_narrowed(place: &Place) {
    let store = &*place.open().await;
    write(
        store,
        "f",
        vec![attempt(1, Some(started(10)), None), attempt(2, Some(started(20)), Some(finished(30, "error")))],
    )
    .await;
    let ids = async |filter| {
        listed(store, filter, None, 10).await.iter().map(|r| r.id.as_u128()).collect::<Vec<_>>()
    };
    let status = |s: &str| InvocationFilter { status: Some(s.into()), ..Default::default() };
    assert_eq!(
        (ids(status("running")).await, ids(status("error")).await, ids(status("success")).await),
        (vec![1], vec![2], vec![])
    );
    assert_eq!(ids(InvocationFilter { since: Some(Moment(20)), ..Default::default() }).await, [2]);
    assert_eq!(ids(InvocationFilter { until: Some(Moment(20)), ..Default::default() }).await, [1]);
    assert_eq!(
        ids(InvocationFilter { trigger: Some("cron".into()), ..Default::default() }).await,
        Vec::<u128>::new()
    );
}

async fn log_lines_are_kept_once_in_their_order_and_go_with_their_record(place: &Place) {
    let store = &*place.open().await;
    let id = Uuid::from_u128(1);
    let log = |seq, text: &str| LogLines { id, attempt: 1, seq, lines: format!("[{text:?}]") };
    let batch = Batch {
        attempts: vec![attempt(1, Some(started(10)), None)],
        logs: vec![log(2, "b"), log(1, "a"), log(2, "b")],
    };
    for _ in 0..2 {
        store.store_events(HashMap::from([(function("f"), batch.clone())])).await.unwrap();
    }
    let namespace = "default".parse().unwrap();
    let lines = async |after| {
        let rows = store.log_lines(&namespace, id, 1, after).await.unwrap();
        rows.into_iter().map(|row| row.lines).collect::<Vec<_>>()
    };
    assert_eq!(lines(None).await, [r#"["a"]"#, r#"["b"]"#]);
    assert_eq!((lines(Some(1)).await, lines(Some(2)).await), (vec![r#"["b"]"#.to_owned()], Vec::new()));
    assert_eq!(store.log_lines(&"other".parse().unwrap(), id, 1, None).await.unwrap(), Vec::new());
    assert_eq!(store.expire(Moment(11), 10).await.unwrap(), 1);
    assert_eq!(lines(None).await, Vec::<String>::new());
}

async fn a_functions_log_goes_on_where_it_was_left(place: &Place) {
    let store = &*place.open().await;
    let write = async |name: &str, n: u128, seqs: std::ops::Range<u32>| {
        let lines = |seq| format!("[{:?}]", format!("{name} {seq}"));
        let logs = seqs.map(|seq| LogLines { id: Uuid::from_u128(n), attempt: 1, seq, lines: lines(seq) });
        let attempts = vec![attempt(n, Some(started(10)), None)];
        let batch = Batch { attempts, logs: logs.collect() };
        store.store_events(HashMap::from([(function(name), batch)])).await.unwrap();
    };
    let read = async |place: i64, limit: u32| {
        let (rows, next) = store.function_log(&function("f"), place, limit).await.unwrap();
        (rows.into_iter().map(|row| row.lines).collect::<Vec<_>>(), next)
    };
    assert_eq!((store.log_end().await.unwrap(), read(0, 9).await), (0, (Vec::new(), 0)));
    write("f", 1, 1..2).await;
    let now = store.log_end().await.unwrap();
    write("g", 2, 1..4).await;
    write("f", 1, 2..5).await;
    let (lines, next) = read(now, 2).await;
    assert_eq!(lines, [r#"["f 2"]"#, r#"["f 3"]"#]);
    let (lines, next) = read(next, 2).await;
    assert_eq!(lines, [r#"["f 4"]"#]);
    write("g", 2, 4..9).await;
    let (lines, end) = read(next, 2).await;
    assert_eq!(
        (lines, end),
        (Vec::new(), store.log_end().await.unwrap()),
        "the others' lines are passed over"
    );
    while store.expire(Moment(11), 10).await.unwrap() > 0 {}
    write("f", 3, 1..2).await;
    assert_eq!(read(end, 2).await.0, [r#"["f 1"]"#], "numbers that begin anew hide nothing");
}

async fn old_records_go_and_so_do_those_beyond_the_count(place: &Place) {
    let store = &*place.open().await;
    for name in ["f", "g"] {
        write(
            store,
            name,
            (0..150)
                .map(|n| {
                    attempt(
                        n + if name == "f" { 0 } else { 1000 },
                        Some(started(1000 + i64::try_from(n).unwrap())),
                        None,
                    )
                })
                .collect(),
        )
        .await;
    }
    while store.expire(Moment(1100), 20).await.unwrap() > 0 {}
    let left = listed(store, InvocationFilter::default(), None, 500).await;
    assert_eq!((left.len(), left.last().unwrap().started_at), (20, Moment(1130)));
    assert!(
        store.invocations(&function("g"), &InvocationFilter::default(), None, 500).await.unwrap().len() == 20
    );
    while store.expire(Moment(1140), 1000).await.unwrap() > 0 {}
    assert_eq!(listed(store, InvocationFilter::default(), None, 500).await.len(), 10);
}

async fn everything_is_there_again_when_it_is_opened_again(place: &Place) {
    let row = insert(&*place.definitions().await, "f").await;
    let store = &*place.open().await;
    write(store, "f", (0..200).map(|n| attempt(n, Some(started(1)), Some(finished(2, "success")))).collect())
        .await;
    store.close().await;
    let store = &*place.open().await;
    assert_eq!(place.definitions().await.all_functions().await.unwrap(), [row]);
    assert_eq!(listed(store, InvocationFilter::default(), None, 500).await.len(), 200);
}

async fn texts_come_back_as_they_came(place: &Place) {
    let store = &*place.open().await;
    let odd = "a\0b\u{10ffff}0\u{fffd}";
    let start = Started {
        revision: odd.into(),
        trigger: odd.into(),
        method: odd.into(),
        path: odd.into(),
        pod: odd.into(),
        ..started(1000)
    };
    let large = format!(r#"{{"text":"\\u0000\\ud800{}"}}"#, "x".repeat(1 << 20));
    let end = Finished { result: Some(large.clone()), error: Some(large.clone()), ..finished(2000, "error") };
    let id = Uuid::from_u128(1);
    let logs: Vec<_> = (0..20)
        .map(|seq| LogLines {
            id,
            attempt: 1,
            seq,
            lines: format!(r#"[{{"text":"\\u0000{}"}}]"#, "y".repeat(1 << 20)),
        })
        .collect();
    let batch = Batch { attempts: vec![attempt(1, Some(start), Some(end))], logs: logs.clone() };
    store.store_events(HashMap::from([(function("f"), batch)])).await.unwrap();
    let row = read(store, 1).await.unwrap();
    let sent = [&row.revision, &row.trigger, &row.method, &row.path].map(|text| text.as_deref().unwrap());
    assert_eq!(sent, [odd; 4]);
    assert!(row.result.as_ref() == Some(&large) && row.error.as_ref() == Some(&large));
    let kept = store.log_lines(&"default".parse().unwrap(), id, 1, None).await.unwrap();
    assert!(kept.iter().map(|row| &row.lines).eq(logs.iter().map(|log| &log.lines)));
    let by = InvocationFilter { trigger: Some(odd.into()), ..Default::default() };
    assert_eq!(listed(store, by, None, 10).await.len(), 1);
    let definitions = place.definitions().await;
    let row = insert(&*definitions, "f").await;
    assert_eq!(definitions.revision(&row, "\0").await.unwrap(), None);
}

async fn a_batch_may_have_an_attempt_twice(place: &Place) {
    let store = &*place.open().await;
    write(
        store,
        "f",
        vec![
            attempt(1, None, Some(finished(2000, "lost"))),
            attempt(2, Some(started(5)), None),
            attempt(1, Some(started(1000)), Some(finished(3000, "timeout"))),
            attempt(1, Some(started(9000)), Some(finished(9000, "success"))),
        ],
    )
    .await;
    let row = read(store, 1).await.unwrap();
    assert_eq!((row.started_at, row.status.as_deref()), (Moment(1000), Some("timeout")));
    assert_eq!(listed(store, InvocationFilter::default(), None, 10).await.len(), 2);
}

async fn a_call_that_waits_is_queued_and_what_never_ends_is_lost(place: &Place) {
    let store = &*place.open().await;
    let queued = |n: u128| Queued {
        id: Uuid::from_u128(n),
        at: Moment(100),
        trigger: "http".into(),
        method: "PUT".into(),
        path: "/".into(),
        request: Some("{}".into()),
        replay_of: Some(Uuid::from_u128(9)),
    };
    assert_eq!(store.unfinished().await.unwrap(), []);
    for n in [1, 1, 2] {
        store.queue(&function("f"), &queued(n)).await.unwrap();
    }
    write(store, "f", vec![attempt(2, Some(started(200)), None)]).await;
    write(store, "g", vec![attempt(3, Some(started(300)), Some(finished(301, "success")))]).await;
    assert_eq!(store.unfinished().await.unwrap(), [function("f")]);
    let (waits, runs) = (read(store, 1).await.unwrap(), read(store, 2).await.unwrap());
    assert_eq!(
        (waits.started, waits.status.clone(), waits.replay_of),
        (false, None, Some(Uuid::from_u128(9)))
    );
    assert_eq!((runs.started, runs.started_at, runs.revision.as_deref()), (true, Moment(200), Some("r1")));
    assert_eq!((runs.request.as_deref(), runs.replay_of), (Some("{}"), waits.replay_of), "as it was queued");
    for (status, n) in [("queued", 1), ("running", 2)] {
        let filter = InvocationFilter { status: Some(status.into()), ..Default::default() };
        let ids: Vec<_> = listed(store, filter, None, 9).await.into_iter().map(|row| row.id).collect();
        assert_eq!(ids, [Uuid::from_u128(n)], "{status}");
    }
    let lose = async |running: i64, queued: i64| {
        store.lose(&function("f"), Moment(running), Moment(queued), r#"{"type":"Lost"}"#).await.unwrap()
    };
    assert_eq!((lose(200, 100).await, lose(201, 100).await, lose(201, 100).await), (0, 1, 0));
    let lost = read(store, 2).await.unwrap();
    assert_eq!((lost.status.as_deref(), lost.error.as_deref()), (Some("lost"), Some(r#"{"type":"Lost"}"#)));
    write(store, "f", vec![attempt(2, None, Some(finished(250, "success")))]).await;
    let found = read(store, 2).await.unwrap();
    assert_eq!((found.status.as_deref(), found.finished_at), (Some("success"), Some(Moment(250))));
    assert_eq!((lose(999, 101).await, store.unfinished().await.unwrap()), (1, Vec::new()));
}

async fn logs_of_builds_are_kept_for_a_while(place: &Place) {
    let store = &*place.open().await;
    let line = |text: &str| LogLine { time: "t".into(), stream: "stdout".into(), text: text.into() };
    let f = function("f");
    assert_eq!(store.build_log(&f, "b-1").await.unwrap(), None);
    for lines in [vec![line("a\0")], vec![line("a\0"), line("b")]] {
        store.keep_build_log(&f, "b-1", &lines).await.unwrap();
        assert_eq!(store.build_log(&f, "b-1").await.unwrap(), Some(lines), "delivered again, it is the same");
    }
    assert_eq!(store.build_log(&function("g"), "b-1").await.unwrap(), None);
    for n in 0..60 {
        store.keep_build_log(&f, &format!("c-{n}"), &[]).await.unwrap();
    }
    assert_eq!(store.build_log(&f, "b-1").await.unwrap(), None, "the oldest go");
    assert_eq!(store.build_log(&f, "c-59").await.unwrap(), Some(vec![]));
    store.expire_build_logs(Moment(Moment::now().0 + 1)).await.unwrap();
    assert_eq!(store.build_log(&f, "c-59").await.unwrap(), None);
}
