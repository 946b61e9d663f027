//! Where uploaded code is kept: in the data folder, or in S3.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};
use sless_api::DirStore;
use sless_backend::{CodeStore, Secret};
use sless_codestore_s3::{S3Settings, S3Store};

use crate::error::{CliError, chain};

/// The bucket that uploaded code is kept in, if one is named.
#[derive(Debug, Args)]
pub(crate) struct S3Args {
    /// Keep uploaded code in this bucket, which is made if it isn't there [default: in the data folder]
    #[arg(long, env = "S3_BUCKET")]
    s3_bucket: Option<String>,
    /// The server, as http://HOST:PORT [default: Amazon's]
    #[arg(long, env = "S3_ENDPOINT", value_name = "URL")]
    s3_endpoint: Option<String>,
    /// The bucket's region
    #[arg(long, env = "S3_REGION", default_value = S3Settings::DEFAULT_REGION)]
    s3_region: String,
    /// Who uses the bucket
    #[arg(long, env = "S3_ACCESS_KEY_ID", value_name = "ID", hide_env_values = true)]
    s3_access_key_id: Option<String>,
    /// The key to that; rather in the environment than here, where all users of the machine see it
    #[arg(long, env = "S3_SECRET_ACCESS_KEY", value_name = "KEY", hide_env_values = true)]
    s3_secret_access_key: Option<String>,
    /// The bucket in the path and not in the host's name: true or false
    #[arg(long, env = "S3_FORCE_PATH_STYLE", value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    s3_force_path_style: bool,
}

impl S3Args {
    /// The bucket, for people; `None` without one.
    pub(crate) fn place(&self) -> Option<String> {
        let bucket = self.bucket()?;
        Some(match self.endpoint() {
            Some(endpoint) => format!("s3://{bucket} at {endpoint}"),
            None => format!("s3://{bucket}"),
        })
    }

    // An empty variable is what a settings file has in the place of none.
    fn bucket(&self) -> Option<&str> {
        self.s3_bucket.as_deref().filter(|bucket| !bucket.is_empty())
    }

    fn endpoint(&self) -> Option<&str> {
        self.s3_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty())
    }

    /// The bucket, which is made if it isn't there; without one, `folder`.
    ///
    /// # Errors
    /// [`CliError::Refused`] if a setting is wrong; [`CliError::Host`] if the bucket can't be used.
    pub(crate) async fn open(&self, folder: PathBuf) -> Result<Arc<dyn CodeStore>, CliError> {
        let Some(bucket) = self.bucket() else { return Ok(Arc::new(DirStore::new(folder))) };
        let settings = S3Settings {
            endpoint: self.endpoint().map(str::to_owned),
            region: self.s3_region.clone(),
            bucket: bucket.to_owned(),
            access_key_id: Secret::new(self.s3_access_key_id.clone().unwrap_or_default()),
            secret_access_key: Secret::new(self.s3_secret_access_key.clone().unwrap_or_default()),
            force_path_style: self.s3_force_path_style,
        };
        let settings = settings.check().map_err(|e| CliError::Refused(e.to_string()))?;
        let store = S3Store::open(&settings).await.map_err(|e| CliError::Host(chain(&e)))?;
        Ok(Arc::new(store))
    }
}
