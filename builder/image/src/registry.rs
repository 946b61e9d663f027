//! Puts layers on top of an image in a registry: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md>.

use std::path::PathBuf;

use futures_util::TryStreamExt;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::manifest::{OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio_util::io::ReaderStream;

use crate::image::{self, ImageError, MANIFEST_TYPE, Top};
use crate::layer::Layer;

/// What went wrong between here and a registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{action}: {source}")]
    Registry {
        /// A verb in the present, with its object.
        action: String,
        #[source]
        source: Box<OciDistributionError>,
    },
    #[error("the registry does not have the layer {digest} any more")]
    Gone { digest: String },
    #[error("{} is no name of an image: {problem}", name)]
    Name { name: String, problem: String },
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("read {}: {source}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// As many as every registry gives at once.
const TAGS_A_PAGE: usize = 100;

/// A registry, as one of its users.
pub struct Registry {
    client: Client,
    auth: RegistryAuth,
    insecure: bool,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// A layer that comes on top of a base.
#[derive(Debug, Clone)]
pub struct Added {
    pub layer: Layer,
    /// Its bytes; not needed when the registry has the layer already.
    pub file: Option<PathBuf>,
    /// A repository of the same registry that has it.
    pub from: Option<String>,
    /// What it is, for the image's history.
    pub made_by: String,
}

/// An image that has been pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// `sha256:…` of its manifest.
    pub digest: String,
    /// How many layers had to be sent; the rest was there.
    pub sent: usize,
}

impl Registry {
    /// `insecure` speaks HTTP. `login` is a user and a password.
    #[must_use]
    pub fn new(insecure: bool, login: Option<(String, String)>) -> Self {
        let protocol = if insecure { ClientProtocol::Http } else { ClientProtocol::Https };
        let client = Client::new(ClientConfig { protocol, ..ClientConfig::default() });
        let auth =
            login.map_or(RegistryAuth::Anonymous, |(user, password)| RegistryAuth::Basic(user, password));
        Self { client, auth, insecure }
    }

    /// What `image` is now: `sha256:…` of its manifest.
    ///
    /// # Errors
    /// [`RegistryError`], also when there is no such image.
    pub async fn digest(&self, image: &str) -> Result<String, RegistryError> {
        let image = parse(image)?;
        self.client.fetch_manifest_digest(&image, &self.auth).await.map_err(|source| {
            RegistryError::Registry {
                action: format!("ask for the digest of {image}"),
                source: Box::new(source),
            }
        })
    }

    /// Pushes `target`: the image `base` with `added` on top of it. Equal input gives an equal digest.
    ///
    /// # Errors
    /// [`RegistryError`]; the target then is what it was before.
    pub async fn append(&self, base: &str, target: &str, added: &[Added]) -> Result<Pushed, RegistryError> {
        let (base, target) = (parse(base)?, parse(target)?);
        let failed =
            |action: String| move |source| RegistryError::Registry { action, source: Box::new(source) };
        self.client
            .auth(&target, &self.auth, RegistryOperation::Push)
            .await
            .map_err(failed(format!("log in to push {target}")))?;
        let (manifest, _, config) = self
            .client
            .pull_manifest_and_config(&base, &self.auth)
            .await
            .map_err(failed(format!("pull the manifest of {base}")))?;

        for blob in &manifest.layers {
            self.bring(&base, &target, blob).await?;
        }
        let mut sent = 0;
        for one in added {
            if self.send(&target, one).await? {
                sent += 1;
            }
        }

        let tops: Vec<_> = added.iter().map(|one| Top { layer: &one.layer, made_by: &one.made_by }).collect();
        let config = image::config(&config, manifest.layers.len(), &tops)?;
        let config_digest = digest(&config);
        let config_size = config.len() as u64;
        self.client
            .push_blob(&target, config, &config_digest)
            .await
            .map_err(failed(format!("push the configuration of {target}")))?;
        let manifest = image::manifest(layers(&manifest), (&config_digest, config_size), &tops);
        let digest = digest(&manifest);
        let kind = http::HeaderValue::from_static(MANIFEST_TYPE);
        self.client
            .push_manifest_raw(&target, manifest, kind)
            .await
            .map_err(failed(format!("push the manifest of {target}")))?;
        Ok(Pushed { digest, sent })
    }

    /// Removes `tags` of `repository` (REGISTRY/REPOSITORY), all if none is named, with the images that they name. Gone already counts as
    /// success. Gives how many images were removed.
    ///
    /// # Errors
    /// [`RegistryError`]; the same again goes on where this has ended.
    pub async fn remove(&self, repository: &str, tags: &[String]) -> Result<usize, RegistryError> {
        let any = parse(&format!("{repository}:latest"))?;
        let failed =
            |action: String| move |source| RegistryError::Registry { action, source: Box::new(source) };
        // Deleting wants more than pushing of some registries; they say so.
        let token = self
            .client
            .auth(&any, &self.auth, RegistryOperation::Push)
            .await
            .map_err(failed(format!("log in to {repository}")))?;
        let tags = if tags.is_empty() { self.tags(&any).await? } else { tags.to_vec() };
        let mut removed = 0;
        for tag in tags {
            let image = Reference::with_tag(any.registry().to_owned(), any.repository().to_owned(), tag);
            let digest = match self.client.fetch_manifest_digest(&image, &self.auth).await {
                Err(error) if is_gone(&error) => continue,
                other => other.map_err(failed(format!("ask for the digest of {image}")))?,
            };
            let deleted = self.delete(&any, &digest, token.as_deref()).await;
            if deleted.map_err(failed(format!("delete {image}")))? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Whether it was there. The client has no call for this.
    async fn delete(
        &self,
        any: &Reference,
        digest: &str,
        token: Option<&str>,
    ) -> Result<bool, OciDistributionError> {
        let scheme = if self.insecure { "http" } else { "https" };
        let url = format!("{scheme}://{}/v2/{}/manifests/{digest}", any.resolve_registry(), any.repository());
        let request = reqwest::Client::new().delete(&url);
        let request = match (token, &self.auth) {
            (Some(token), _) => request.bearer_auth(token),
            (None, RegistryAuth::Basic(user, password)) => request.basic_auth(user, Some(password)),
            (None, _) => request,
        };
        let response = request.send().await?;
        let code = response.status().as_u16();
        match code {
            200..300 => Ok(true),
            404 => Ok(false),
            _ => Err(OciDistributionError::ServerError {
                code,
                url,
                message: response.text().await.unwrap_or_default(),
            }),
        }
    }

    async fn tags(&self, any: &Reference) -> Result<Vec<String>, RegistryError> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let last = all.last().cloned();
            let page = match self.client.list_tags(any, &self.auth, Some(TAGS_A_PAGE), last.as_deref()).await
            {
                Err(error) if is_gone(&error) => return Ok(all),
                other => other.map_err(|source| RegistryError::Registry {
                    action: format!("list the tags of {}", any.repository()),
                    source: Box::new(source),
                })?,
            };
            let (full, before) = (page.tags.len() >= TAGS_A_PAGE, all.len());
            // Some registries know no pages, and give all of it each time.
            let new: Vec<_> = page.tags.into_iter().filter(|tag| !all.contains(tag)).collect();
            all.extend(new);
            if !full || all.len() == before {
                return Ok(all);
            }
        }
    }

    /// A blob of the base into the target's repository: mounted where the registry can, else copied.
    async fn bring(
        &self,
        base: &Reference,
        target: &Reference,
        blob: &OciDescriptor,
    ) -> Result<(), RegistryError> {
        let failed =
            |action: String| move |source| RegistryError::Registry { action, source: Box::new(source) };
        if self.has(target, &blob.digest).await? {
            return Ok(());
        }
        if base.registry() == target.registry()
            && self.client.mount_blob(target, base, &blob.digest).await.is_ok()
        {
            return Ok(());
        }
        let stream = self
            .client
            .pull_blob_stream(base, blob)
            .await
            .map_err(failed(format!("pull the layer {} of {base}", blob.digest)))?;
        let size = u64::try_from(blob.size).ok();
        let bytes = stream.stream.map_err(OciDistributionError::IoError);
        self.client
            .push_blob_stream(target, bytes, &blob.digest, size)
            .await
            .map_err(failed(format!("push the layer {} to {target}", blob.digest)))?;
        Ok(())
    }

    /// Whether it had to be sent.
    async fn send(&self, target: &Reference, one: &Added) -> Result<bool, RegistryError> {
        let Layer { digest, size, .. } = &one.layer;
        if self.has(target, digest).await? {
            return Ok(false);
        }
        if let Some(from) = &one.from {
            let from = Reference::with_tag(target.registry().to_owned(), from.clone(), "latest".to_owned());
            if self.client.mount_blob(target, &from, digest).await.is_ok() {
                return Ok(false);
            }
        }
        let Some(path) = one.file.as_deref() else {
            return Err(RegistryError::Gone { digest: digest.clone() });
        };
        let file =
            File::open(path).await.map_err(|source| RegistryError::File { path: path.to_owned(), source })?;
        let bytes = ReaderStream::with_capacity(file, 1 << 20).map_err(OciDistributionError::IoError);
        self.client.push_blob_stream(target, bytes, digest, Some(*size)).await.map_err(|source| {
            RegistryError::Registry {
                action: format!("push the layer {digest} to {target}"),
                source: Box::new(source),
            }
        })?;
        Ok(true)
    }

    async fn has(&self, image: &Reference, digest: &str) -> Result<bool, RegistryError> {
        self.client.blob_exists(image, digest).await.map_err(|source| RegistryError::Registry {
            action: format!("ask {} for the layer {digest}", image.registry()),
            source: Box::new(source),
        })
    }
}

/// The repository of an image, without the registry's name.
///
/// # Errors
/// [`RegistryError::Name`].
pub fn repository(image: &str) -> Result<String, RegistryError> {
    Ok(parse(image)?.repository().to_owned())
}

fn parse(name: &str) -> Result<Reference, RegistryError> {
    name.parse().map_err(|e| RegistryError::Name { name: name.to_owned(), problem: format!("{e}") })
}

/// Whether the registry says that it has no such thing.
fn is_gone(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::ImageManifestNotFoundError(_) => true,
        OciDistributionError::ServerError { code, .. } => *code == 404,
        OciDistributionError::RegistryError { envelope, .. } => envelope.errors.iter().any(|e| {
            matches!(
                e.code,
                OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound
            )
        }),
        _ => false,
    }
}

fn layers(manifest: &OciImageManifest) -> Vec<serde_json::Value> {
    let one = |blob: &OciDescriptor| {
        image::descriptor(&blob.media_type, &blob.digest, u64::try_from(blob.size).unwrap_or_default())
    };
    manifest.layers.iter().map(one).collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}
