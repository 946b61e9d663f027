use std::collections::BTreeMap;

use sless_backend::{FunctionRef, Moment, Secret, SecretRow};
use sless_core::{FunctionSettings, Namespace, SecretName};
use sqlx::{AssertSqlSafe, Row as _};

use super::super::{Connection, Database, Row};
use super::{failed, odd, unique};
use crate::store::StoreError;
use crate::vault::Vault;

const COLUMNS: &str = "id, namespace, name, keys, sealed, version, created_at, updated_at";

fn secret(row: &Row) -> Result<Sealed, StoreError> {
    let text = |column| row.try_get::<&str, _>(column).map_err(odd);
    let number = |column| row.try_get::<i64, _>(column).map_err(odd);
    let sealed = row.try_get("sealed").map_err(odd)?;
    let row = SecretRow {
        id: number("id")?,
        namespace: text("namespace")?.parse().map_err(odd)?,
        name: text("name")?.parse().map_err(odd)?,
        keys: serde_json::from_str(text("keys")?).map_err(odd)?,
        version: number("version")?.unsigned_abs(),
        created_at: Moment(number("created_at")?),
        updated_at: Moment(number("updated_at")?),
    };
    Ok((row, sealed))
}

fn list(values: &BTreeMap<String, Secret>) -> String {
    values.keys().map(String::as_str).collect::<serde_json::Value>().to_string()
}

/// Fails if `settings` name a secret that isn't there. In the transaction that writes them: the write holds the secret's row, so that
/// it can't go meanwhile.
pub(super) async fn check_named(
    tx: &mut Connection,
    namespace: &Namespace,
    settings: &FunctionSettings,
) -> Result<(), StoreError> {
    for name in &settings.secrets {
        let query = sqlx::query("UPDATE secrets SET version = version WHERE namespace = $1 AND name = $2");
        let query = query.bind(namespace.as_str()).bind(name.as_str());
        let held = query.execute(&mut *tx).await.map_err(failed("look for a secret"))?;
        if held.rows_affected() == 0 {
            return Err(StoreError::NoSecret(name.as_str().to_owned()));
        }
    }
    Ok(())
}

/// The functions that name a secret, with their ids. Called when the secret's row is held.
async fn naming(tx: &mut Connection, secret: &SecretRow) -> Result<Vec<(i64, FunctionRef)>, StoreError> {
    let query = sqlx::query("SELECT id, name, settings FROM functions WHERE namespace = $1 ORDER BY id");
    let rows = query.bind(secret.namespace.as_str()).fetch_all(tx).await;
    let mut found = Vec::new();
    for row in rows.map_err(failed("find what names a secret"))? {
        let text = |column| row.try_get::<&str, _>(column).map_err(odd);
        let settings: serde_json::Value = serde_json::from_str(text("settings")?).map_err(odd)?;
        let named = settings.get("secrets").and_then(serde_json::Value::as_array);
        if named.is_some_and(|list| list.iter().any(|name| name == secret.name.as_str())) {
            let name = text("name")?.parse().map_err(odd)?;
            let id = row.try_get("id").map_err(odd)?;
            found.push((id, FunctionRef { namespace: secret.namespace.clone(), name }));
        }
    }
    Ok(found)
}

/// A row, and what is sealed in it.
pub(super) type Sealed = (SecretRow, Vec<u8>);

