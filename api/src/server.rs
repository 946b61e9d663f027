//! Listens, hands each request to its part, and stops in order.

mod access;
mod heads;
mod records;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sless_backend::{Backend, CodeStore, Definitions};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::app::App;
use crate::auth::Auth;
use crate::config::{ApiConfig, Database};
use crate::detached::Runs;
use crate::ingest::{Ingest, Writer, WriterTask};
use crate::metrics::{Metrics, Part};
use crate::news;
use crate::problem::{Code, Problem, chain};
use crate::proxy::{Lingering, Proxy, ResponseBody, Table};
use crate::reconcile;
use crate::routes;
use crate::store::{self, StoreError, Upkeep};
use crate::vault::Vault;
use heads::Checked;

/// A head that has not come whole by then ends the connection.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// The same, once the host stops.
const LATE_HEAD_WITHIN: Duration = Duration::from_secs(5);

/// Why the API does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("listen on {at}, as {what} says")]
    Listen {
        /// The setting.
        what: &'static str,
        at: String,
        #[source]
        source: io::Error,
    },
    #[error("open the database {database}")]
    Database {
        database: Database,
        #[source]
        source: StoreErrorSource,
    },
    #[error("read or make the key of the secrets in {path:?}")]
    SecretsKey {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("set up the metrics")]
    Metrics(#[from] prometheus::Error),
}

/// What the database said.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreErrorSource(pub(crate) StoreError);

/// Who keeps the definitions of functions, triggers and secrets, and who brings them to the backend.
#[derive(Debug)]
pub enum Platform {
    /// This process: they lie in its database.
    Here {
        backend: Arc<dyn Backend>,
        /// Where uploads are kept; the backend reads them from there.
        code: Arc<dyn CodeStore>,
        /// The file with the key that secrets are encrypted with; made if it isn't there. Who loses it loses the secrets.
        secrets_key: PathBuf,
    },
    /// A cluster: they are its objects, and its controller does what they say. Of several processes of the API each does the same.
    Cluster { definitions: Arc<dyn Definitions>, backend: Arc<dyn Backend>, code: Arc<dyn CodeStore> },
}

/// Says so if there are secrets that this key does not open, before a function needs them: a key that was lost is made anew, and
/// one that was mixed up looks like any other.
async fn check_secrets(upkeep: &dyn Upkeep, path: &Path) -> Result<(), StoreError> {
    let closed = upkeep.unreadable().await?;
    if !closed.is_empty() {
        let some = closed.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        tracing::error!(
            key = %path.display(),
            "{} secrets can't be decrypted with this host's key ({some}{}): put the key back that they were set with, or set them anew",
            closed.len(),
            if closed.len() > 5 { ", …" } else { "" },
        );
    }
    Ok(())
}

/// A running API.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    local_addr: SocketAddr,
    /// Stops taking calls.
    drain: CancellationToken,
    /// Connections of callers that came before that.
    callers: TaskTracker,
    /// Ends the listeners, which tell probes and late callers until then that the host stops.
    close: CancellationToken,
    listeners: TaskTracker,
    /// Stops what goes on in the background.
    stop: CancellationToken,
    background: Vec<JoinHandle<()>>,
    stop_ingest: CancellationToken,
    senders: TaskTracker,
    writer: WriterTask,
}

/// What a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// `/v1` and `/fn`, and what is for operators if that has no listener of its own.
    All { admin: bool },
    /// `/fn`.
    Public,
    /// Health, metrics.
    Admin,
}

impl Scope {
    /// Whether an address is the host's own, so that no trigger's host can take it.
    fn owns(self, path: &str) -> bool {
        let below =
            |base: &str| path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match self {
            Self::Admin => true,
            _ if below("/fn") => true,
            Self::Public => false,
            Self::All { admin } => {
                ["/v1", "/internal", "/openapi.json"].into_iter().any(below)
                    || admin && ["/health", "/ready", "/metrics"].into_iter().any(below)
            }
        }
    }
}

