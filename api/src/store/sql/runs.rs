//! Records that the API makes itself: of calls that wait to be sent, and of those that will never end.

use sless_backend::FunctionRef;
use sqlx::Row as _;

use super::super::{Database, Row, kept};
use super::{failed, odd, owner};
use crate::store::{Queued, StoreError};
use sless_backend::Moment;

pub(super) async fn queue(
    store: &Database,
    function: &FunctionRef,
    queued: &Queued,
) -> Result<(), StoreError> {
    let owner = owner(store, function).await?;
    let sql = "INSERT INTO invocations (id, owner, attempt, started_at, started, trigger, method, path, request, replay_of)
               VALUES ($1, $2, 1, $3, FALSE, $4, $5, $6, $7, $8) ON CONFLICT (id, owner, attempt) DO NOTHING";
    let query = sqlx::query(sql).bind(queued.id).bind(owner).bind(queued.at.0).bind(kept(&queued.trigger));
    let query = query
        .bind(kept(&queued.method))
        .bind(kept(&queued.path))
        .bind(&queued.request)
        .bind(queued.replay_of);
    query.execute(&store.writer).await.map(drop).map_err(failed("note a call that waits"))
}

pub(super) async fn unfinished(store: &Database) -> Result<Vec<FunctionRef>, StoreError> {
    let sql = "SELECT namespace, function FROM owners o
               WHERE EXISTS (SELECT 1 FROM invocations i WHERE i.owner = o.id AND i.status IS NULL)";
    let rows = sqlx::query(sql).fetch_all(&store.readers).await.map_err(failed("look for calls that run"))?;
    let function = |row: &Row| {
        let namespace = row.try_get::<&str, _>("namespace").map_err(odd)?.parse().map_err(odd)?;
        let name = row.try_get::<&str, _>("function").map_err(odd)?.parse().map_err(odd)?;
        Ok(FunctionRef { namespace, name })
    };
    rows.iter().map(function).collect()
}

pub(super) async fn lose(
    store: &Database,
    function: &FunctionRef,
    running_since: Moment,
    queued_since: Moment,
    error: &str,
) -> Result<u64, StoreError> {
    let sql = "UPDATE invocations SET status = 'lost', finished_at = $1, error = $2
               WHERE owner = (SELECT id FROM owners WHERE namespace = $3 AND function = $4) AND status IS NULL
                 AND started_at < CASE WHEN started THEN $5 ELSE $6 END";
    let query = sqlx::query(sql).bind(Moment::now().0).bind(error);
    let query = query.bind(function.namespace.as_str()).bind(function.name.as_str());
    let query = query.bind(running_since.0).bind(queued_since.0);
    let done = query.execute(&store.writer).await.map_err(failed("note which calls are lost"))?;
    Ok(done.rows_affected())
}
