//! What the parts of a function host cost at least: the rows that sless is held against, and the sink for its records.
//!
//!     bench-limits hello PORT                 a bare HTTP server
//!     bench-limits front PORT COMMAND...      one call at a time over a socket pair to a worker process (its descriptor 3)
//!     bench-limits pipe PORT DEPTH COMMAND... the same with up to DEPTH calls waiting in the worker's socket
//!     bench-limits sink PORT                  takes records and counts them; GET answers with the counts
//!
//! `THREADS` (default 2) is the number of the runtime's threads. No timeout, no log, no record, no isolation.
mod front;
mod http;
mod pipe;
mod sink;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let threads = std::env::var("THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let result = runtime.and_then(|runtime| match args.as_slice() {
        ["hello", port] => runtime.block_on(http::hello(port)),
        ["front", port, command @ ..] if !command.is_empty() => runtime.block_on(front::run(port, command)),
        ["pipe", port, depth, command @ ..] if !command.is_empty() => runtime.block_on(pipe::run(port, depth, command)),
        ["sink", port] => runtime.block_on(sink::run(port)),
        _ => Err(std::io::Error::other("usage: bench-limits hello|front|pipe|sink PORT [DEPTH] [COMMAND...]")),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-limits: {error}");
            ExitCode::FAILURE
        }
    }
}
