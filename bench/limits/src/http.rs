//! A keep-alive HTTP/1.1 server on loopback around one async function from body to body.
use std::convert::Infallible;
use std::future::Future;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

/// Serves until the process is ended. An answer of `None` is a 502.
pub async fn serve<F, Answer>(port: &str, answer: F) -> io::Result<()>
where
    F: Fn(Bytes) -> Answer + Clone + Send + Sync + 'static,
    Answer: Future<Output = Option<Bytes>> + Send + 'static,
{
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer.clone();
                async move {
                    let reply = match request.into_body().collect().await {
                        Ok(body) => answer(body.to_bytes()).await,
                        Err(_) => None,
                    };
                    let status = if reply.is_some() { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
                    let mut response = Response::new(Full::new(reply.unwrap_or_default()));
                    *response.status_mut() = status;
                    Ok::<_, Infallible>(response)
                }
            });
            // A client that goes away is no news.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

pub async fn hello(port: &str) -> io::Result<()> {
    serve(port, |_| async { Some(Bytes::from_static(br#"{"hello":"bob"}"#)) }).await
}