pub(super) async fn insert(
    store: &Database,
    vault: &Vault,
    namespace: &Namespace,
    name: &SecretName,
    values: &BTreeMap<String, Secret>,
) -> Result<SecretRow, StoreError> {
    let sql = format!(
        "INSERT INTO secrets (namespace, name, keys, sealed, version, created_at, updated_at)
         VALUES ($1, $2, $3, $4, 1, $5, $5) RETURNING {COLUMNS}"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
    let query = query.bind(list(values)).bind(vault.seal(namespace, name, values)?).bind(Moment::now().0);
    Ok(secret(&query.fetch_one(&store.writer).await.map_err(unique("keep a secret"))?)?.0)
}

pub(super) async fn change(
    store: &Database,
    vault: &Vault,
    row: &SecretRow,
    values: &BTreeMap<String, Secret>,
) -> Result<(SecretRow, Vec<FunctionRef>), StoreError> {
    let mut tx = store.write().await?;
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE id = $1");
    let read = sqlx::query(AssertSqlSafe(sql)).bind(row.id).fetch_optional(&mut *tx).await;
    let (now, sealed) = secret(&read.map_err(failed("read a secret"))?.ok_or(StoreError::Stale)?)?;
    // The same values again need no new workers.
    if now.version == row.version && vault.unseal(&row.namespace, &row.name, &sealed).as_ref() == Some(values)
    {
        return Ok((now, Vec::new()));
    }
    let sql = format!(
        "UPDATE secrets SET keys = $1, sealed = $2, updated_at = $3, version = version + 1
         WHERE id = $4 AND version = $5 RETURNING {COLUMNS}"
    );
    let sealed = vault.seal(&row.namespace, &row.name, values)?;
    let query = sqlx::query(AssertSqlSafe(sql)).bind(list(values)).bind(sealed);
    let query = query.bind(Moment::now().0).bind(row.id).bind(row.version.cast_signed());
    let written = query.fetch_optional(&mut *tx).await.map_err(failed("change a secret"))?;
    let (changed, _) = secret(&written.ok_or(StoreError::Stale)?)?;
    let mut told = Vec::new();
    for (id, function) in naming(&mut tx, row).await? {
        // The version too, so that a write that goes on at the same time does not give the same generation again.
        let sql = "UPDATE functions SET generation = generation + 1, version = version + 1 WHERE id = $1";
        let query = sqlx::query(sql).bind(id).execute(&mut *tx);
        query.await.map_err(failed("tell of a changed secret"))?;
        told.push(function);
    }
    tx.commit().await.map_err(failed("change a secret"))?;
    Ok((changed, told))
}

pub(super) async fn one(
    store: &Database,
    namespace: &Namespace,
    name: &SecretName,
) -> Result<Option<Sealed>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE namespace = $1 AND name = $2");
    let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
    let row = query.fetch_optional(&store.readers).await.map_err(failed("read a secret"))?;
    row.as_ref().map(secret).transpose()
}

pub(super) async fn page(
    store: &Database,
    namespace: &Namespace,
    below: Option<i64>,
    limit: u32,
) -> Result<Vec<SecretRow>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM secrets WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
    let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str());
    let query = query.bind(below.unwrap_or(i64::MAX)).bind(i64::from(limit));
    let rows = query.fetch_all(&store.readers).await.map_err(failed("list secrets"))?;
    rows.iter().map(|row| Ok(secret(row)?.0)).collect()
}

/// Those of all namespaces, oldest first.
pub(super) async fn all(store: &Database) -> Result<Vec<Sealed>, StoreError> {
    let query = sqlx::query(AssertSqlSafe(format!("SELECT {COLUMNS} FROM secrets ORDER BY id")));
    query.fetch_all(&store.readers).await.map_err(failed("list secrets"))?.iter().map(secret).collect()
}

pub(super) async fn remove(store: &Database, row: &SecretRow) -> Result<Option<FunctionRef>, StoreError> {
    let mut tx = store.write().await?;
    let query = sqlx::query("DELETE FROM secrets WHERE id = $1 AND version = $2");
    let query = query.bind(row.id).bind(row.version.cast_signed());
    let gone = query.execute(&mut *tx).await.map_err(failed("remove a secret"))?;
    if gone.rows_affected() == 0 {
        return Err(StoreError::Stale);
    }
    // Without a commit it is still there.
    if let Some((_, function)) = naming(&mut tx, row).await?.into_iter().next() {
        return Ok(Some(function));
    }
    tx.commit().await.map_err(failed("remove a secret"))?;
    Ok(None)
}
