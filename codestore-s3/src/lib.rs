//! Uploaded zips in S3, or in what speaks like it: [`S3Store`] is a [`CodeStore`] whose keys are `{namespace}/{function}/{sha256}.zip`.
//!
//! A crate of its own, since the client is the largest thing that sless is built from.

mod settings;

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use sless_backend::{CodeError, CodeStore, FunctionRef};
use sless_core::{Digest, Namespace};
use tokio::io::AsyncWriteExt;

pub use settings::{S3Settings, SettingsError};

/// To get a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Until an answer begins. One that has begun and then stalls is given up by the client's own guard.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Of a link that is still of use for uploads: these have more time, by their size.
const SLOWEST_BYTES_PER_SEC: u64 = 128 << 10;
/// The second and third come after at most 1 and 2 seconds.
const ATTEMPTS: u32 = 3;

fn within(answer: Duration) -> TimeoutConfig {
    TimeoutConfig::builder().connect_timeout(CONNECT_WITHIN).read_timeout(answer).build()
}

/// See the crate.
#[derive(Debug, Clone)]
pub struct S3Store {
    client: Client,
    bucket: String,
}

impl S3Store {
    /// Makes the bucket if it isn't there.
    ///
    /// # Errors
    /// [`CodeError::Failed`] if S3 does not answer, the keys are wrong, or the bucket may neither be used nor made.
    pub async fn open(settings: &S3Settings) -> Result<Self, CodeError> {
        let store = Self::existing(settings);
        store.ensure_bucket(&settings.region).await?;
        Ok(store)
    }

    /// With a bucket that somebody else has made, or will; asks nobody.
    #[must_use]
    pub fn existing(settings: &S3Settings) -> Self {
        let keys = (settings.access_key_id.reveal(), settings.secret_access_key.reveal());
        let credentials = Credentials::new(keys.0, keys.1, None, None, "settings");
        // The cryptography that all of sless uses; the client's own default would bring a second one, in C.
        let tls = Provider::Rustls(CryptoMode::Ring);
        let mut config = aws_sdk_s3::Config::builder()
            .http_client(aws_smithy_http_client::Builder::new().tls_provider(tls).build_https())
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(credentials)
            .region(Region::new(settings.region.clone()))
            .force_path_style(settings.force_path_style)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(within(ANSWER_WITHIN));
        if let Some(endpoint) = &settings.endpoint {
            config = config.endpoint_url(endpoint);
        }
        Self { client: Client::from_conf(config.build()), bucket: settings.bucket.clone() }
    }

    /// An URL from which whoever has it can get this zip, for so long. Asks nobody, so the zip need not be there.
    ///
    /// # Errors
    /// [`CodeError::Failed`] if S3 takes no URLs that last so long (a week is the most).
    pub async fn presign_get(
        &self,
        function: &FunctionRef,
        sha256: &Digest,
        lasts: Duration,
    ) -> Result<String, CodeError> {
        let key = Self::key(function, sha256);
        let action = || format!("sign an URL for {}", self.name(&key));
        let lasts = PresigningConfig::expires_in(lasts)
            .map_err(|e| CodeError::Failed { action: action(), source: io::Error::other(e) })?;
        let get = self.client.get_object().bucket(&self.bucket).key(&key).presigned(lasts).await;
        get.map(|request| request.uri().to_owned()).map_err(|error| failed(action(), error))
    }

    /// Removes all zips of a namespace, also of functions that were never made.
    ///
    /// # Errors
    /// [`CodeError::Failed`]; the same again goes on where this has ended.
    pub async fn forget(&self, namespace: &Namespace) -> Result<usize, CodeError> {
        let prefix = format!("{namespace}/");
        let mut pages =
            self.client.list_objects_v2().bucket(&self.bucket).prefix(&prefix).into_paginator().send();
        let mut forgotten = 0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failed(format!("list {}", self.name(&prefix)), error))?;
            for key in page.contents().iter().filter_map(|object| object.key()) {
                let deleted = self.client.delete_object().bucket(&self.bucket).key(key).send().await;
                deleted.map_err(|error| failed(format!("remove {}", self.name(key)), error))?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    async fn ensure_bucket(&self, region: &str) -> Result<(), CodeError> {
        use aws_sdk_s3::types::{BucketLocationConstraint, CreateBucketConfiguration};
        let action = || format!("use the bucket {:?}", self.bucket);
        match self.client.head_bucket().bucket(&self.bucket).send().await {
            Ok(_) => return Ok(()),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(action(), error)),
        }
        let mut create = self.client.create_bucket().bucket(&self.bucket);
        // S3's first region is the one that may not be named.
        if region != "us-east-1" {
            let location = BucketLocationConstraint::from(region);
            let location = CreateBucketConfiguration::builder().location_constraint(location).build();
            create = create.create_bucket_configuration(location);
        }
        match create.send().await {
            Ok(_) => tracing::info!(bucket = %self.bucket, "made the bucket {}", self.bucket),
            // Another one has made it meanwhile.
            Err(error) if error.code() == Some("BucketAlreadyOwnedByYou") => {}
            // The words of some that know but one owner; the next look tells whether it is ours.
            Err(error) if error.code() == Some("BucketAlreadyExists") => {}
            Err(error) => return Err(failed(format!("make the bucket {:?}", self.bucket), error)),
        }
        let seen = self.client.head_bucket().bucket(&self.bucket).send().await;
        seen.map(drop).map_err(|error| failed(action(), error))
    }

