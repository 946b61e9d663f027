//! What is asked of a supervisor's admin port.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use sless_backend::{Endpoint, Secret};

use super::body::CallBody;
use super::headers;
use super::pool::{self, Pool};
use super::upstream::{Home, UpstreamBody};

/// Asks a supervisor's admin port for a page.
pub(crate) async fn ask_admin(
    endpoint: &Endpoint,
    path: &'static str,
    token: &Secret,
) -> std::io::Result<Bytes> {
    let (status, body) = admin(endpoint, Method::GET, Uri::from_static(path), token).await?;
    if status.is_success() {
        Ok(body)
    } else {
        Err(std::io::Error::other(format!("the admin port answered {status}")))
    }
}

/// Asks a supervisor to end a call; whether it has it.
pub(crate) async fn cancel_at(endpoint: &Endpoint, id: uuid::Uuid, token: &Secret) -> std::io::Result<bool> {
    let uri = format!("/invocations/{id}").parse().map_err(std::io::Error::other)?;
    match admin(endpoint, Method::DELETE, uri, token).await? {
        (StatusCode::ACCEPTED, _) => Ok(true),
        (StatusCode::NOT_FOUND, _) => Ok(false),
        (status, _) => Err(std::io::Error::other(format!("the admin port answered {status}"))),
    }
}

async fn admin(
    endpoint: &Endpoint,
    method: Method,
    uri: Uri,
    token: &Secret,
) -> std::io::Result<(StatusCode, Bytes)> {
    let mut request = Request::new(CallBody::whole(Bytes::new()));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    request.headers_mut().insert(http::header::HOST, HeaderValue::from_static("supervisor"));
    request.headers_mut().insert("x-sless-proxy-token", headers::secret(token));
    let mut upstream = pool::open_admin(endpoint).await?;
    let response =
        upstream.send(request).await.map_err(|_| std::io::Error::other("the admin port did not answer"))?;
    let status = response.status();
    let home = Home {
        pool: Arc::new(Pool::default()),
        lease: Arc::default(),
        index: 0,
        streamed: false,
        load: None,
    };
    let body = UpstreamBody::new(response.into_body(), upstream, home);
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    Ok((status, body))
}
