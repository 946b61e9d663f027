use sless_backend::{CodeRef, FunctionChange, FunctionRef, FunctionRow, Moment, Reachable, RevisionRow};
use sless_core::{Digest, FunctionSettings, Namespace, Runtime};
use sqlx::{AssertSqlSafe, Row as _};

use super::super::{Database, Row, kept};
use super::{failed, odd, secrets, triggers, unique};
use crate::store::StoreError;

const COLUMNS: &str = "id, namespace, name, runtime, settings, version, generation, wanted, active, deleting, created_at, updated_at";

fn function(row: &Row) -> Result<FunctionRow, StoreError> {
    let text = |column| row.try_get::<String, _>(column).map_err(odd);
    let number = |column| row.try_get::<i64, _>(column).map_err(odd);
    Ok(FunctionRow {
        id: number("id")?,
        function: FunctionRef {
            namespace: text("namespace")?.parse().map_err(odd)?,
            name: text("name")?.parse().map_err(odd)?,
        },
        runtime: text("runtime")?.parse().map_err(odd)?,
        settings: settings(&text("settings")?)?,
        version: number("version")?.unsigned_abs(),
        generation: number("generation")?.unsigned_abs(),
        wanted: row.try_get("wanted").map_err(odd)?,
        active: row.try_get("active").map_err(odd)?,
        deleting: row.try_get("deleting").map_err(odd)?,
        created_at: Moment(number("created_at")?),
        updated_at: Moment(number("updated_at")?),
    })
}

/// By the table of settings and not by the struct, so that rows from before a setting was added get its default.
fn settings(text: &str) -> Result<FunctionSettings, StoreError> {
    FunctionSettings::from_object(&serde_json::from_str(text).map_err(odd)?).map_err(odd)
}

fn settings_text(settings: &FunctionSettings) -> String {
    serde_json::Value::Object(settings.to_object()).to_string()
}

fn digest(row: &Row, column: &str) -> Result<Digest, StoreError> {
    let bytes: &[u8] = row.try_get(column).map_err(odd)?;
    Ok(Digest::new(bytes.try_into().map_err(odd)?))
}

fn revision_of(row: &Row) -> Result<RevisionRow, StoreError> {
    Ok(RevisionRow {
        name: row.try_get("name").map_err(odd)?,
        settings: settings(row.try_get("settings").map_err(odd)?)?,
        code: CodeRef { sha256: digest(row, "code_sha256")?, content_sha256: digest(row, "content_sha256")? },
        image: None,
        created_at: Moment(row.try_get("created_at").map_err(odd)?),
    })
}

pub(super) async fn insert(
    store: &Database,
    f: &FunctionRef,
    runtime: &Runtime,
    settings: &FunctionSettings,
) -> Result<FunctionRow, StoreError> {
    let sql = format!(
        "INSERT INTO functions (namespace, name, runtime, settings, version, generation, created_at, updated_at)
         VALUES ($1, $2, $3, $4, 1, 1, $5, $5) RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(f.namespace.as_str()).bind(f.name.as_str());
    let query = query.bind(runtime.as_str()).bind(settings_text(settings)).bind(Moment::now().0);
    let mut tx = store.write().await?;
    secrets::check_named(&mut tx, &f.namespace, settings).await?;
    let kept = function(&query.fetch_one(&mut *tx).await.map_err(unique("keep a function"))?)?;
    // The calls of an earlier function of this name are not this one's history.
    let since = sqlx::query("UPDATE owners SET since = $1 WHERE namespace = $2 AND function = $3");
    let since = since.bind(kept.created_at.0).bind(f.namespace.as_str()).bind(f.name.as_str());
    since.execute(&mut *tx).await.map_err(failed("keep a function"))?;
    tx.commit().await.map_err(failed("keep a function"))?;
    Ok(kept)
}

pub(super) async fn one(store: &Database, f: &FunctionRef) -> Result<Option<FunctionRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM functions WHERE namespace = $1 AND name = $2");
    let query = sqlx::query(AssertSqlSafe(sql)).bind(f.namespace.as_str()).bind(f.name.as_str());
    query
        .fetch_optional(&store.readers)
        .await
        .map_err(failed("read a function"))?
        .as_ref()
        .map(function)
        .transpose()
}

pub(super) async fn page(
    store: &Database,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<FunctionRow>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM functions WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
    let query = sqlx::query(AssertSqlSafe(sql))
        .bind(namespace.as_str())
        .bind(below.unwrap_or(i64::MAX))
        .bind(i64::from(limit));
    query.fetch_all(&store.readers).await.map_err(failed("list functions"))?.iter().map(function).collect()
}

pub(super) async fn all(store: &Database) -> Result<Vec<FunctionRow>, StoreError> {
    let query = sqlx::query(AssertSqlSafe(format!("SELECT {COLUMNS} FROM functions ORDER BY id")));
    query.fetch_all(&store.readers).await.map_err(failed("list functions"))?.iter().map(function).collect()
}