    fn key(function: &FunctionRef, sha256: &Digest) -> String {
        format!("{}{sha256}.zip", Self::prefix(function))
    }

    fn prefix(function: &FunctionRef) -> String {
        format!("{}/{}/", function.namespace, function.name)
    }

    fn name(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket)
    }
}

fn failed<E>(action: String, error: SdkError<E>) -> CodeError
where
    SdkError<E>: std::error::Error + Send + Sync + 'static,
{
    // Its own text is one word; what S3 said is in the context. The chain is in the text then, so it is no source.
    CodeError::Failed { action, source: io::Error::other(DisplayErrorContext(error).to_string()) }
}

fn on_disk(action: String) -> impl FnOnce(io::Error) -> CodeError {
    move |source| CodeError::Failed { action, source }
}

/// By the status too: an answer to HEAD has no body that could name the error.
fn is_absent<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    matches!(error.code(), Some("NotFound" | "NoSuchKey" | "NoSuchBucket"))
        || error.raw_response().is_some_and(|response| response.status().as_u16() == 404)
}

#[async_trait]
impl CodeStore for S3Store {
    async fn put_if_absent(
        &self,
        function: &FunctionRef,
        sha256: &Digest,
        from: &Path,
    ) -> Result<(), CodeError> {
        let key = Self::key(function, sha256);
        match self.client.head_object().bucket(&self.bucket).key(&key).send().await {
            Ok(_) => return Ok(()),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(format!("look for {}", self.name(&key)), error)),
        }
        let body = ByteStream::from_path(from).await;
        let body = body.map_err(|e| on_disk(format!("read {}", from.display()))(io::Error::other(e)))?;
        // Two that put it at once put the same bytes: the key is their digest.
        let put = self.client.put_object().bucket(&self.bucket).key(&key).content_type("application/zip");
        let size =
            tokio::fs::metadata(from).await.map_err(on_disk(format!("read {}", from.display())))?.len();
        let limit = within(ANSWER_WITHIN + Duration::from_secs(size / SLOWEST_BYTES_PER_SEC));
        let more_time = aws_sdk_s3::Config::builder().timeout_config(limit);
        let put = put.body(body).customize().config_override(more_time).send().await;
        put.map(drop).map_err(|error| failed(format!("keep the code in {}", self.name(&key)), error))
    }

    async fn get(&self, function: &FunctionRef, sha256: &Digest) -> Result<File, CodeError> {
        let key = Self::key(function, sha256);
        let answer = self.client.get_object().bucket(&self.bucket).key(&key).send().await;
        let mut body = match answer {
            Ok(answer) => answer.body,
            Err(error) if is_absent(&error) => return Err(CodeError::NotFound(*sha256)),
            Err(error) => return Err(failed(format!("read {}", self.name(&key)), error)),
        };
        // A file without a name: it is gone when it is closed, whatever happens.
        let copy = || format!("copy {}", self.name(&key));
        let mut file = tokio::fs::File::from_std(tempfile::tempfile().map_err(on_disk(copy()))?);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|e| on_disk(copy())(io::Error::other(e)))?;
            file.write_all(&chunk).await.map_err(on_disk(copy()))?;
        }
        file.flush().await.map_err(on_disk(copy()))?;
        let mut file = file.into_std().await;
        file.rewind().map_err(on_disk(copy()))?;
        Ok(file)
    }

    async fn delete(&self, function: &FunctionRef, sha256: &Digest) -> Result<(), CodeError> {
        let key = Self::key(function, sha256);
        match self.client.delete_object().bucket(&self.bucket).key(&key).send().await {
            Err(error) if !is_absent(&error) => Err(failed(format!("remove {}", self.name(&key)), error)),
            _ => Ok(()),
        }
    }

    async fn list(&self, function: &FunctionRef) -> Result<Vec<Digest>, CodeError> {
        let prefix = Self::prefix(function);
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(&prefix);
        let mut pages = list.into_paginator().send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failed(format!("list {}", self.name(&prefix)), error))?;
            let names = page.contents().iter().filter_map(|object| object.key()?.strip_prefix(&prefix));
            found.extend(names.filter_map(|name| name.strip_suffix(".zip")?.parse::<Digest>().ok()));
        }
        Ok(found)
    }
}
