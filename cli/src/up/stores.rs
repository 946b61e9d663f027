//! What of a host lies outside its data folder. It is noted in the folder, so that a backup can say what it has not, and a host that
//! is started without its settings does not begin anew in silence.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sless_api::Database;

use crate::error::CliError;

/// Where a host keeps what it keeps; `None` for what is in its data folder. Holds no passwords.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stores {
    /// `HOST/NAME` of the database that `DATABASE_URL` names.
    pub(crate) postgres: Option<String>,
    /// `s3://BUCKET` and whose that is.
    pub(crate) s3: Option<String>,
}

impl Stores {
    pub(crate) fn of(database: &Database, s3: Option<String>) -> Self {
        let postgres = match database {
            Database::Sqlite(_) => None,
            Database::Postgres(url) => Some(without_secrets(url.reveal())),
        };
        Self { postgres, s3 }
    }

    /// Those of the last host on this folder; all is in the folder if there was none.
    pub(crate) fn read(folder: &Path) -> Result<Self, CliError> {
        let path = file(folder);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(CliError::file("read", path)(e)),
        };
        serde_json::from_slice(&text).map_err(|e| CliError::file("read", path)(e.into()))
    }

    pub(crate) fn keep(&self, folder: &Path) -> Result<(), CliError> {
        let path = file(folder);
        let text = serde_json::to_string(self).map_err(io::Error::other);
        let kept = text.and_then(|text| super::data::write_private(&path, &text));
        kept.map_err(CliError::file("write", path))
    }

    /// What `self` says beyond `now`: functions or code that a host with `now` will not see.
    pub(crate) fn left_behind(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(was) = self.postgres.as_ref().filter(|_| self.postgres != now.postgres) {
            found.push(format!("functions, tokens and records of this folder are in PostgreSQL at {was}; DATABASE_URL names another database or none"));
        }
        if let Some(was) = self.s3.as_ref().filter(|_| self.s3 != now.s3) {
            found.push(format!("the code of this folder's functions is in {was}; S3_BUCKET and S3_ENDPOINT name another place or none"));
        }
        found
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("private/stores.json")
}

/// `HOST/NAME` of a URL, or `HOST/NAME at FOLDER` if it has a socket; nothing that would let anybody in.
fn without_secrets(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    match query.split('&').find_map(|part| part.strip_prefix("host=")) {
        Some(socket) => format!("{place} at {socket}"),
        None => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use sless_backend::Secret;

    use super::*;

    #[test]
    fn what_is_elsewhere_is_noted_without_its_passwords() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("private")).unwrap();
        assert_eq!(Stores::read(folder.path()).unwrap(), Stores::default());
        for (url, noted) in [
            ("postgres://me:pass@word@db:5432/sless?sslmode=require&password=pass", "db:5432/sless"),
            ("postgres://me@localhost/sless?host=/run/pg", "localhost/sless at /run/pg"),
            ("postgresql:///sless", "/sless"),
        ] {
            let database = Database::Postgres(Secret::new(url));
            let stores = Stores::of(&database, Some("s3://code at http://s3".to_owned()));
            assert_eq!(stores.postgres.as_deref(), Some(noted));
            stores.keep(folder.path()).unwrap();
            assert_eq!(Stores::read(folder.path()).unwrap(), stores);
        }
    }

    #[test]
    fn what_a_host_will_not_see_is_told() {
        let in_folder = Stores::default();
        let elsewhere = Stores { postgres: Some("db/sless".into()), s3: Some("s3://code".into()) };
        let other = Stores { s3: Some("s3://other".into()), ..elsewhere.clone() };
        assert_eq!(elsewhere.left_behind(&in_folder).len(), 2);
        assert_eq!(elsewhere.left_behind(&other).len(), 1);
        assert!(elsewhere.left_behind(&elsewhere).is_empty() && in_folder.left_behind(&elsewhere).is_empty());
    }
}
