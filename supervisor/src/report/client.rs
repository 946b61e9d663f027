//! One kept-alive HTTP/1.1 connection to where records go: tcp, TLS, or a unix socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::tls;

/// How long one attempt may take in all.
const ATTEMPT: Duration = Duration::from_secs(30);
/// Most bytes of an answer that are looked at.
const MAX_ANSWER: usize = 64 * 1024;
/// Where records go behind a unix socket, which has no path of its own.
const PATH: &str = "/internal/v1/reports";

/// Where records go: `http://…`, `https://…` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    place: Place,
    uri: Uri,
    host: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp { name: String, port: u16, tls: bool },
}

/// Why an address is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be http://HOST…, https://HOST… or unix:PATH")]
pub struct EndpointError;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                return Err(EndpointError);
            }
            return Ok(Self {
                place: Place::Unix(path),
                uri: Uri::from_static(PATH),
                host: "localhost".into(),
            });
        }
        let whole: Uri = text.parse().map_err(|_| EndpointError)?;
        let tls = match whole.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(EndpointError),
        };
        let authority = whole.authority().ok_or(EndpointError)?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(EndpointError);
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let uri = whole.path_and_query().map_or("/", |p| p.as_str()).parse().map_err(|_| EndpointError)?;
        Ok(Self { place: Place::Tcp { name, port, tls }, uri, host: authority.to_string() })
    }
}

impl Endpoint {
    /// Whether the way is so short that packing costs more than it saves.
    pub(super) fn is_near(&self) -> bool {
        match &self.place {
            Place::Unix(_) => true,
            Place::Tcp { name, .. } => {
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

/// An answer of the API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Lines that it did not take.
    pub(super) refused: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no whole answer: {0}")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer within {} s", ATTEMPT.as_secs())]
    TimedOut,
}

#[derive(Debug)]
pub(super) struct Client {
    endpoint: Endpoint,
    connection: Option<SendRequest<Full<Bytes>>>,
    ca_file: Option<PathBuf>,
    tls: Option<tls::Connector>,
    resolver: Option<super::resolve::Resolver>,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint, ca_file: Option<PathBuf>) -> Self {
        Self { endpoint, connection: None, ca_file, tls: None, resolver: None }
    }

    /// Sends one batch. After an error the next call begins with a new connection.
    pub(super) async fn post(
        &mut self,
        body: Bytes,
        gzip: bool,
        token: Option<&str>,
    ) -> Result<Answer, Error> {
        let sent = tokio::time::timeout(ATTEMPT, self.exchange(body, gzip, token)).await;
        match sent {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                self.connection = None;
                Err(e)
            }
            Err(_) => {
                self.connection = None;
                Err(Error::TimedOut)
            }
        }
    }

    async fn exchange(&mut self, body: Bytes, gzip: bool, token: Option<&str>) -> Result<Answer, Error> {
        let other = |e: hyper::Error| Error::Exchange(e.into());
        // A connection that the other side has closed meanwhile is no failure.
        let kept = match self.connection.take() {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let mut request = Request::post(self.endpoint.uri.clone())
            .header(header::HOST, &self.endpoint.host)
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .header(header::CONTENT_LENGTH, body.len());
        if gzip {
            request = request.header(header::CONTENT_ENCODING, "gzip");
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| Error::Exchange(e.into()))?;
        let response = sender.send_request(request).await.map_err(other)?;
        let status = response.status();
        // A long answer is not read to its end; then the connection is not used again.
        let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let mut refused = 0;
        if let Ok(answer) = answer {
            self.connection = Some(sender);
            #[derive(serde::Deserialize)]
            struct Said {
                #[serde(default)]
                refused: u64,
            }
            refused = serde_json::from_slice::<Said>(&answer.to_bytes()).map_or(0, |said| said.refused);
        }
        Ok(Answer { status, refused })
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let place = self.endpoint.place.clone();
        match place {
            Place::Unix(path) => shake(UnixStream::connect(path).await.map_err(Error::Connect)?).await,
            Place::Tcp { name, port, tls } => {
                let stream = self.connect_tcp(&name, port).await.map_err(Error::Connect)?;
                let _ = stream.set_nodelay(true);
                if !tls {
                    return shake(stream).await;
                }
                let connector = match &self.tls {
                    Some(connector) => connector,
                    None => {
                        self.tls.insert(tls::Connector::new(self.ca_file.as_deref()).map_err(Error::Connect)?)
                    }
                };
                shake(connector.connect(&name, stream).await.map_err(Error::Connect)?).await
            }
        }
    }

    async fn connect_tcp(&mut self, name: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(ip) = name.parse::<IpAddr>() {
            return TcpStream::connect(SocketAddr::new(ip, port)).await;
        }
        let resolver = match &self.resolver {
            Some(resolver) => resolver,
            None => self.resolver.insert(super::resolve::Resolver::new()?),
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address"));
        for ip in resolver.lookup(name).await? {
            match TcpStream::connect(SocketAddr::new(ip, port)).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

async fn shake<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|e| Error::Exchange(e.into()))?;
    // Ends with the connection; what went wrong is told to the sender.
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_http_https_or_a_unix_socket() {
        let place = |text: &str| text.parse::<Endpoint>().map(|e| (e.is_near(), e.uri.to_string(), e.host));
        assert_eq!(place("http://127.0.0.1:80/a?b"), Ok((true, "/a?b".into(), "127.0.0.1:80".into())));
        assert_eq!(place("http://[::1]:80"), Ok((true, "/".into(), "[::1]:80".into())));
        assert_eq!(place("https://api.example"), Ok((false, "/".into(), "api.example".into())));
        assert_eq!(place("unix:/run/s"), Ok((true, PATH.into(), "localhost".into())));
        for bad in ["", "ftp://a", "http://", "unix:s", "/a", "http://user:pw@host/"] {
            assert_eq!(place(bad), Err(EndpointError), "{bad}");
        }
    }
}
