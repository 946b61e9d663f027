//! Brings the parts together. What it needs may come up at the same time as it does, so all of it is asked for patiently.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use sless_api::{ApiConfig, Database, Listen, Platform, Server, StartError};
use sless_backend_kubernetes::{Cluster, KubernetesBackend, KubernetesDefinitions};
use sless_codestore_s3::S3Store;
use tokio::time::Instant;

use crate::settings::Settings;

/// Who has not answered by then is not coming up: ending says so to whoever looks after this process.
const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_secs(2);

type AnyError = Box<dyn Error + Send + Sync>;

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &(dyn Error + Send + Sync + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

async fn patiently<T, E: Error + Send + Sync + 'static>(
    until: Instant,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, AnyError> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if may_pass(&error) && Instant::now() + PAUSE < until => {
                tracing::warn!(error = %chain(&error), "waiting for {what}");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn start(settings: &Settings) -> Result<Server, AnyError> {
    let until = Instant::now() + PATIENCE;
    let code = patiently(until, "S3", async || S3Store::open(&settings.s3).await, |_| true);
    let cluster = async || Cluster::connect(settings.kubernetes.clone()).await;
    let cluster = patiently(until, "the cluster", cluster, |_| true);
    let (code, cluster) = tokio::try_join!(code, cluster)?;
    let code = Arc::new(code);
    let server = async || {
        let platform = Platform::Cluster {
            definitions: Arc::new(KubernetesDefinitions::new(cluster.clone())),
            backend: Arc::new(KubernetesBackend::new(cluster.clone())),
            code: code.clone(),
        };
        Server::start(config(settings), platform).await
    };
    patiently(until, "PostgreSQL", server, |error| matches!(error, StartError::Database { .. })).await
}

fn config(settings: &Settings) -> ApiConfig {
    ApiConfig {
        listen: settings.listen,
        public_listen: None,
        admin_listen: Some(settings.admin_listen),
        internal_listen: Listen::Tcp(settings.internal_listen),
        token: settings.token.clone(),
        external_url: Some(settings.external_url.clone()),
        own_hosts: settings.ingress_host.iter().cloned().collect(),
        database: Database::Postgres(settings.database_url.clone()),
        temp_dir: std::env::temp_dir(),
        max_upload_bytes: settings.max_upload_bytes,
        retention: Duration::from_secs(u64::from(settings.retention_days) * 24 * 60 * 60),
        retention_count: settings.retention_count,
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}
