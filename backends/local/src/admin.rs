//! Asks a supervisor how it is.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use sless_backend::Secret;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// An answer takes microseconds; a supervisor that is stopped in a debugger should not stop us.
const PATIENCE: Duration = Duration::from_secs(5);
const BODY_MAX: usize = 1 << 20;
/// So much of a traceback goes into a function's message.
const TRACEBACK_MAX: usize = 4096;

/// What `/ready` says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Not yet, or not any more.
    NotReady,
    /// The code does not load: why, for the function's author.
    InitFailed(String),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    status: String,
    error: Option<Error>,
}

#[derive(Deserialize)]
struct Error {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    message: String,
    traceback: Option<String>,
}

/// Asks the supervisor whose admin socket is `socket`.
pub(crate) async fn readiness(socket: &Path, token: &Secret) -> io::Result<Readiness> {
    let (status, body) = timeout(PATIENCE, get(socket, token)).await??;
    Ok(read(status, &body))
}

async fn get(socket: &Path, token: &Secret) -> io::Result<(StatusCode, Bytes)> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::get("/ready")
        .header("host", "supervisor")
        .header("x-sless-proxy-token", token.reveal())
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), BODY_MAX).collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes()))
    };
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        // The answer may be there although the connection is already done.
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(e) => Err(io::Error::other(e)),
        },
    }
}

fn read(status: StatusCode, body: &[u8]) -> Readiness {
    if status == StatusCode::OK {
        return Readiness::Ready;
    }
    match serde_json::from_slice::<Answer>(body) {
        Ok(Answer { status, error }) if status == "init_failed" => {
            let text = error.map_or_else(String::new, |e| {
                let mut text =
                    if e.kind.is_empty() { e.message } else { format!("{}: {}", e.kind, e.message) };
                if let Some(traceback) = e.traceback {
                    text.push('\n');
                    text.push_str(end_of(&traceback));
                }
                text
            });
            Readiness::InitFailed(text)
        }
        _ => Readiness::NotReady,
    }
}

/// The end of a traceback, which says where it happened.
fn end_of(traceback: &str) -> &str {
    let text = traceback.trim_end();
    let mut from = text.len().saturating_sub(TRACEBACK_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_meaning() {
        assert_eq!(read(StatusCode::OK, b"{}"), Readiness::Ready);
        let failed = br#"{"status": "init_failed", "error": {"type": "ModuleNotFoundError", "message": "No module named 'x'", "traceback": "t"}}"#;
        let text = "ModuleNotFoundError: No module named 'x'\nt".to_owned();
        assert_eq!(read(StatusCode::SERVICE_UNAVAILABLE, failed), Readiness::InitFailed(text));
        for other in [&br#"{"status": "starting"}"#[..], br#"{"status": "draining"}"#, b"junk"] {
            assert_eq!(read(StatusCode::SERVICE_UNAVAILABLE, other), Readiness::NotReady);
        }
    }
}
