//! Speaks with the host's API.

mod access;
mod events;
mod tls;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::args::Target;
use crate::error::CliError;
use access::Access;
pub(crate) use events::Events;

/// A connection, with TLS or without.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    host: String,
    port: u16,
    /// Host and port as the URL has them.
    authority: String,
    tls: bool,
    /// Of the URL, without a slash at its end.
    prefix: String,
    token: HeaderValue,
    namespace: String,
}

impl Client {
    pub(crate) fn new(target: &Target) -> Result<Self, CliError> {
        let Access { url, token, namespace } = Access::find(target)?;
        let refused = |why: &str| CliError::Refused(format!("SLESS_URL {url:?}: {why}"));
        let uri: Uri = url.parse().map_err(|_| refused("this is no URL, as http://127.0.0.1:8080"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused("it must begin with http:// or https://")),
        };
        let host = uri.host().ok_or_else(|| refused("it names no host"))?;
        let token = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| CliError::Token("SLESS_TOKEN holds characters that no token has".to_owned()))?;
        let authority =
            uri.authority().map(|all| all.as_str().rsplit('@').next().unwrap_or_default().to_owned());
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority: authority.unwrap_or_default(),
            tls,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            namespace,
            token,
            url,
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The path of `rest` in the namespace.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// One exchange on a connection of its own; the answer as it is.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, CliError> {
        let stream = self.connect().await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(&e))?;
        // Ends with the answer's body; its errors come out there too.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::HOST, &self.authority)
            .header(header::AUTHORIZATION, self.token.clone());
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request =
            request.body(Full::new(body.into())).map_err(|e| CliError::Refused(format!("{path:?}: {e}")))?;
        sender.send_request(request).await.map_err(|e| self.broken(&e))
    }

    async fn connect(&self) -> Result<Box<dyn Connection>, CliError> {
        let no_host = |source| CliError::NoHost { url: self.url.clone(), source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(no_host)?;
        if !self.tls {
            return Ok(Box::new(stream));
        }
        match tls::connect(&self.host, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(e) => {
                let said = e.to_string();
                let help = if said.contains("CaUsedAsEndEntity") {
                    "its certificate is made as an authority's: make one with basicConstraints CA:FALSE"
                } else {
                    "if its certificate is of an authority of your own, name that one's file in SSL_CERT_FILE"
                };
                Err(CliError::Broken { url: self.url.clone(), why: format!("TLS: {said}; {help}") })
            }
        }
    }

    /// The events of a stream, each given to `each` as it comes, until the host ends it.
    pub(crate) async fn follow(
        &self,
        path: &str,
        mut each: impl FnMut(&Value) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let answer = self.send(Method::GET, path, &[(header::ACCEPT, "text/event-stream")], "").await?;
        if !answer.status().is_success() {
            self.take(answer).await?;
            return Ok(());
        }
        let mut body = answer.into_body();
        let mut events = Events::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| self.broken(&e))?;
            for event in frame.data_ref().map(|bytes| events.feed(bytes)).unwrap_or_default() {
                let event = serde_json::from_str(&event)
                    .map_err(|e| CliError::Host(format!("{path} sent an event that is not JSON: {e}")))?;
                each(&event)?;
            }
        }
        Ok(())
    }

    pub(crate) fn broken(&self, why: &dyn std::error::Error) -> CliError {
        let cause = why.source().map_or_else(String::new, |cause| format!(": {cause}"));
        CliError::Broken { url: self.url.clone(), why: format!("{why}{cause}") }
    }

    /// A good answer's body; anything else is an error.
    pub(crate) async fn take(&self, answer: Response<Incoming>) -> Result<Bytes, CliError> {
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|e| self.broken(&e))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(CliError::of_answer(status, &body)) }
    }

    /// An exchange in JSON; `null` for an answer without a body.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let kind: &[_] = if body.is_some() { &[(header::CONTENT_TYPE, "application/json")] } else { &[] };
        let answer = self.take(self.send(method, path, kind, text).await?).await?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer).map_err(|e| {
            CliError::Host(format!("{path} was not answered in JSON ({e}); is {} a sless host?", self.url))
        })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.json(Method::GET, path, None).await
    }

    /// `None` if it is not there.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>, CliError> {
        match self.get(path).await {
            Ok(value) => Ok(Some(value)),
            Err(CliError::NotFound(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Up to `limit` items of a list, over as many pages as it takes.
    pub(crate) async fn list(&self, path: &str, limit: usize) -> Result<Vec<Value>, CliError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        let mark = if path.contains('?') { '&' } else { '?' };
        while items.len() < limit {
            let mut page = format!("{path}{mark}limit={}", (limit - items.len()).min(100));
            if let Some(cursor) = &cursor {
                page.push_str(&format!("&cursor={}", encode(cursor)));
            }
            let mut answer = self.get(&page).await?;
            if let Some(Value::Array(found)) = answer.get_mut("items").map(Value::take) {
                items.extend(found);
            }
            match answer.get("next").and_then(Value::as_str) {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        Ok(items)
    }
}

/// For a query's value.
pub(crate) fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, b| {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(b)),
            _ => out.push_str(&format!("%{b:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, CliError> {
        let target =
            Target { url: Some(url.into()), token: Some("t".into()), data_dir: None, namespace: None };
        Client::new(&target)
    }

    #[test]
    fn a_url_is_taken_apart_or_refused() {
        let parts = |url| client(url).map(|c| (c.host, c.port, c.prefix)).unwrap();
        assert_eq!(parts("http://127.0.0.1:8080/"), ("127.0.0.1".into(), 8080, String::new()));
        assert_eq!(parts("http://[::1]:81/sless/"), ("::1".into(), 81, "/sless".into()));
        assert_eq!(
            (parts("http://host").1, parts("https://host").1, parts("https://host:44").1),
            (80, 443, 44)
        );
        assert_eq!(client("https://u:p@host:44/x").unwrap().authority, "host:44");
        for bad in ["", "127.0.0.1:8080", "ftp://x"] {
            assert!(matches!(client(bad), Err(CliError::Refused(_))), "{bad}");
        }
    }

    #[test]
    fn a_cursor_survives_its_way_through_a_query() {
        assert_eq!(encode("a b+c/=&"), "a%20b%2Bc%2F%3D%26");
    }
}
