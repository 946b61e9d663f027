//! An API that keeps the events it is sent, and can be in any kind of trouble.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sless_protocol::event::{Event, News};
use sless_supervisor::console::{Console, Format};
use sless_supervisor::mask::Masks;
use sless_supervisor::report::{FinishedInfo, OpenRecord, ReportConfig, Reporter, ResultInfo, StartedInfo};

#[derive(Clone, Default)]
pub(crate) struct Sink(Rc<State>);

#[derive(Default)]
struct State {
    events: RefCell<Vec<Event>>,
    tokens: RefCell<Vec<String>>,
    batches: RefCell<Vec<usize>>,
    down: Cell<bool>,
    /// Longer bodies get 413.
    max_body: Cell<Option<usize>>,
    wanted_token: RefCell<Option<String>>,
    refused: Cell<u64>,
    delay: Cell<Duration>,
    address: RefCell<String>,
}

impl Sink {
    pub(crate) async fn tcp() -> Self {
        let sink = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        *sink.0.address.borrow_mut() = format!("http://{}/reports", listener.local_addr().unwrap());
        let this = sink.clone();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                this.serve(stream);
            }
        });
        sink
    }

    pub(crate) async fn unix(path: PathBuf) -> Self {
        let sink = Self::default();
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        *sink.0.address.borrow_mut() = format!("unix:{}", path.display());
        let this = sink.clone();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                this.serve(stream);
            }
        });
        sink
    }

    fn serve(&self, stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static) {
        let this = self.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| this.clone().answer(request));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let state = &self.0;
        let token = request
            .headers()
            .get("authorization")
            .map(|t| t.to_str().unwrap().to_owned())
            .unwrap_or_default();
        assert_eq!(request.headers()["content-type"], "application/x-ndjson");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        tokio::time::sleep(state.delay.get()).await;
        let said = |status, text: String| {
            Ok(Response::builder().status(status).body(Full::new(text.into())).unwrap())
        };
        if state.down.get() {
            return said(StatusCode::SERVICE_UNAVAILABLE, String::new());
        }
        if state.wanted_token.borrow().as_ref().is_some_and(|wanted| *wanted != token) {
            return said(StatusCode::UNAUTHORIZED, String::new());
        }
        if state.max_body.get().is_some_and(|max| body.len() > max) {
            return said(StatusCode::PAYLOAD_TOO_LARGE, String::new());
        }
        state.tokens.borrow_mut().push(token);
        state.batches.borrow_mut().push(body.len());
        for line in body.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let event = serde_json::from_slice(line)
                .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(line)));
            state.events.borrow_mut().push(event);
        }
        said(StatusCode::OK, format!("{{\"refused\":{}}}", state.refused.get()))
    }

    pub(crate) fn address(&self) -> String {
        self.0.address.borrow().clone()
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.0.down.set(down);
    }

    pub(crate) fn set_max_body(&self, max: Option<usize>) {
        self.0.max_body.set(max);
    }

    pub(crate) fn set_wanted_token(&self, token: &str) {
        *self.0.wanted_token.borrow_mut() = Some(format!("Bearer {token}"));
    }

    pub(crate) fn set_refused(&self, refused: u64) {
        self.0.refused.set(refused);
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.0.delay.set(delay);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.events.borrow().clone()
    }

    pub(crate) fn tokens(&self) -> Vec<String> {
        self.0.tokens.borrow().clone()
    }

    pub(crate) fn batches(&self) -> Vec<usize> {
        self.0.batches.borrow().clone()
    }

    /// Ids of the ended calls, in the order in which they came.
    pub(crate) fn finished(&self) -> Vec<String> {
        self.events()
            .iter()
            .filter(|e| matches!(e.news, News::Finished(_)))
            .map(|e| e.invocation_id.clone())
            .collect()
    }

    pub(crate) fn logs(&self, id: &str) -> Vec<String> {
        let events = self.events();
        let lines = events.iter().filter(|e| e.invocation_id == id).filter_map(|e| match &e.news {
            News::Log { lines } => Some(lines.iter().map(|l| l.text.clone())),
            _ => None,
        });
        lines.flatten().collect()
    }
}

/// Waits until `check` holds.
pub(crate) async fn until(what: &str, check: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < end, "not so within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn config(address: &str, spool: Option<PathBuf>) -> ReportConfig {
    ReportConfig {
        namespace: "testing".into(),
        function: "hello".into(),
        revision: "r1".into(),
        pod: "pod-1".into(),
        endpoint: Some(address.parse().unwrap()),
        token_file: None,
        ca_file: None,
        spool_dir: spool,
        spool_limit: 64 << 20,
        log_limit: 1 << 20,
        result_limit: 64 << 10,
        input_limit: 64 << 10,
        masks: Masks::none(),
    }
}

pub(crate) fn console() -> Console {
    Console::new(std::io::sink(), Format::Json).unwrap()
}

pub(crate) fn open(reporter: &Rc<Reporter>, id: &str, body: &[u8]) -> OpenRecord {
    reporter.open(&StartedInfo {
        invocation_id: id,
        attempt: 1,
        trigger: "http",
        method: "POST",
        path: "/",
        raw_query: "",
        headers: &http::HeaderMap::new(),
        body,
    })
}

pub(crate) fn finished(body: &[u8]) -> FinishedInfo<'_> {
    FinishedInfo {
        status: sless_protocol::event::Status::Success,
        http_status: Some(200),
        duration: Duration::from_micros(1500),
        queue: Duration::ZERO,
        init: None,
        cpu: None,
        max_rss_bytes: None,
        result: Some(ResultInfo { content_type: "application/json", size: body.len() as u64, body }),
        error: None,
    }
}

/// One call from begin to end.
pub(crate) fn call(reporter: &Rc<Reporter>, id: &str, log: &[u8], body: &[u8]) {
    let mut record = open(reporter, id, b"{}");
    record.stdout(log);
    record.finish(&finished(body));
}

/// Runs `test` as the supervisor runs: one thread, local tasks.
pub(crate) fn local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
