//! `serve`: from start-up to the last record.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::assembly::Assembly;
use crate::config::Config;
use crate::http::admin::Admin;
use crate::http::{Connections, Front, accept, bind};
use crate::process::Signals;

/// Answers that are on their way when everything else is done.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Between the end of the calls and the end of the workers: each has its own kill grace besides.
const LAST_WORKERS: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
///
/// # Errors
/// What could not be set up, with the setting that it belongs to.
pub(crate) async fn serve(config: Config) -> Result<i32, crate::config::Error> {
    let config = Rc::new(config);
    let Assembly { pool, reporter, console, reaper } = Assembly::new(&config, io::stdout())?;
    let signals = reaper.signals();
    // Who started us; if that process is gone already, nobody has its pid by now that could matter.
    let host = i32::try_from(std::os::unix::process::parent_id()).unwrap_or(0);
    let setting = |name: &'static str, listen: &crate::config::Listen| {
        let listen = listen.to_string();
        move |e: io::Error| crate::config::Error {
            setting: name.to_owned(),
            problem: format!("cannot listen on {listen}: {e}"),
        }
    };
    let front_listener = bind(&config.listen, host).await.map_err(setting("SLESS_LISTEN", &config.listen))?;
    let admin_listener = bind(&config.admin_listen, host)
        .await
        .map_err(setting("SLESS_ADMIN_LISTEN", &config.admin_listen))?;
    pool.start();
    let (connections, admin_connections) = (Rc::new(Connections::default()), Rc::new(Connections::default()));
    let front = Rc::new(Front::new(config.clone(), pool.clone()));
    let admin = Rc::new(Admin::new(&config, pool.clone()));
    let front_task =
        tokio::task::spawn_local(accept(front_listener, connections.clone(), move |request, peer| {
            front.clone().serve(request, peer)
        }));
    let admin_task =
        tokio::task::spawn_local(accept(admin_listener, admin_connections.clone(), move |request, peer| {
            admin.clone().serve(request, peer)
        }));
    tracing::info!(
        listen = %config.listen,
        admin_listen = %config.admin_listen,
        function = %config.function,
        runtime = %config.runtime.name,
        "supervisor is serving"
    );

    let first = told_to_stop(&signals, config.exit_with_stdin).await;
    tracing::info!(signal = first, "draining");
    // 1. /ready says 503, new calls are refused.
    pool.drain();
    let last = async {
        // 2. Running calls end by themselves, each within its own limit.
        pool.calls_done().await;
        connections.end(LAST_ANSWERS).await;
        front_task.abort();
        // 3. Workers: end of their sockets, SIGTERM, SIGKILL.
        drop(tokio::time::timeout(LAST_WORKERS + 3 * config.kill_grace, pool.stop()).await);
        // 4. Last, so that what happened above is recorded.
        reporter.flush(config.flush).await;
        reporter.close();
        admin_connections.end(Duration::from_millis(100)).await;
        admin_task.abort();
    };
    let code = tokio::select! {
        () = last => 0,
        second = signals.next() => {
            pool.kill_all();
            128 + second.signal
        }
    };
    console.flush(Duration::from_secs(1));
    Ok(code)
}

/// Waits for SIGTERM, SIGINT, or the end of stdin where that is a host's word.
async fn told_to_stop(signals: &Signals, stdin: bool) -> i32 {
    let end_of_stdin = async {
        if stdin && end_of_stdin().await.is_ok() {
            return;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        caught = signals.next() => caught.signal,
        () = end_of_stdin => libc::SIGTERM,
    }
}

/// Reads stdin to its end. It is a pipe whose other end the host holds open for as long as it lives.
async fn end_of_stdin() -> io::Result<()> {
    let fd = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()?;
    let mut pipe = tokio::net::unix::pipe::Receiver::from_owned_fd(fd)?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(())
}
