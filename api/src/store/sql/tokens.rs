use async_trait::async_trait;
use sless_core::{Namespace, TokenName};
use sqlx::{AssertSqlSafe, Row as _};

use super::super::{Database, Row};
use super::{failed, odd, unique};
use crate::auth::{Role, TokenHash};
use crate::store::{StoreError, TokenRow, Tokens};
use sless_backend::Moment;

const COLUMNS: &str = "id, namespace, name, role, created_at, expires_at";

fn token(row: &Row) -> Result<TokenRow, StoreError> {
    let text = |column| row.try_get::<&str, _>(column).map_err(odd);
    let role = text("role")?;
    Ok(TokenRow {
        id: row.try_get("id").map_err(odd)?,
        namespace: text("namespace")?.parse().map_err(odd)?,
        name: text("name")?.parse().map_err(odd)?,
        role: Role::parse(role).ok_or_else(|| odd(std::io::Error::other(format!("role {role:?}"))))?,
        created_at: Moment(row.try_get("created_at").map_err(odd)?),
        expires_at: row.try_get::<Option<i64>, _>("expires_at").map_err(odd)?.map(Moment),
    })
}

#[async_trait]
impl Tokens for Database {
    async fn insert_token(
        &self,
        namespace: &Namespace,
        name: &TokenName,
        role: Role,
        hash: &TokenHash,
        expires_at: Option<Moment>,
    ) -> Result<TokenRow, StoreError> {
        let sql = format!(
            "INSERT INTO tokens (namespace, name, role, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6) RETURNING {COLUMNS}"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
        let query = query.bind(role.as_str()).bind(&hash.bytes()[..]).bind(Moment::now().0);
        let query = query.bind(expires_at.map(|m| m.0));
        let mut tx = self.write().await?;
        let over = sqlx::query("DELETE FROM tokens WHERE namespace = $1 AND name = $2 AND expires_at <= $3");
        let over = over.bind(namespace.as_str()).bind(name.as_str()).bind(Moment::now().0);
        over.execute(&mut *tx).await.map_err(failed("keep a token"))?;
        let kept = token(&query.fetch_one(&mut *tx).await.map_err(unique("keep a token"))?)?;
        tx.commit().await.map_err(failed("keep a token"))?;
        Ok(kept)
    }

    async fn token(&self, namespace: &Namespace, name: &TokenName) -> Result<Option<TokenRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM tokens WHERE namespace = $1 AND name = $2");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str()).bind(name.as_str());
        let row = query.fetch_optional(&self.readers).await.map_err(failed("read a token"))?;
        row.as_ref().map(token).transpose()
    }

    async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM tokens WHERE hash = $1");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(&hash.bytes()[..]);
        let row = query.fetch_optional(&self.readers).await.map_err(failed("look for a token"))?;
        row.as_ref().map(token).transpose()
    }

    async fn tokens(
        &self,
        namespace: &Namespace,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<TokenRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM tokens WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str());
        let query = query.bind(below.unwrap_or(i64::MAX)).bind(i64::from(limit));
        query.fetch_all(&self.readers).await.map_err(failed("list tokens"))?.iter().map(token).collect()
    }

    async fn remove_token(&self, row: &TokenRow) -> Result<(), StoreError> {
        let query = sqlx::query("DELETE FROM tokens WHERE id = $1").bind(row.id);
        let gone = query.execute(&self.writer).await.map_err(failed("remove a token"))?;
        if gone.rows_affected() == 0 { Err(StoreError::Gone) } else { Ok(()) }
    }
}
