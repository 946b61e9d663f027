use std::collections::HashMap;

use sless_backend::{CodeRef, FunctionRef};
use sless_core::{Digest, FunctionSettings, TriggerKind};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::store::{Attempt, Finished, FunctionRow, LogLines, Queued, RevisionRow, Started};
use crate::time::Moment;

async fn open() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("sless.db")).await.unwrap();
    (folder, store)
}

fn function(name: &str) -> FunctionRef {
    FunctionRef { namespace: "default".parse().unwrap(), name: name.parse().unwrap() }
}

async fn insert(store: &SqliteStore, name: &str) -> FunctionRow {
    store
        .insert_function(&function(name), &"python3.11".parse().unwrap(), &FunctionSettings::default())
        .await
        .unwrap()
}

fn started(at: i64) -> Started {
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

fn finished(at: i64, status: &'static str) -> Finished {
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

fn attempt(n: u128, started: Option<Started>, finished: Option<Finished>) -> Attempt {
    let seen_at = started.as_ref().map_or(Moment(7), |s| s.at);
    Attempt { id: Uuid::from_u128(n), attempt: 1, started, finished, seen_at }
}

async fn write(store: &SqliteStore, name: &str, attempts: Vec<Attempt>) {
    let batch = Batch { attempts, logs: Vec::new() };
    store.store_events(HashMap::from([(function(name), batch)])).await.unwrap();
}

async fn read(store: &SqliteStore, n: u128) -> Option<InvocationRow> {
    store.invocation(&"default".parse().unwrap(), Uuid::from_u128(n)).await.unwrap()
}

async fn listed(
    store: &SqliteStore,
    filter: InvocationFilter,
    after: Option<After>,
    limit: u32,
) -> Vec<InvocationRow> {
    store.invocations(&function("f"), &filter, after, limit).await.unwrap()
}

#[tokio::test]
async fn tokens_are_found_by_their_hashes() {
    crate::store::tokens::suite::run(&open().await.1).await;
}

#[tokio::test]
async fn secrets_stay_while_functions_name_them() {
    crate::store::secrets::suite::run(&open().await.1).await;
}

#[tokio::test]
async fn a_name_is_given_once_and_a_write_over_an_old_version_is_refused() {
    let (_folder, store) = open().await;
    let row = insert(&store, "f").await;
    let again = store.insert_function(&function("f"), &row.runtime, &row.settings).await;
    assert!(matches!(again, Err(StoreError::Exists)));
    let changed = store.update_function(&FunctionRow { generation: 2, ..row.clone() }, None).await.unwrap();
    assert_eq!((changed.version, changed.generation), (2, 2));
    assert!(matches!(store.update_function(&row, None).await, Err(StoreError::Stale)));
    assert_eq!(store.function(&function("f")).await.unwrap(), Some(changed));
}

#[tokio::test]
async fn revisions_are_kept_as_many_as_are_wanted_and_those_in_use() {
    let (_folder, store) = open().await;
    let mut row = insert(&store, "f").await;
    for n in 0..5_u8 {
        let digest = Digest::new([n; 32]);
        let code = CodeRef { sha256: digest, content_sha256: digest };
        let revision = RevisionRow {
            name: format!("r{n}"),
            settings: row.settings.clone(),
            code,
            created_at: Moment(i64::from(n)),
        };
        row = store
            .update_function(&FunctionRow { wanted: Some(revision.name.clone()), ..row }, Some(&revision))
            .await
            .unwrap();
        if n == 0 {
            store.set_active(&function("f"), "r0").await.unwrap();
        }
    }
    let gone: Vec<_> = store.forget_revisions(row.id, 2).await.unwrap().into_iter().map(|r| r.name).collect();
    let kept: Vec<_> = store.revisions(row.id).await.unwrap().into_iter().map(|r| r.name).collect();
    assert_eq!((gone.len(), kept), (2, vec!["r4".to_owned(), "r3".to_owned(), "r0".to_owned()]));
    assert_eq!(
        store.function(&function("f")).await.unwrap().unwrap().version,
        row.version,
        "noting what answers is nobody's write"
    );
    store.remove_function(&function("f")).await.unwrap();
    assert!(store.function(&function("f")).await.unwrap().is_some(), "only one that is to go can be removed");
    store.update_function(&FunctionRow { deleting: true, ..row.clone() }, None).await.unwrap();
    store.remove_function(&function("f")).await.unwrap();
    assert_eq!(store.revisions(row.id).await.unwrap(), vec![]);
    assert!(insert(&store, "f").await.id > row.id, "ids only grow");
}

#[tokio::test]
async fn routes_follow_functions_and_triggers() {
    let (_folder, store) = open().await;
    let row = insert(&store, "f").await;
    let (namespace, trigger) = ("default".parse().unwrap(), "t".parse().unwrap());
    let public = async || store.reachable().await.unwrap().into_iter().map(|r| r.public).collect::<Vec<_>>();
    assert_eq!(public().await, [false]);
    let made = store
        .insert_trigger(&namespace, &trigger, TriggerKind::Http, &function("f").name, true)
        .await
        .unwrap();
    assert_eq!(public().await, [true]);
    store.update_trigger(&TriggerRow { enabled: false, ..made.clone() }).await.unwrap();
    assert!(matches!(store.update_trigger(&made).await, Err(StoreError::Stale)));
    assert_eq!(public().await, [false]);
    store.remove_trigger(&namespace, &trigger).await.unwrap();
    assert!(matches!(store.remove_trigger(&namespace, &trigger).await, Err(StoreError::Gone)));
    store.update_function(&FunctionRow { deleting: true, ..row }, None).await.unwrap();
    assert_eq!(public().await, Vec::<bool>::new());
}

#[tokio::test]
async fn events_in_any_order_and_number_make_one_record() {
    let (_folder, store) = open().await;
    let (begin, end) =
        (attempt(1, Some(started(1000)), None), attempt(1, None, Some(finished(2000, "success"))));
    for order in [[&begin, &end], [&end, &begin], [&end, &end]] {
        for one in order {
            write(&store, "f", vec![one.clone()]).await;
        }
    }
    let row = read(&store, 1).await.unwrap();
    assert_eq!(
        (row.started_at, row.finished_at, row.status.as_deref()),
        (Moment(1000), Some(Moment(2000)), Some("success"))
    );
    assert_eq!((row.request.as_deref(), row.max_rss_bytes), (Some(r#"{"text":"a\u0000b"}"#), Some(1 << 40)));
    assert_eq!(listed(&store, InvocationFilter::default(), None, 10).await.len(), 1);
}

#[tokio::test]
async fn the_first_end_counts_but_lost_gives_way() {
    let (_folder, store) = open().await;
    for status in ["lost", "timeout", "success", "lost"] {
        write(&store, "f", vec![attempt(1, None, Some(finished(2000, status)))]).await;
    }
    assert_eq!(read(&store, 1).await.unwrap().status.as_deref(), Some("timeout"));
    write(&store, "f", vec![attempt(1, Some(started(1000)), Some(finished(9000, "error")))]).await;
    let row = read(&store, 1).await.unwrap();
    assert_eq!(
        (row.status.as_deref(), row.finished_at, row.started_at),
        (Some("timeout"), Some(Moment(2000)), Moment(1000))
    );
}

#[tokio::test]
async fn one_function_can_not_write_over_the_record_of_another() {
    let (_folder, store) = open().await;
    write(&store, "f", vec![attempt(1, Some(started(1000)), Some(finished(2000, "success")))]).await;
    write(&store, "g", vec![attempt(1, Some(started(10)), Some(finished(20, "error")))]).await;
    let row = read(&store, 1).await.unwrap();
    assert_eq!((row.function.as_str(), row.status.as_deref()), ("f", Some("success")));
}

#[tokio::test]
async fn the_last_attempt_is_shown_and_the_earlier_ones_are_listed() {
    let (_folder, store) = open().await;
    let second = Attempt { attempt: 2, ..attempt(1, Some(started(3000)), Some(finished(4000, "success"))) };
    write(&store, "f", vec![second]).await;
    write(&store, "f", vec![attempt(1, Some(started(1000)), Some(finished(2000, "error")))]).await;
    assert_eq!(read(&store, 1).await.unwrap().attempt, 2);
    let earlier = store.earlier_attempts(&"default".parse().unwrap(), Uuid::from_u128(1)).await.unwrap();
    assert_eq!(
        earlier.iter().map(|r| (r.attempt, r.status.as_deref())).collect::<Vec<_>>(),
        [(1, Some("error"))]
    );
    assert_eq!(listed(&store, InvocationFilter::default(), None, 10).await.len(), 1);
}

#[tokio::test]
async fn pages_are_newest_first_and_go_on_where_they_ended() {
    let (_folder, store) = open().await;
    // Two begin at the same moment; the ids are not in the order of the starts.
    let rows = [(5, 10), (1, 20), (2, 20), (9, 5), (3, 30)];
    write(&store, "f", rows.iter().map(|(n, at)| attempt(*n, Some(started(*at)), None)).collect()).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = listed(&store, InvocationFilter::default(), after, 2).await;
        let Some(last) = page.last() else { break };
        after = Some(After { started_at: last.started_at, id: last.id });
        seen.extend(page.iter().map(|r| r.id.as_u128()));
        write(&store, "f", vec![attempt(100 + seen.len() as u128, Some(started(1000)), None)]).await;
    }
    assert_eq!(seen, [3, 2, 1, 5, 9]);
}

#[tokio::test]
async fn a_list_can_be_narrowed() {
    let (_folder, store) = open().await;
    write(
        &store,
        "f",
        vec![attempt(1, Some(started(10)), None), attempt(2, Some(started(20)), Some(finished(30, "error")))],
    )
    .await;
    let ids = async |filter| {
        listed(&store, filter, None, 10).await.iter().map(|r| r.id.as_u128()).collect::<Vec<_>>()
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

#[tokio::test]
async fn log_lines_are_kept_once_in_their_order_and_go_with_their_record() {
    let (_folder, store) = open().await;
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

#[tokio::test]
async fn a_functions_log_goes_on_where_it_was_left() {
    let (_folder, store) = open().await;
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

#[tokio::test]
async fn old_records_go_and_so_do_those_beyond_the_count() {
    let (_folder, store) = open().await;
    for name in ["f", "g"] {
        write(
            &store,
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
    let left = listed(&store, InvocationFilter::default(), None, 500).await;
    assert_eq!((left.len(), left.last().unwrap().started_at), (20, Moment(1130)));
    assert!(
        store.invocations(&function("g"), &InvocationFilter::default(), None, 500).await.unwrap().len() == 20
    );
    while store.expire(Moment(1140), 1000).await.unwrap() > 0 {}
    assert_eq!(listed(&store, InvocationFilter::default(), None, 500).await.len(), 10);
}

#[tokio::test]
async fn everything_is_there_again_when_it_is_opened_again() {
    let (folder, store) = open().await;
    let row = insert(&store, "f").await;
    write(
        &store,
        "f",
        (0..200).map(|n| attempt(n, Some(started(1)), Some(finished(2, "success")))).collect(),
    )
    .await;
    store.close().await;
    let store = SqliteStore::open(&folder.path().join("sless.db")).await.unwrap();
    assert_eq!(store.all_functions().await.unwrap(), [row]);
    assert_eq!(listed(&store, InvocationFilter::default(), None, 500).await.len(), 200);
}

#[tokio::test]
async fn a_call_that_waits_is_queued_and_what_never_ends_is_lost() {
    let (_folder, store) = open().await;
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
    write(&store, "f", vec![attempt(2, Some(started(200)), None)]).await;
    write(&store, "g", vec![attempt(3, Some(started(300)), Some(finished(301, "success")))]).await;
    assert_eq!(store.unfinished().await.unwrap(), [function("f")]);
    let (waits, runs) = (read(&store, 1).await.unwrap(), read(&store, 2).await.unwrap());
    assert_eq!(
        (waits.started, waits.status.clone(), waits.replay_of),
        (false, None, Some(Uuid::from_u128(9)))
    );
    assert_eq!((runs.started, runs.started_at, runs.revision.as_deref()), (true, Moment(200), Some("r1")));
    assert_eq!((runs.request.as_deref(), runs.replay_of), (Some("{}"), waits.replay_of), "as it was queued");
    for (status, n) in [("queued", 1), ("running", 2)] {
        let filter = InvocationFilter { status: Some(status.into()), ..Default::default() };
        let ids: Vec<_> = listed(&store, filter, None, 9).await.into_iter().map(|row| row.id).collect();
        assert_eq!(ids, [Uuid::from_u128(n)], "{status}");
    }
    let lose = async |running: i64, queued: i64| {
        store.lose(&function("f"), Moment(running), Moment(queued), r#"{"type":"Lost"}"#).await.unwrap()
    };
    assert_eq!((lose(200, 100).await, lose(201, 100).await, lose(201, 100).await), (0, 1, 0));
    let lost = read(&store, 2).await.unwrap();
    assert_eq!((lost.status.as_deref(), lost.error.as_deref()), (Some("lost"), Some(r#"{"type":"Lost"}"#)));
    write(&store, "f", vec![attempt(2, None, Some(finished(250, "success")))]).await;
    let found = read(&store, 2).await.unwrap();
    assert_eq!((found.status.as_deref(), found.finished_at), (Some("success"), Some(Moment(250))));
    assert_eq!((lose(999, 101).await, store.unfinished().await.unwrap()), (1, Vec::new()));
}
