//! What the API is told when it starts. Parsed by the binary; nothing here reads the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use sless_backend::Secret;
use sless_core::HostName;

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// A socket in the file system; an old one in its place is replaced.
    Unix(PathBuf),
}

/// Where functions, triggers and records are kept.
#[derive(Debug, Clone)]
pub enum Database {
    /// A file, made if it isn't there.
    Sqlite(PathBuf),
    /// `DATABASE_URL`: `postgres://USER:PASSWORD@HOST:PORT/NAME`.
    Postgres(Secret),
}

impl std::fmt::Display for Database {
    /// Without what is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(_) => f.write_str("that DATABASE_URL names"),
        }
    }
}

/// Settings of the API; see `docs/api.md` for the variables that they come from.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// `API_LISTEN`: `/v1` and `/fn`.
    pub listen: SocketAddr,
    /// `PUBLIC_LISTEN`: `/fn` alone.
    pub public_listen: Option<SocketAddr>,
    /// `API_ADMIN_LISTEN`: health, ready, metrics and targets; on [`ApiConfig::listen`] too if unset.
    pub admin_listen: Option<SocketAddr>,
    /// `API_INTERNAL_LISTEN`: where supervisors deliver their records.
    pub internal_listen: Listen,
    /// `API_TOKEN`: the token that may do anything in any namespace.
    pub token: Secret,
    /// `EXTERNAL_URL`: how callers reach this; else made from the address.
    pub external_url: Option<String>,
    /// `INGRESS_HOST`: hosts that lead here besides that of `external_url`; no trigger can have one.
    pub own_hosts: Vec<HostName>,
    pub database: Database,
    /// For uploads on their way in; on the same file system as the code store is best.
    pub temp_dir: PathBuf,
    /// `MAX_UPLOAD_BYTES`.
    pub max_upload_bytes: u64,
    /// `RETENTION_DAYS`, as a length of time: how long records are kept.
    pub retention: Duration,
    /// `RETENTION_COUNT`: how many records of a function are kept.
    pub retention_count: u32,
    /// `TRUSTED_PROXIES`: peers whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

impl ApiConfig {
    pub const DEFAULT_MAX_UPLOAD_BYTES: u64 = 100 << 20;
    pub const DEFAULT_RETENTION_DAYS: u32 = 30;
    pub const DEFAULT_RETENTION_COUNT: u32 = 10_000;
}
