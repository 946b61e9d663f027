//! `sless-controller`: makes Functions, Triggers and FunctionJobs of `sless.kube5s.ru` come true on a cluster.
//!
//! A reconcile is a straight line: look at what is there (caches of watches), check what is asked for (pure), build all objects (pure),
//! apply those that are not so already, write the status if it differs.

mod applied;
mod builds;
mod changes;
mod config;
mod context;
mod egress;
mod error;
#[cfg(test)]
mod fixtures;
mod function;
mod health;
mod jitter;
mod leader;
mod metrics;
mod namespace;
mod objects;
mod quota;
mod revision;
mod run;
mod start;
mod stores;
mod tags;
mod trigger;
mod troubles;
mod web;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::context::{Context, Parts};
use crate::error::chain;
use crate::health::Health;
use crate::leader::Leadership;
use crate::metrics::Metrics;

/// Bad settings, as with the other programs.
const BAD_SETTINGS: u8 = 78;
/// Changes that wait to be looked at; whoever tells of more waits.
const QUEUE: usize = 1024;
const HELP: &str =
    "sless-controller: makes functions run on the cluster of KUBECONFIG, or on the one it runs in.

Settings are environment variables; docs/kubernetes.md lists them.
  --print-config  show the settings in force, and stop
  --version       show the version, and stop";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    match argument.as_deref() {
        None | Some("--print-config") => {}
        Some("--version" | "-V") => {
            println!("sless-controller {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("error: {other:?} is no argument; see sless-controller --help");
            return ExitCode::from(BAD_SETTINGS);
        }
    }
    let config = match Config::from_lookup(|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(BAD_SETTINGS);
        }
    };
    if argument.is_some() {
        println!("{config:#?}");
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level())
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(control(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn level() -> tracing::Level {
    std::env::var("LOG_LEVEL").ok().and_then(|text| text.parse().ok()).unwrap_or(tracing::Level::INFO)
}

async fn control(config: Config) -> Result<(), String> {
    // One provider for all of TLS; a second call would be an error of this very program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::try_default().await.map_err(|e| format!("find the cluster: {}", chain(&e)))?;
    let metrics = Arc::new(Metrics::new().map_err(|e| format!("register the metrics: {e}"))?);
    let ready = Arc::new(AtomicBool::new(false));
    let health = Health { metrics: Arc::clone(&metrics), ready: Arc::clone(&ready) };
    let listen = config.listen;
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| format!("listen for SIGTERM: {e}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| format!("listen for SIGINT: {e}"))?;
    let leadership = Leadership::new(client.clone(), &config.system_namespace, &config.identity);
    let mut tasks = JoinSet::new();
    let work = async {
        // Whoever waits to lead is as ready as it can be.
        ready.store(true, Ordering::Relaxed);
        leadership.acquire().await;
        tracing::info!("{} leads", config.identity);
        tokio::select! {
            why = leadership.hold() => Err(format!("the Lease is lost: {why}")),
            done = lead(client, config, metrics, &mut tasks) => done,
        }
    };
    let done = tokio::select! {
        done = work => done,
        served = health::serve(listen, health) => Err(match served {
            Ok(()) => "the health port was closed".to_owned(),
            Err(error) => format!("listen on {listen}: {error}"),
        }),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    tasks.shutdown().await;
    if done.is_ok() {
        leadership.release().await;
    }
    done
}

async fn lead(
    client: Client,
    config: Config,
    metrics: Arc<Metrics>,
    tasks: &mut JoinSet<()>,
) -> Result<(), String> {
    let proxy_key = start::proxy_key(&client, &config.system_namespace).await.map_err(|e| chain(&e))?;
    let (registry_auth, login) = start::registry_login(&client, &config).await.map_err(|e| chain(&e))?;
    let registry = sless_image::Registry::new(config.registry_insecure, login);
    let runtimes = start::runtimes(&config, &registry).await;
    let (changes, changed) = mpsc::channel(QUEUE);
    let stores = stores::start(&client, &config, &changes, tasks);
    drop(changes);
    let (functions, triggers, namespaces) =
        (mpsc::channel(QUEUE), mpsc::channel(QUEUE), mpsc::channel(QUEUE));
    let places = Arc::new(builds::Places::new(config.build_concurrency, config.rebase_concurrency));
    let wake = changes::Wake { functions: functions.0, triggers: triggers.0, namespaces: namespaces.0 };
    tasks.spawn(changes::dispatch(changed, stores.clone(), wake, Arc::clone(&places)));
    let reporter = Reporter {
        controller: sless_crds::names::MANAGER.to_owned(),
        instance: Some(config.identity.clone()),
    };
    let recorder = Recorder::new(client.clone(), reporter);
    let parts =
        Parts { client, config, stores, runtimes, places, metrics, proxy_key, registry_auth, registry };
    let context = Arc::new(Context::new(parts, recorder));
    let incoming = run::Incoming { functions: functions.1, triggers: triggers.1, namespaces: namespaces.1 };
    run::run(context, incoming).await;
    Err("the watches have ended".to_owned())
}