impl Server {
    /// Opens the database, listens, and, where it is this process's part, brings every function to the backend.
    ///
    /// # Errors
    /// If an address is taken or the database can't be opened.
    pub async fn start(config: ApiConfig, platform: Platform) -> Result<Self, StartError> {
        let database = config.database.clone();
        let no_database =
            |source| StartError::Database { database: database.clone(), source: StoreErrorSource(source) };
        let store = store::open(&config.database).await.map_err(no_database)?;
        let records = store.records();
        let (definitions, upkeep, backend, code) = match platform {
            Platform::Here { backend, code, secrets_key } => {
                let vault = Vault::open(&secrets_key)
                    .map_err(|source| StartError::SecretsKey { path: secrets_key.clone(), source })?;
                let upkeep = store.definitions(vault);
                check_secrets(&*upkeep, &secrets_key).await.map_err(no_database)?;
                (upkeep.clone() as Arc<dyn Definitions>, Some(upkeep), backend, code)
            }
            Platform::Cluster { definitions, backend, code } => (definitions, None, backend, code),
        };
        let listener = bind("API_LISTEN", config.listen).await?;
        let local_addr = listener.local_addr().unwrap_or(config.listen);
        let public = match config.public_listen {
            Some(addr) => Some(bind("PUBLIC_LISTEN", addr).await?),
            None => None,
        };
        let admin = match config.admin_listen {
            Some(addr) => Some(bind("API_ADMIN_LISTEN", addr).await?),
            None => None,
        };
        let admin_addr = admin.as_ref().and_then(|l| l.local_addr().ok()).unwrap_or(local_addr);
        let external_url = config.external_url.as_deref().map_or_else(
            || format!("http://{}", reachable(local_addr)),
            |url| url.trim_end_matches('/').to_owned(),
        );

        let table = Arc::new(Table::default());
        let metrics = Arc::new(Metrics::new()?);
        let (stored, own_news) = tokio::sync::watch::channel(());
        let (told, news) = tokio::sync::watch::channel(());
        let (writer, writer_task) = Writer::start(records.clone(), stored);
        let drain = CancellationToken::new();
        let app = Arc::new(App {
            auth: Auth::new(&config.token),
            proxy: Proxy::new(backend.clone(), table.clone(), config.trusted_proxies.clone(), drain.clone()),
            external_url,
            metrics_addr: reachable(admin_addr).to_string(),
            records: records.clone(),
            definitions,
            upkeep,
            code,
            table,
            changes: reconcile::Changes::default(),
            metrics: metrics.clone(),
            code_in_use: tokio::sync::RwLock::default(),
            runs: Runs::default(),
            news,
            draining: drain.clone(),
            config,
            backend: backend.clone(),
        });
        let ingest = Arc::new(Ingest { backend, store: records, writer, metrics });
        let (stop, stop_ingest) = (CancellationToken::new(), CancellationToken::new());
        let (callers, senders) = (TaskTracker::new(), TaskTracker::new());
        records::listen(ingest, &app.config.internal_listen, &senders, &stop_ingest).await?;

        // Before the routes are read, so that no change is missed.
        let changes = app.definitions.changes();
        let loaded = app.table.reload(&*app.definitions).await;
        let mut background = vec![
            tokio::spawn(reconcile::clean(app.clone(), stop.clone())),
            tokio::spawn(reconcile::follow(app.clone(), changes, loaded.is_ok(), stop.clone())),
        ];
        background.push(tokio::spawn(news::pass_on(app.clone(), own_news, told, stop.clone())));
        if let Some(upkeep) = app.upkeep.clone() {
            loaded.map_err(no_database)?;
            for row in upkeep.all_functions().await.map_err(no_database)? {
                app.changes.push(row.function);
            }
            background.push(tokio::spawn(reconcile::run(app.clone(), upkeep, stop.clone())));
        } else if let Err(error) = loaded {
            // A cluster that is away for a moment: `follow` reads them, and until then `/ready` says no.
            tracing::warn!(error = %chain(&error), "failed to read the routes, trying again");
        }

        let scopes = [
            (Some(listener), Scope::All { admin: admin.is_none() }),
            (public, Scope::Public),
            (admin, Scope::Admin),
        ];
        let (close, listeners) = (CancellationToken::new(), TaskTracker::new());
        let door = Door { callers: callers.clone(), late: listeners.clone(), close: close.clone() };
        for (listener, scope) in scopes {
            if let Some(listener) = listener {
                listeners.spawn(accept(listener, app.clone(), scope, door.clone()));
            }
        }
        Ok(Self {
            app,
            local_addr,
            drain,
            callers,
            close,
            listeners,
            stop,
            background,
            stop_ingest,
            senders,
            writer: writer_task,
        })
    }

    /// Where `/v1` and `/fn` are: the address of `API_LISTEN`, with the port that it got.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How callers reach this.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.app.external_url
    }

    /// Stops in order: refuses new calls; waits until those that run have been answered (their functions' own limits bound that);
    /// stops the backend, whose supervisors deliver their last records; takes these; closes the listeners and the database.
    pub async fn shutdown(self) {
        self.drain.cancel();
        self.callers.close();
        self.callers.wait().await;
        self.app.runs.finish().await;
        self.app.backend.shutdown().await;
        self.stop_ingest.cancel();
        self.senders.close();
        self.senders.wait().await;
        self.stop.cancel();
        for task in self.background {
            let _ = task.await;
        }
        // Nobody hands in records any more, so this ends once all of them are stored.
        let _ = self.writer.await;
        self.close.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        self.app.records.close().await;
    }
}

