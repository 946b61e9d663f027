//! What holds when several APIs share one PostgreSQL. (Of SQLite's file there is one owner: the host that has locked the folder.)

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use super::suite::{Place, attempt, finished, function, in_postgres, insert, read, started};
use super::*;

fn lines(n: u128, seq: u32, text: &str) -> LogLines {
    LogLines { id: Uuid::from_u128(n), attempt: 1, seq, lines: format!("[{text:?}]") }
}

fn batch(attempts: Vec<Attempt>, logs: Vec<LogLines>) -> HashMap<FunctionRef, Batch> {
    HashMap::from([(function("f"), Batch { attempts, logs })])
}

#[tokio::test]
async fn of_some_that_start_at_once_one_makes_the_tables() {
    in_postgres(async |place| {
        let open = || place.definitions();
        let stores = tokio::join!(open(), open(), open(), open());
        let row = insert(&*stores.0, "f").await;
        for other in [stores.1, stores.2, stores.3] {
            assert_eq!(other.function(&function("f")).await.unwrap().as_ref(), Some(&row));
        }
    })
    .await;
}

/// Reads on from where it was until it has `count` rows.
async fn follow(store: Arc<dyn Records>, count: usize) -> Vec<(u128, u32)> {
    let (mut seen, mut place) = (Vec::new(), 0);
    while seen.len() < count {
        let (rows, next) = store.function_log(&function("f"), place, 50).await.unwrap();
        place = next;
        seen.extend(rows.iter().map(|row| (row.id.as_u128(), row.seq)));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_reads_a_functions_log_sees_all_lines_in_one_order() {
    const WRITERS: u128 = 4;
    const BATCHES: u32 = 40;
    /// Large ones take their numbers long before they are committed.
    fn rows(batch: u32) -> u32 {
        if batch.is_multiple_of(4) { 400 } else { 1 }
    }
    in_postgres(async |place| {
        let mut stores = Vec::new();
        for _ in 0..WRITERS + 2 {
            stores.push(place.open().await);
        }
        let count = usize::try_from(WRITERS).unwrap() * (0..BATCHES).map(|b| rows(b) as usize).sum::<usize>();
        let readers: Vec<_> = stores.drain(..2).map(|store| tokio::spawn(follow(store, count))).collect();
        let mut writers = JoinSet::new();
        for (n, store) in (1..).zip(stores) {
            writers.spawn(async move {
                let mut seq = 0;
                for b in 0..BATCHES {
                    let logs = (seq..seq + rows(b)).map(|seq| lines(n, seq, "a line")).collect();
                    seq += rows(b);
                    store.store_events(batch(vec![attempt(n, Some(started(10)), None)], logs)).await.unwrap();
                }
            });
        }
        writers.join_all().await;
        let mut orders = Vec::new();
        for reader in readers {
            let read = tokio::time::timeout(Duration::from_secs(30), reader).await;
            orders.push(read.expect("lines were passed over: the reader waits for ever").unwrap());
        }
        assert_eq!(orders[0], orders[1]);
        assert_eq!(orders[0].iter().collect::<BTreeSet<_>>().len(), count);
        for n in 1..=WRITERS {
            assert!(orders[0].iter().filter(|(id, _)| *id == n).map(|(_, seq)| seq).is_sorted());
        }
    })
    .await;
}

/// One has numbers for its first lines and can't commit yet, as somebody else holds the place of its last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobodys_lines_come_before_those_of_one_that_began_earlier() {
    in_postgres(async |place| {
        let (slow, quick, reader) = (place.open().await, place.open().await, place.open().await);
        let first = vec![attempt(1, Some(started(10)), None), attempt(2, Some(started(10)), None)];
        // Both, so that both know whose lines these are: to find that out the first time waits for others.
        for store in [&slow, &quick] {
            store.store_events(batch(first.clone(), Vec::new())).await.unwrap();
        }
        let Place::Postgres(url) = place else { unreachable!("it is PostgreSQL's") };
        let mut holder = PgConnection::connect(url.reveal()).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        let hold =
            "INSERT INTO log_lines (id, owner, attempt, seq, lines) SELECT $1, id, 1, 1499, '[]' FROM owners";
        sqlx::query(hold).bind(Uuid::from_u128(1)).execute(&mut *held).await.unwrap();
        // More than one statement holds.
        let many: Vec<_> = (0..1500).map(|seq| lines(1, seq, "slow")).collect();
        let slow = tokio::spawn(async move { slow.store_events(batch(Vec::new(), many)).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let few = batch(Vec::new(), vec![lines(2, 0, "quick")]);
        let quick = tokio::spawn(async move { quick.store_events(few).await.unwrap() });
        let seen = tokio::spawn(follow(reader, 1501));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!slow.is_finished(), "it waits for the place");
        held.rollback().await.unwrap();
        slow.await.unwrap();
        quick.await.unwrap();
        let seen = tokio::time::timeout(Duration::from_secs(10), seen).await;
        let seen = seen.expect("lines were passed over: the reader waits for ever").unwrap();
        assert_eq!(seen.last(), Some(&(2, 0)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_delivered_to_two_at_once_is_stored_once() {
    in_postgres(async |place| {
        let (one, other) = (place.open().await, place.open().await);
        for round in 0..30_u128 {
            let ids = || (round * 20..round * 20 + 20).rev();
            let attempts = || ids().map(|n| attempt(n, Some(started(1000)), Some(finished(2000, "success"))));
            let logs = || ids().flat_map(|n| [lines(n, 2, "b"), lines(n, 1, "a")]);
            let deliver = async |store: &dyn Records| {
                store.store_events(batch(attempts().collect(), logs().collect())).await
            };
            let (a, b) = tokio::join!(deliver(&*one), deliver(&*other));
            a.unwrap();
            b.unwrap();
        }
        let filter = InvocationFilter::default();
        assert_eq!(one.invocations(&function("f"), &filter, None, 1000).await.unwrap().len(), 600);
        assert_eq!(other.function_log(&function("f"), 0, 2000).await.unwrap().0.len(), 1200);
    })
    .await;
}

#[tokio::test]
async fn each_hears_what_the_others_tell_and_not_itself() {
    in_postgres(async |place| {
        let (one, other) = (place.open().await, place.open().await);
        let (mut at_one, mut at_other) = (one.hear(), other.hear());
        let cancelled = News::Cancel(Uuid::from_u128(7));
        // Told again until the other listens: it takes a connection first.
        let told = async {
            loop {
                one.tell(cancelled).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            heard = at_other.next() => assert_eq!(heard, Some(cancelled)),
            () = told => {}
            () = tokio::time::sleep(Duration::from_secs(10)) => unreachable!("nothing was heard"),
        }
        let told = async {
            loop {
                other.tell(News::Stored).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            heard = at_one.next() => assert_eq!(heard, Some(News::Stored), "not what it has told itself"),
            () = told => {}
            () = tokio::time::sleep(Duration::from_secs(10)) => unreachable!("nothing was heard"),
        }
    })
    .await;
}

#[tokio::test]
async fn another_notes_what_is_lost_and_believes_the_end_that_comes_after_all() {
    in_postgres(async |place| {
        let (gone, looks) = (place.open().await, place.open().await);
        gone.store_events(batch(vec![attempt(1, Some(started(1000)), None)], vec![lines(1, 1, "a")]))
            .await
            .unwrap();
        gone.close().await;
        assert_eq!(looks.unfinished().await.unwrap(), [function("f")]);
        let lost = looks.lose(&function("f"), Moment(1001), Moment(0), r#"{"type":"Lost"}"#).await.unwrap();
        assert_eq!((lost, read(&*looks, 1).await.unwrap().status.as_deref()), (1, Some("lost")));
        let late = place.open().await;
        late.store_events(batch(vec![attempt(1, None, Some(finished(2000, "timeout")))], Vec::new()))
            .await
            .unwrap();
        assert_eq!(read(&*looks, 1).await.unwrap().status.as_deref(), Some("timeout"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_lines_stay_without_their_record() {
    in_postgres(async |place| {
        let (writer, cleaner) = (place.open().await, place.open().await);
        // Late lines of records that are old enough to go, while they go.
        let late = async {
            for n in 0..400_u128 {
                let row = || vec![attempt(n % 7, None, None)];
                let seq = u32::try_from(n).unwrap();
                writer.store_events(batch(row(), vec![lines(n % 7, seq, "late")])).await.unwrap();
            }
        };
        let clean = async {
            for _ in 0..400 {
                cleaner.expire(Moment(i64::MAX), 1000).await.unwrap();
            }
        };
        tokio::join!(late, clean);
        while cleaner.expire(Moment(i64::MAX), 1000).await.unwrap() > 0 {}
        let Place::Postgres(url) = place else { unreachable!("it is PostgreSQL's") };
        let mut connection = PgConnection::connect(url.reveal()).await.unwrap();
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM log_lines");
        assert_eq!(count.fetch_one(&mut connection).await.unwrap(), 0);
        connection.close().await.unwrap();
    })
    .await;
}
