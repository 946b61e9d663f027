//! `sless up`: API and local backend in one process.

mod code;
mod data;
mod programs;
mod stores;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sless_api::{ApiConfig, Database, Listen, Platform, Server};
use sless_backend::Secret;
use sless_backend_local::{Layout, LocalBackend, LocalConfig};
use sless_builder::HostEnvironment;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

use crate::args::Up;
use crate::doctor::{self, Level};
use crate::error::{CliError, chain};
use crate::folder;
use crate::print;
pub(crate) use code::S3Args;
use data::{Data, TokenSource};
pub(crate) use programs::Programs;
pub(crate) use stores::Stores;

/// API, proxy and ingest wait for sockets and disks; two threads keep a slow disk from holding up a call.
const THREADS: usize = 2;

pub(crate) fn run(settings: Up) -> Result<ExitCode, CliError> {
    begin(settings, LevelFilter::INFO, std::future::pending())
}

/// A host, and beside it something that lasts as long: whichever ends first ends both.
pub(crate) fn run_beside(
    settings: Up,
    beside: impl Future<Output = Result<ExitCode, CliError>>,
) -> Result<ExitCode, CliError> {
    begin(settings, LevelFilter::WARN, beside)
}

fn begin(
    settings: Up,
    level: LevelFilter,
    beside: impl Future<Output = Result<ExitCode, CliError>>,
) -> Result<ExitCode, CliError> {
    // The environment may hold API_TOKEN: no other process of this user may read it in /proc, nor our memory.
    nix::sys::prctl::set_dumpable(false)
        .map_err(|e| CliError::Host(format!("keep others out of this process: {e}")))?;
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.map_err(|e| CliError::Host(format!("start threads: {e}")))?;
    let code = runtime.block_on(async {
        tokio::select! {
            code = host(settings) => code,
            code = beside => code,
        }
    })?;
    // What still blocks (an unpacking that nobody waits for) does not hold up the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(code)
}

async fn host(settings: Up) -> Result<ExitCode, CliError> {
    // Before anything is started: a signal that comes meanwhile must not be lost.
    let mut signals = Signals::new().map_err(|e| CliError::Host(format!("wait for signals: {e}")))?;
    let programs = Programs::find(settings.supervisor.as_deref(), settings.runtimes_dir.as_deref())?;
    for finding in doctor::interpreters(&programs.runtimes_dir).iter().filter(|f| f.level != Level::Good) {
        print::note(&format!("warning: {}", finding.text));
    }
    let folder = folder::data_dir(settings.data_dir.as_deref());
    let sockets = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let layout =
        Layout::prepare(&folder, &sockets).map_err(CliError::file("prepare the data folder", &folder))?;
    let data = Data::lock(&folder)?;
    let (token, source) = data.token(settings.api_token.as_deref())?;
    let reports = settings.api_internal_listen.unwrap_or_else(|| layout.run().join("reports.sock"));
    let private = layout.private();
    let config = ApiConfig {
        listen: settings.api_listen,
        public_listen: settings.public_listen,
        admin_listen: settings.api_admin_listen,
        internal_listen: Listen::Unix(reports.clone()),
        token,
        external_url: settings.external_url,
        own_hosts: Vec::new(),
        database: match settings.database_url.filter(|url| !url.is_empty()) {
            Some(url) => Database::Postgres(Secret::new(url)),
            None => Database::Sqlite(private.join("sless.db")),
        },
        temp_dir: data.uploads()?,
        max_upload_bytes: settings.max_upload_bytes,
        retention: Duration::from_secs(u64::from(settings.retention_days) * 24 * 60 * 60),
        retention_count: settings.retention_count,
        trusted_proxies: settings.trusted_proxies,
    };
    let local = LocalConfig {
        supervisor: programs.supervisor,
        runtimes_dir: programs.runtimes_dir,
        reports_socket: reports,
        path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        cage: std::env::current_exe().ok(),
        host_environment: HostEnvironment::pick(std::env::vars_os()),
    };
    let stores = Stores::of(&config.database, settings.s3.place());
    for text in Stores::read(&folder)?.left_behind(&stores) {
        print::note(&format!("warning: {text}"));
    }
    let code = settings.s3.open(private.join("code")).await?;
    let backend = LocalBackend::new(local, layout, code.clone())
        .map_err(CliError::file("clear up, or make the proxy's token, in", &private))?;
    // Before it answers, so that who has waited for it can find it; a port that the system chooses is known after.
    if settings.api_listen.port() != 0 {
        // Who finds the address sends the token there: it must not be somebody else's.
        let free = std::net::TcpListener::bind(settings.api_listen);
        free.map_err(|e| CliError::Host(format!("cannot listen on {}: {e}", settings.api_listen)))?;
        data.keep_url(&url_of(settings.api_listen))?;
    }
    let platform =
        Platform::Here { backend: Arc::new(backend), code, secrets_key: private.join("secrets.key") };
    let server = match Server::start(config, platform).await {
        Ok(server) => server,
        Err(error) => {
            data.forget_url();
            return Err(CliError::Host(chain(&error)));
        }
    };
    stores.keep(&folder)?;
    let url = url_of(server.local_addr());
    data.keep_url(&url)?;
    print::note(&format!("sless listens on {url}, data in {}", folder.display()));
    match source {
        TokenSource::Given => {}
        TokenSource::Kept(path) => print::note(&format!("the admin token is in {}", path.display())),
        TokenSource::Made(path) => print::note(&format!("an admin token has been made: {}", path.display())),
    }
    let first = signals.next().await;
    tracing::info!("{first}: new calls are refused, running ones finish");
    tokio::select! {
        () = server.shutdown() => {}
        second = signals.next() => {
            // Supervisors end when this process does.
            tracing::warn!("{second} again: ending at once");
            return Ok(ExitCode::from(second.exit_code()));
        }
    }
    drop(data);
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}

/// How somebody on this machine reaches what listens on `addr`.
fn url_of(addr: SocketAddr) -> String {
    let ip = match addr.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("http://{}", SocketAddr::new(ip, addr.port()))
}

/// SIGTERM and SIGINT; SIGHUP (a terminal that is closed) as well.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

#[derive(Clone, Copy)]
enum Which {
    Term,
    Int,
    Hup,
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Term => "SIGTERM",
            Self::Int => "SIGINT",
            Self::Hup => "SIGHUP",
        })
    }
}

impl Which {
    /// As shells have it: 128 + signal.
    fn exit_code(self) -> u8 {
        match self {
            Self::Term => 143,
            Self::Int => 130,
            Self::Hup => 129,
        }
    }
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let of = |kind| signal(kind);
        Ok(Self {
            term: of(SignalKind::terminate())?,
            int: of(SignalKind::interrupt())?,
            hup: of(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Which {
        tokio::select! {
            _ = self.term.recv() => Which::Term,
            _ = self.int.recv() => Which::Int,
            _ = self.hup.recv() => Which::Hup,
        }
    }
}