/// An address that somebody on this machine can call.
fn reachable(addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), addr.port()) } else { addr }
}

async fn bind(what: &'static str, addr: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(addr).await.map_err(|source| StartError::Listen { what, at: addr.to_string(), source })
}

/// Where the connections of a listener go.
#[derive(Debug, Clone)]
struct Door {
    callers: TaskTracker,
    /// Connections that came when the host was stopping already.
    late: TaskTracker,
    close: CancellationToken,
}

/// Takes connections until the door closes. Those that come while the host stops learn that and nothing else.
async fn accept(listener: TcpListener, app: Arc<App>, scope: Scope, door: Door) {
    let router = routes::router(app.clone(), scope != Scope::Public && scope != Scope::All { admin: false });
    loop {
        let accepted = tokio::select! {
            () = door.close.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of descriptors, most likely: those that are open must end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Answers are small and whole: waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let (app, router, peer) = (app.clone(), router.clone(), peer.ip().to_canonical());
        let (drain, late) = (app.draining.clone(), app.is_draining());
        let service = service_fn(move |request| {
            let (app, router) = (app.clone(), router.clone());
            async move {
                Ok::<_, Infallible>(if late && !is_probe(scope, &request) {
                    stopping()
                } else {
                    answer(&app, router, scope, peer, request).await
                })
            }
        });
        let io = TokioIo::new(Checked::new(stream));
        if late {
            door.late.spawn(serve_once(io, service, door.close.clone()));
        } else {
            door.callers.spawn(serve(io, service, drain));
        }
    }
}

/// What is answered also while the host stops.
fn is_probe<B>(scope: Scope, request: &Request<B>) -> bool {
    matches!(scope, Scope::Admin | Scope::All { admin: true })
        && matches!(request.uri().path(), "/health" | "/ready" | "/metrics")
}

fn stopping() -> Response<ResponseBody> {
    let mut problem = Problem::new(Code::Unavailable, "the host is stopping");
    problem.headers.push((http::header::RETRY_AFTER, HeaderValue::from_static("1")));
    problem.response(|bytes| ResponseBody::Bytes(bytes.into()))
}

/// Serves one request of a connection.
async fn serve_once<I, S, B>(io: TokioIo<I>, service: S, close: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: hyper::service::HttpService<Incoming, ResBody = B, Error = Infallible>,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(LATE_HEAD_WITHIN).keep_alive(false);
    tokio::select! {
        _ = builder.serve_connection(io, service) => {}
        () = close.cancelled() => {}
    }
}

/// Serves one connection until it ends, or until `drain` and the call that runs on it has been answered.
async fn serve<I, S, B>(io: TokioIo<I>, service: S, drain: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: hyper::service::HttpService<Incoming, ResBody = B, Error = Infallible>,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = http1::Builder::new();
    // A caller may end its side once its request is out: that is no hanging up.
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).half_close(true);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // A caller that hangs up, or an answer that was cut on purpose.
        tracing::debug!(error = %error, "a connection broke off");
    }
}

async fn answer(
    app: &App,
    mut router: axum::Router,
    scope: Scope,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let began = Instant::now();
    let asked = access::Asked::new(request.method(), request.uri().path(), peer, request.headers());
    let request = request.map(Lingering::new);
    let path = request.uri().path();
    let (part, mut response) = if scope != Scope::Admin && path.starts_with("/fn/") {
        (Part::Proxy, app.proxy.public(request, peer).await)
    } else if !scope.owns(path)
        && let Some(route) = app.proxy.of_host(&request)
    {
        (Part::Proxy, app.proxy.hosted(&route, request, peer).await)
    } else if scope == Scope::Public {
        (
            Part::Proxy,
            Problem::not_found(format!("such address: {path:?}; functions are below /fn/"))
                .response(|b| ResponseBody::Bytes(b.into())),
        )
    } else if scope != Scope::Admin
        && let Some(target) = routes::invoke::Target::parse(path)
    {
        (Part::Proxy, routes::invoke::call(app, target, request, peer).await)
    } else {
        let Ok(response) = router.call(request.map(axum::body::Body::new)).await;
        (Part::Api, response.map(ResponseBody::Router))
    };
    let took = began.elapsed();
    app.metrics.request(part, response.status(), took);
    asked.answered(part, &mut response, took);
    response
}
