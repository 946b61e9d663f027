//! Asks a function's pod how it is, at its admin port.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(3);
const BODY_MAX: usize = 1 << 20;

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
}

/// Why its code does not load; `None` while that is not known.
///
/// # Errors
/// What was in the way of asking.
pub(crate) async fn init_failure(admin: SocketAddr) -> io::Result<Option<String>> {
    let (status, body) = timeout(PATIENCE, get(admin)).await??;
    Ok(read(status, &body))
}

async fn get(admin: SocketAddr) -> io::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::get("/ready").header("host", admin.to_string()).body(Empty::<Bytes>::new());
    let request = request.map_err(io::Error::other)?;
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
            Err(error) => Err(io::Error::other(error)),
        },
    }
}

fn read(status: StatusCode, body: &[u8]) -> Option<String> {
    if status == StatusCode::OK {
        return None;
    }
    let answer =
        serde_json::from_slice::<Answer>(body).ok().filter(|answer| answer.status == "init_failed")?;
    Some(match answer.error {
        Some(error) if error.kind.is_empty() => error.message,
        Some(error) => format!("{}: {}", error.kind, error.message),
        None => "the handler does not load".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_pod_whose_code_does_not_load_says_why() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for body in [
                r#"{"status":"starting"}"#,
                r#"{"status":"init_failed","error":{"type":"SyntaxError","message":"no"}}"#,
                "junk",
            ] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 1024];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].starts_with(b"GET /ready HTTP/1.1\r\n"));
                let answer = format!("HTTP/1.1 503 x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        assert_eq!(init_failure(address).await.unwrap(), None);
        assert_eq!(init_failure(address).await.unwrap().as_deref(), Some("SyntaxError: no"));
        assert_eq!(init_failure(address).await.unwrap(), None);
        assert!(init_failure(address).await.is_err(), "nobody listens any more");
    }

    #[test]
    fn a_ready_one_has_not_failed() {
        assert_eq!(read(StatusCode::OK, br#"{"status":"init_failed"}"#), None);
    }
}
