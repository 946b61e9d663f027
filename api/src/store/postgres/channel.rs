//! What the processes of one API tell each other: the database passes it on.

use std::time::Duration;

use sless_backend::BoxStream;
use sqlx::postgres::PgListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use uuid::Uuid;

use super::PostgresStore;
use super::sql::failed;
use crate::store::{News, StoreError};

const CHANNEL: &str = "sless";
/// Whoever could not listen tries again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// What was heard and not yet taken; more waits in the connection.
const WAITING: usize = 64;

/// Begins with the sender, who would hear himself otherwise.
fn payload(sender: Uuid, news: News) -> String {
    match news {
        News::Stored => format!("{sender} stored"),
        News::Cancel(id) => format!("{sender} cancel {id}"),
    }
}

/// `None` for what is one's own, or what nobody understands: one of another version may speak of more.
fn understood(me: Uuid, payload: &str) -> Option<News> {
    let (sender, rest) = payload.split_once(' ')?;
    if sender.parse() == Ok(me) {
        return None;
    }
    match rest.split_once(' ') {
        None if rest == "stored" => Some(News::Stored),
        Some(("cancel", id)) => Some(News::Cancel(id.parse().ok()?)),
        _ => None,
    }
}

pub(super) async fn tell(store: &PostgresStore, news: News) -> Result<(), StoreError> {
    // A statement of its own: in the transaction that stores records it would make all others wait for its end.
    let query = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(payload(store.me, news));
    query.execute(&store.writer).await.map(drop).map_err(failed("tell other processes of the API"))
}

pub(super) fn hear(store: &PostgresStore) -> BoxStream<News> {
    let (heard, waiting) = tokio::sync::mpsc::channel(WAITING);
    let (pool, me) = (store.listener.clone(), store.me);
    tokio::spawn(async move {
        while !heard.is_closed() {
            let listening = async {
                let mut listener = PgListener::connect_with(&pool).await?;
                listener.listen(CHANNEL).await?;
                loop {
                    // Nothing is heard while the connection is away: whoever waits for something also looks now and then.
                    let notification = tokio::select! {
                        notification = listener.recv() => notification?,
                        () = heard.closed() => return Ok(()),
                    };
                    if let Some(news) = understood(me, notification.payload())
                        && heard.send(news).await.is_err()
                    {
                        return Ok(());
                    }
                }
            };
            let ended: Result<(), sqlx::Error> = listening.await;
            if let Err(error) = ended {
                tracing::warn!(error = %crate::problem::chain(&error), "failed to listen to other processes of the API, trying again");
                tokio::time::sleep(AGAIN).await;
            }
        }
    });
    Box::pin(ReceiverStream::new(waiting).fuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_hears_the_others_and_nobody_himself() {
        let (me, other, call) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        for news in [News::Stored, News::Cancel(call)] {
            assert_eq!(understood(me, &payload(other, news)), Some(news));
            assert_eq!(understood(me, &payload(me, news)), None);
        }
        for odd in [
            "",
            "stored",
            &format!("{other} sung"),
            &format!("{other} cancel x"),
            &format!("{other} stored x"),
        ] {
            assert_eq!(understood(me, odd), None, "{odd:?}");
        }
    }
}
