//! Small HTTP requests to parts of sless: the API's internal port and supervisors. Plain HTTP, one connection each.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const BODY_MAX: usize = 1 << 20;

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Sends a request with an absolute URL. The caller sets the limit of time.
///
/// # Errors
/// What went wrong, in words.
pub(crate) async fn send(mut request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let uri = request.uri().clone();
    if uri.scheme_str() != Some("http") {
        return Err(format!("{uri} is no http:// URL"));
    }
    let authority = uri.authority().ok_or_else(|| format!("{uri} has no host"))?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = (host, authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await.map_err(|e| format!("connect to {authority}: {e}"))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| format!("speak with {authority}: {e}"))?;
    let value = http::HeaderValue::from_str(authority.as_str()).map_err(|e| e.to_string())?;
    request.headers_mut().insert(http::header::HOST, value);
    let path =
        uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(|e| format!("{uri}: {e}"))?;
    *request.uri_mut() = path;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| format!("ask {authority}: {e}"))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        Ok(Answer { status, body: body.map_err(|e| format!("read from {authority}: {e}"))?.to_bytes() })
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The answer may be there although the connection is already done.
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(e) => Err(format!("speak with {authority}: {e}")),
        },
    }
}
