//! `sless-api`: the API on a cluster. Definitions are its objects, records lie in PostgreSQL, code in S3.

mod settings;
mod signals;
mod start;

use std::process::ExitCode;

use clap::Parser;

use settings::{SETTINGS, Settings};
use signals::Signals;

/// Of `sysexits.h`: a setting is wrong.
const WRONG_SETTINGS: u8 = 78;

/// The API of sless on Kubernetes. Its settings are environment variables.
#[derive(Debug, Parser)]
#[command(name = "sless-api", version, after_help = variables())]
struct Arguments {
    /// Say which settings are in force, without what is secret, and end
    #[arg(long)]
    print_config: bool,
}

fn variables() -> String {
    let lines = SETTINGS.iter().map(|setting| {
        let default = setting.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
        format!("  {}: {}{default}\n", setting.name, setting.about)
    });
    format!("Variables:\n{}", lines.collect::<String>())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = match Settings::from_lookup(|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("sless-api: {error}");
            return ExitCode::from(WRONG_SETTINGS);
        }
    };
    if arguments.print_config {
        print!("{settings}");
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(std::io::stdout)
        .init();
    // One library of cryptography for all connections; fails only if it is chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(error = %error, "failed to start threads");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(settings))
}

async fn run(settings: Settings) -> ExitCode {
    // Before anything is started: a signal that comes meanwhile must not be lost.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(error = %error, "failed to wait for signals");
            return ExitCode::FAILURE;
        }
    };
    let started = tokio::select! {
        started = start::start(&settings) => started,
        signal = signals.next() => {
            tracing::info!("{signal} before anything had begun");
            return ExitCode::SUCCESS;
        }
    };
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            tracing::error!(error = %start::chain(&*error), "failed to start");
            return ExitCode::FAILURE;
        }
    };
    tracing::info!(url = server.url(), "listening on {}", server.local_addr());
    let first = signals.next().await;
    tracing::info!("{first}: new calls are refused soon, running ones finish");
    let ended = async {
        // Whoever sends calls here hears a little later than this process that it ends.
        tokio::time::sleep(settings.drain_delay).await;
        server.shutdown().await;
    };
    tokio::select! {
        () = ended => tracing::info!("ended"),
        second = signals.next() => {
            tracing::warn!("{second} again: ending at once");
            return ExitCode::from(second.exit_code());
        }
    }
    ExitCode::SUCCESS
}
