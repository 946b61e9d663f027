//! `run`: one invocation, for jobs. Result on stdout, everything else on stderr.

use std::io::{self, Read, Write};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use http::HeaderMap;
use sless_protocol::event::Status;
use sless_protocol::frame::EventKind;

use crate::assembly::Assembly;
use crate::call::{Answer, Piece, Request};
use crate::config::{Config, Error};
use crate::intake;

/// sysexits.h: the input data was incorrect.
const BAD_EVENT: i32 = 65;

/// Runs one invocation; gives the exit code.
///
/// # Errors
/// What could not be set up, with the setting that it belongs to.
pub(crate) async fn run(config: Config, event: &Path) -> Result<i32, Error> {
    let body = match read_event(event) {
        Ok(body) => body,
        Err(problem) => return Err(Error { setting: "--event".to_owned(), problem }),
    };
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    let kind = match intake::event_kind(&headers, &body) {
        Ok(kind) => kind,
        Err(reason) => {
            eprintln!("sless-supervisor: --event {}: not JSON: {reason}", event.display());
            return Ok(BAD_EVENT);
        }
    };
    let config = Rc::new(config);
    let Assembly { pool, reporter, console, reaper } = Assembly::new(&config, io::stderr())?;
    let signals = reaper.signals();
    pool.start();
    let answer = pool.submit(request(&config, headers, kind, body));
    let answer = tokio::select! {
        answer = answer => answer.ok(),
        caught = signals.next() => {
            pool.kill_all();
            console.flush(std::time::Duration::from_secs(1));
            return Ok(128 + caught.signal);
        }
    };
    let status = match answer {
        Some(answer) => print(answer).await,
        None => Status::Crashed,
    };
    pool.drain();
    pool.calls_done().await;
    pool.stop().await;
    reporter.flush(config.flush).await;
    reporter.close();
    console.flush(std::time::Duration::from_secs(1));
    Ok(exit_code(status))
}

fn exit_code(status: Status) -> i32 {
    match status {
        Status::Success => 0,
        Status::Timeout => 124,
        Status::Crashed | Status::OutOfMemory | Status::Cancelled => 137,
        Status::Error | Status::InitFailed | Status::Rejected | Status::Lost => 1,
    }
}

fn read_event(event: &Path) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    let read = if event == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(event).map(|read| bytes = read)
    };
    read.map_err(|e| format!("cannot read {}: {e}", event.display()))?;
    Ok(bytes.into())
}

fn request(config: &Config, headers: HeaderMap, event: EventKind, body: Bytes) -> Request {
    let id = uuid::Uuid::now_v7();
    let simple = id.simple().to_string();
    Request {
        id: id.to_string().into(),
        trigger: "job".to_owned(),
        attempt: 1,
        limit: config.timeout,
        method: "POST".to_owned(),
        path: "/".to_owned(),
        raw_query: String::new(),
        headers,
        client_ip: String::new(),
        source: None,
        traceparent: format!("00-{simple}-{}-01", &simple[16..]),
        event,
        body,
    }
}

/// Writes the result to stdout, nothing where there is none; a stream piece by piece.
async fn print(answer: Answer) -> Status {
    let mut out = io::stdout();
    match answer {
        Answer::Whole { body, .. } => {
            let written = out.write_all(&body).and_then(|()| out.flush());
            if let Err(error) = written {
                tracing::error!(%error, "cannot write the result to stdout");
            }
            Status::Success
        }
        Answer::Stream { mut pieces, .. } => loop {
            match pieces.recv().await {
                Some(Piece::Chunk(data)) => drop(out.write_all(&data).and_then(|()| out.flush())),
                Some(Piece::End(status)) => return status,
                // Which of the ways to break off it was is in the record.
                None => return Status::Error,
            }
        },
        Answer::Failed(failure) => {
            tracing::error!(error.kind = failure.kind(), error.message = %failure, "the invocation failed");
            failure.status()
        }
    }
}
