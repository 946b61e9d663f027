//! Logs while they are written.
//!
//! What is followed lies in the database: there it is whole, whichever process took it. A commit of this process wakes those that
//! wait; what another one has stored is found by looking now and then.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use sless_backend::FunctionRef;
use sless_core::Namespace;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use uuid::Uuid;

use super::form::{Form, Line};
use super::place::{OfFunction, OfInvocation};
use crate::app::App;
use crate::problem::chain;
use crate::store::StoreError;

/// Between looks while nothing is heard.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After news, so that many small commits make few looks.
const GATHER: Duration = Duration::from_millis(30);
/// A connection on which nothing was sent for so long gets a sign of life.
const SILENCE: Duration = Duration::from_secs(15);
/// Rows of log lines that are read together.
const ROWS: u32 = 200;

/// How far a log was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Its end, or that of whoever has read it.
    End,
    /// The host stops: more would have come.
    Stop,
}

/// What to do after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Look,
    End(Until),
}

/// Where the lines of a followed log go.
pub(crate) struct Live {
    pub(crate) app: Arc<App>,
    form: Form,
    body: mpsc::Sender<io::Result<Bytes>>,
    news: watch::Receiver<()>,
    first: bool,
    sent: Instant,
}

impl Live {
    /// The answer, and where its lines are put.
    pub(crate) fn start(app: Arc<App>, form: Form) -> (Response, Self) {
        let (body, chunks) = mpsc::channel(8);
        let response = form.response(Body::from_stream(ReceiverStream::new(chunks)));
        let news = app.news.clone();
        (response, Self { app, form, body, news, first: true, sent: Instant::now() })
    }

    async fn send(&mut self, chunk: Bytes) -> bool {
        self.sent = Instant::now();
        self.body.send(Ok(chunk)).await.is_ok()
    }

    /// Whether somebody still listens.
    pub(crate) async fn begin(&mut self) -> bool {
        let begin = self.form.begin();
        begin.is_empty() || self.send(Bytes::from_static(begin.as_bytes())).await
    }

    /// Whether somebody still listens.
    pub(crate) async fn lines(&mut self, lines: impl IntoIterator<Item = Line>) -> bool {
        let mut chunk = String::new();
        for line in lines {
            chunk.push_str(&self.form.line(&line, std::mem::take(&mut self.first)));
        }
        chunk.is_empty() || self.send(chunk.into()).await
    }

    pub(crate) async fn end(mut self, until: Until) {
        let end = self.form.end();
        if until == Until::Stop {
            self.cut("the host stops").await;
        } else if !end.is_empty() {
            self.send(Bytes::from_static(end.as_bytes())).await;
        }
    }

    /// So that the reader sees that it is not whole.
    async fn cut(self, why: &'static str) {
        let _ = self.body.send(Err(io::Error::other(why))).await;
    }

    pub(crate) async fn fail(self, error: &(dyn std::error::Error + Send + Sync)) {
        tracing::warn!(error = %chain(error), "failed to follow a log");
        self.cut("the log could not be read").await;
    }

    /// Waits for `pause`, or for `news` if they are asked for.
    pub(crate) async fn wait(&mut self, pause: Duration, news: bool) -> Next {
        tokio::select! {
            () = self.body.closed() => return Next::End(Until::End),
            () = self.app.draining.cancelled() => return Next::End(Until::Stop),
            // It fails when nothing more is stored; then the pause is all there is to wait for.
            Ok(()) = self.news.changed(), if news => sleep(GATHER).await,
            () = sleep(pause) => {}
        }
        if self.sent.elapsed() > SILENCE
            && let Some(sign) = self.form.sign_of_life()
        {
            let heard = self.send(sign).await;
            return if heard { Next::Look } else { Next::End(Until::End) };
        }
        Next::Look
    }
}

/// All of an invocation's log behind `last`, until it ends.
pub(super) async fn invocation(mut live: Live, namespace: Namespace, id: Uuid, last: Option<OfInvocation>) {
    let records = live.app.records.clone();
    let mut attempt = last.map_or(0, |last| last.attempt);
    let mut after = last.and_then(OfInvocation::before);
    let followed = async {
        if !live.begin().await {
            return Ok::<_, StoreError>(Until::End);
        }
        loop {
            // Its state first: all lines are stored before the end is.
            let Some(row) = records.invocation(&namespace, id).await? else { return Ok(Until::End) };
            if row.attempt != attempt {
                (attempt, after) = (row.attempt, None);
            }
            let rows = records.log_lines(&namespace, id, attempt, after).await?;
            after = rows.last().map(|row| row.seq).or(after);
            if !live.lines(OfInvocation::lines(&rows, attempt, last)).await || row.status.is_some() {
                return Ok(Until::End);
            }
            if let Next::End(until) = live.wait(LOOK_EVERY, true).await {
                return Ok(until);
            }
        }
    };
    match followed.await {
        Ok(until) => live.end(until).await,
        Err(error) => live.fail(&error).await,
    }
}

/// A function's log behind `from`, after the lines `first`, until the function is deleted.
pub(super) async fn function(mut live: Live, function: FunctionRef, first: Vec<Line>, from: OfFunction) {
    let records = live.app.records.clone();
    let key = function.to_string();
    let mut place = from.row();
    let followed = async {
        if !live.begin().await || !live.lines(first).await {
            return Ok::<_, StoreError>(Until::End);
        }
        loop {
            let (rows, next) = records.function_log(&function, place, ROWS).await?;
            let more = next != place && rows.len() == ROWS as usize;
            place = next;
            let lines: Vec<_> = rows.iter().flat_map(|row| OfFunction::lines(row, from)).collect();
            if !live.lines(lines).await || live.app.table.get(&key).is_none() {
                return Ok(Until::End);
            }
            if !more && let Next::End(until) = live.wait(LOOK_EVERY, true).await {
                return Ok(until);
            }
        }
    };
    match followed.await {
        Ok(until) => live.end(until).await,
        Err(error) => live.fail(&error).await,
    }
}