pub(super) async fn change(
    store: &Database,
    row: &FunctionRow,
    change: &FunctionChange,
) -> Result<FunctionRow, StoreError> {
    let mut tx = store.write().await?;
    secrets::check_named(&mut tx, &row.function.namespace, &change.settings).await?;
    if let Some(revision) = &change.wanted {
        // The same content from another zip is the same revision; it shows the zip that was uploaded last.
        let sql = "INSERT INTO revisions (function_id, name, settings, code_sha256, content_sha256, created_at) VALUES ($1, $2, $3, $4, $5, $6)
                   ON CONFLICT (function_id, name) DO UPDATE SET code_sha256 = excluded.code_sha256, settings = excluded.settings";
        let query =
            sqlx::query(sql).bind(row.id).bind(&revision.name).bind(settings_text(&revision.settings));
        let query =
            query.bind(&revision.code.sha256.bytes()[..]).bind(&revision.code.content_sha256.bytes()[..]);
        let kept = query.bind(revision.created_at.0).execute(&mut *tx).await;
        kept.map_err(|e| match &e {
            // The function went meanwhile.
            sqlx::Error::Database(d) if d.is_foreign_key_violation() => StoreError::Stale,
            _ => failed("keep a revision")(e),
        })?;
    }
    let sql = format!(
        "UPDATE functions SET settings = $1, generation = generation + $2, wanted = COALESCE($3, wanted), updated_at = $4, version = version + 1
         WHERE id = $5 AND version = $6 RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(settings_text(&change.settings));
    let query = query.bind(i64::from(change.wanted.is_some())).bind(change.wanted.as_ref().map(|r| &r.name));
    let query = query.bind(Moment::now().0).bind(row.id).bind(row.version.cast_signed());
    let written = query.fetch_optional(&mut *tx).await.map_err(failed("change a function"))?;
    let changed = function(&written.ok_or(StoreError::Stale)?)?;
    tx.commit().await.map_err(failed("change a function"))?;
    Ok(changed)
}

pub(super) async fn delete(store: &Database, row: &FunctionRow) -> Result<FunctionRow, StoreError> {
    let sql = format!(
        "UPDATE functions SET deleting = TRUE, updated_at = $1, version = version + 1 WHERE id = $2 AND version = $3 RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(Moment::now().0).bind(row.id);
    let query = query.bind(row.version.cast_signed());
    let mut tx = store.write().await?;
    let written = query.fetch_optional(&mut *tx).await.map_err(failed("change a function"))?;
    let changed = function(&written.ok_or(StoreError::Stale)?)?;
    tx.commit().await.map_err(failed("change a function"))?;
    Ok(changed)
}

pub(super) async fn set_active(store: &Database, f: &FunctionRef, revision: &str) -> Result<(), StoreError> {
    let query = sqlx::query(
        "UPDATE functions SET active = $1 WHERE namespace = $2 AND name = $3 AND active IS DISTINCT FROM $1",
    );
    let query = query.bind(revision).bind(f.namespace.as_str()).bind(f.name.as_str());
    query.execute(&store.writer).await.map(drop).map_err(failed("note the active revision"))
}

pub(super) async fn remove(store: &Database, f: &FunctionRef) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM functions WHERE namespace = $1 AND name = $2 AND deleting");
    let query = query.bind(f.namespace.as_str()).bind(f.name.as_str());
    query.execute(&store.writer).await.map(drop).map_err(failed("remove a function"))
}

const REVISION: &str = "name, settings, code_sha256, content_sha256, created_at";

pub(super) async fn revision(
    store: &Database,
    function_id: i64,
    name: &str,
) -> Result<Option<RevisionRow>, StoreError> {
    let sql = format!("SELECT {REVISION} FROM revisions WHERE function_id = $1 AND name = $2");
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(function_id)
        .bind(kept(name))
        .fetch_optional(&store.readers)
        .await;
    row.map_err(failed("read a revision"))?.as_ref().map(revision_of).transpose()
}

pub(super) async fn revisions(store: &Database, function_id: i64) -> Result<Vec<RevisionRow>, StoreError> {
    let sql = format!("SELECT {REVISION} FROM revisions WHERE function_id = $1 ORDER BY id DESC");
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(function_id).fetch_all(&store.readers).await;
    rows.map_err(failed("list revisions"))?.iter().map(revision_of).collect()
}

pub(super) async fn forget_revisions(
    store: &Database,
    function_id: i64,
    keep: u32,
) -> Result<Vec<RevisionRow>, StoreError> {
    let sql = format!(
        "DELETE FROM revisions WHERE function_id = $1
           AND id NOT IN (SELECT id FROM revisions WHERE function_id = $1 ORDER BY id DESC LIMIT $2)
           AND NOT EXISTS (SELECT 1 FROM functions f WHERE f.id = $1 AND revisions.name IN (f.wanted, f.active))
         RETURNING {REVISION}"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(function_id)
        .bind(i64::from(keep))
        .fetch_all(&store.writer)
        .await;
    rows.map_err(failed("forget revisions"))?.iter().map(revision_of).collect()
}

pub(super) async fn reachable(store: &Database) -> Result<Vec<Reachable>, StoreError> {
    // One question, so that the answer is one picture.
    let sql = "SELECT f.namespace, f.name, t.settings FROM functions f
               LEFT JOIN triggers t ON t.namespace = f.namespace AND t.function = f.name AND t.type = 'http' AND t.enabled
               WHERE NOT f.deleting ORDER BY f.id, t.id";
    let rows = sqlx::query(sql).fetch_all(&store.readers).await.map_err(failed("read the routes"))?;
    let mut all: Vec<Reachable> = Vec::new();
    for row in &rows {
        let namespace = row.try_get::<&str, _>("namespace").map_err(odd)?.parse().map_err(odd)?;
        let name = row.try_get::<&str, _>("name").map_err(odd)?.parse().map_err(odd)?;
        let function = FunctionRef { namespace, name };
        let settings = row.try_get::<Option<&str>, _>("settings").map_err(odd)?;
        let trigger = settings.map(triggers::http).transpose()?;
        match all.last_mut().filter(|last| last.function == function) {
            Some(last) => last.triggers.extend(trigger),
            None => all.push(Reachable { function, triggers: trigger.into_iter().collect() }),
        }
    }
    Ok(all)
}
