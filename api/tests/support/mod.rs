//! An API with a real database, the fake backend, and supervisors that are played by the test.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

use std::convert::Infallible;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use sless_api::{ApiConfig, Database, DirStore, Listen, Platform, Server};
use sless_backend::fake::FakeBackend;
use sless_backend::{Endpoint, FunctionRef, Secret};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixListener, UnixStream};

pub(crate) const TOKEN: &str = "test-token";

pub(crate) struct TestApp {
    pub(crate) server: Option<Server>,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) code: Arc<DirStore>,
    pub(crate) folder: TempDir,
    addr: std::net::SocketAddr,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Status, code and field of a problem.
    pub(crate) fn problem(&self) -> (u16, String, Option<String>) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let json = self.json();
        assert!(
            json["title"].is_string() && json["detail"].is_string() && json["status"] == self.status,
            "{json}"
        );
        (self.status, json["code"].as_str().unwrap().to_owned(), json["field"].as_str().map(str::to_owned))
    }
}

pub(crate) fn problem(status: u16, code: &str, field: Option<&str>) -> (u16, String, Option<String>) {
    (status, code.to_owned(), field.map(str::to_owned))
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), Arc::new(FakeBackend::default())).await
    }

    pub(crate) async fn start_in(folder: TempDir, backend: Arc<FakeBackend>) -> Self {
        let secrets_key = folder.path().join("secrets.key");
        Self::start_as(folder, backend, |backend, code| Platform::Here { backend, code, secrets_key }).await
    }

    /// On the platform that is made of a fake backend and a folder for code.
    pub(crate) async fn start_on(platform: impl FnOnce(Arc<FakeBackend>, Arc<DirStore>) -> Platform) -> Self {
        Self::start_as(tempfile::tempdir().unwrap(), Arc::default(), platform).await
    }

    async fn start_as(
        folder: TempDir,
        backend: Arc<FakeBackend>,
        platform: impl FnOnce(Arc<FakeBackend>, Arc<DirStore>) -> Platform,
    ) -> Self {
        let path = folder.path();
        let config = ApiConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            public_listen: None,
            admin_listen: None,
            internal_listen: Listen::Unix(path.join("reports.sock")),
            token: Secret::new(TOKEN),
            external_url: None,
            own_hosts: Vec::new(),
            database: Database::Sqlite(path.join("sless.db")),
            temp_dir: path.to_owned(),
            max_upload_bytes: 1 << 20,
            // The records of these tests bear dates of long ago.
            retention: Duration::from_secs(100 * 366 * 86_400),
            retention_count: 10_000,
            trusted_proxies: Vec::new(),
        };
        let code = Arc::new(DirStore::new(path.join("code")));
        let server = Server::start(config, platform(backend.clone(), code.clone())).await.unwrap();
        Self { addr: server.local_addr(), server: Some(server), backend, code, folder }
    }

    /// Stops, and starts with the same folder and a backend that remembers nothing.
    pub(crate) async fn restart(mut self) -> Self {
        self.server.take().unwrap().shutdown().await;
        Self::start_in(self.folder, Arc::new(FakeBackend::default())).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends a request as it is.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        exchange(TokioIo::new(self.connect().await), request).await
    }

    /// Below `/v1/namespaces/default/` unless `path` begins with a slash; with the token.
    pub(crate) async fn api(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.send(self.request(method, path).body(Full::new(body)).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.api("GET", path, Value::Null).await
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let path =
            if path.starts_with('/') { path.to_owned() } else { format!("/v1/namespaces/default/{path}") };
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test")
            .header("authorization", format!("Bearer {TOKEN}"))
    }

    pub(crate) async fn upload(&self, name: &str, zip: Vec<u8>) -> Answer {
        let path = format!("functions/{name}/upload");
        self.send(self.request("POST", &path).body(Full::new(zip.into())).unwrap()).await
    }

    /// A function with code and an http trigger, whose calls go to `supervisor`.
    pub(crate) async fn deploy(&self, name: &str, supervisor: &Supervisor) {
        let made =
            self.api("POST", "functions", serde_json::json!({"name": name, "runtime": "python3.11"})).await;
        assert_eq!(made.status, 201, "{made:?}");
        assert_eq!(self.upload(name, zip(&[("handler.py", "def handle(e): pass\n")])).await.status, 202);
        let made = self
            .api("POST", "triggers", serde_json::json!({"name": name, "type": "http", "function": name}))
            .await;
        assert_eq!(made.status, 201, "{made:?}");
        self.backend.serve(&function(name), vec![supervisor.endpoint.clone()]);
        self.until(async || self.get(&format!("functions/{name}")).await.json()["phase"] == "Ready").await;
    }

    /// Delivers lines as the supervisor of `name` does.
    pub(crate) async fn report(&self, name: &str, body: impl Into<Bytes>) -> Answer {
        let token = FakeBackend::report_token(&function(name));
        let request = Request::post("/internal/v1/reports")
            .header("host", "api")
            .header("authorization", format!("Bearer {token}"));
        self.send_report(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn send_report(&self, request: Request<Full<Bytes>>) -> Answer {
        let stream = UnixStream::connect(self.folder.path().join("reports.sock")).await.unwrap();
        exchange(TokioIo::new(stream), request).await
    }

    /// Waits for something to come true.
    pub(crate) async fn until(&self, mut check: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !check().await {
            assert!(began.elapsed() < Duration::from_secs(10), "did not come true");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn exchange<I>(io: TokioIo<I>, request: Request<Full<Bytes>>) -> Answer
where
    TokioIo<I>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// Reads a `text/event-stream` as it comes.
pub(crate) struct Events {
    body: Incoming,
    text: String,
    /// The `id` of the last event.
    pub(crate) last: Option<String>,
}

impl Events {
    pub(crate) async fn open(app: &TestApp, path: &str) -> Self {
        Self::again(app, path, None).await
    }

    /// As somebody who comes back does, who has had the event `last`.
    pub(crate) async fn again(app: &TestApp, path: &str, last: Option<&str>) -> Self {
        let io = TokioIo::new(app.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut request = app.request("GET", path).header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new(), last: None }
    }

    /// The next item; `None` at the end. Panics if the stream is cut.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                self.last = field("id: ").map(str::to_owned).or(self.last.take());
                if let Some(data) = field("data: ") {
                    return Some(serde_json::from_str(data).unwrap());
                }
                continue;
            }
            let frame = tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.unwrap();
            self.text.push_str(std::str::from_utf8(frame?.unwrap().data_ref().unwrap()).unwrap());
        }
    }

    /// Whether the stream is cut, and not ended.
    pub(crate) async fn was_cut(&mut self) -> bool {
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.unwrap() {
                None => return false,
                Some(Err(_)) => return true,
                Some(Ok(_)) => {}
            }
        }
    }

    pub(crate) async fn text(&mut self) -> Option<String> {
        Some(self.next().await?["text"].as_str().unwrap().to_owned())
    }
}

pub(crate) fn function(name: &str) -> FunctionRef {
    FunctionRef { namespace: "default".parse().unwrap(), name: name.parse().unwrap() }
}

pub(crate) fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Plays a supervisor on a socket of its own.
pub(crate) struct Supervisor {
    pub(crate) endpoint: Endpoint,
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
    _folder: TempDir,
}

impl Supervisor {
    /// `answer` makes each answer.
    pub(crate) fn start<B, F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        F: Future<Output = Response<B>> + Send + 'static,
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = answer.clone();
                let service = hyper::service::service_fn(move |request| {
                    let answer = answer(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                connections.spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let endpoint = Endpoint::Unix { path: path.clone(), admin: path.clone() };
        Self { endpoint, path, task, _folder: folder }
    }

    /// One that tells what it was sent.
    pub(crate) fn echo() -> Self {
        Self::start(|request| async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let headers: Vec<_> = parts
                .headers
                .iter()
                .map(|(n, v)| [n.as_str().to_owned(), v.to_str().unwrap().to_owned()])
                .collect();
            let told = serde_json::json!({"method": parts.method.as_str(), "uri": parts.uri.to_string(), "headers": headers, "size": body.len()});
            Response::builder()
                .status(207)
                .header("set-cookie", "a=1")
                .header("set-cookie", "b=2")
                .body(text(told.to_string()))
                .unwrap()
        })
    }

    /// The process is gone, the socket's file is still there.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }
}

/// A supervisor that takes calls and notes what it was sent; it cancels what has the id `cancels`.
pub(crate) fn recorder(cancels: &'static str) -> (Supervisor, Arc<Mutex<Vec<Value>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    let supervisor = Supervisor::start(move |request| {
        let all = all.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let header = |name: &str| parts.headers.get(name).map(|v| v.to_str().unwrap().to_owned());
            let told = serde_json::json!({"method": parts.method.as_str(), "uri": parts.uri.to_string(), "body": body.to_vec(), "x": header("x"),
                "id": header("x-sless-invocation-id"), "trigger": header("x-sless-trigger"), "token": header("x-sless-proxy-token")});
            all.lock().unwrap().push(told);
            let status = match parts.uri.path().strip_prefix("/invocations/") {
                Some(id) if id == cancels => 202,
                Some(_) => 404,
                None => 200,
            };
            Response::builder().status(status).body(text("")).unwrap()
        }
    });
    (supervisor, seen)
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn text(text: impl Into<Bytes>) -> Full<Bytes> {
    Full::new(text.into())
}

pub(crate) fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}
