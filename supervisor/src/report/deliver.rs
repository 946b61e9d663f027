//! The one task that delivers: in order, batch after batch, again and again until it is stored.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Answer, Client, Error};
use super::event::{self, Head, Kind};
use super::spool::{Batch, Spool, split};

const MAX_BATCH: u64 = 256 * 1024;
/// Between batches, so that neighbours share one.
const BETWEEN: Duration = Duration::from_millis(100);
/// How long the first event after a quiet time waits for others.
const GATHER: Duration = Duration::from_millis(10);
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(15);
/// Shorter bodies are not worth packing; longer ones are packed beside the loop.
const PACK: usize = 1024;
const PACK_BESIDE: usize = 32 * 1024;

/// What became of events, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    pub delivered: u64,
    /// Events of attempts that failed.
    pub retried: u64,
    /// Lines that the API did not take.
    pub refused: u64,
    /// Outcomes let go for want of room, or that no answer would take.
    pub lost: u64,
}

/// What the task and the reporter share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spool: RefCell<Spool>,
    pub(super) counts: RefCell<Delivered>,
    /// Something new waits.
    pub(super) news: Notify,
    /// Nothing waits any more.
    pub(super) idle: Notify,
}

pub(super) struct Delivery {
    pub(super) shared: Rc<Shared>,
    pub(super) client: Client,
    pub(super) near: bool,
    pub(super) token_file: Option<PathBuf>,
}

impl Delivery {
    pub(super) async fn run(mut self) {
        let (mut max, mut failures, mut last) = (MAX_BATCH, 0u32, Instant::now() - BETWEEN);
        loop {
            self.wait(last).await;
            let Some(batch) = self.next(max) else { continue };
            let answer = self.send(&batch.body).await;
            last = Instant::now();
            match answer {
                Ok(Answer { status, refused }) if status.is_success() => {
                    if failures > 0 {
                        tracing::info!("records are delivered again");
                    }
                    failures = 0;
                    max = max.saturating_mul(2).min(MAX_BATCH);
                    let mut counts = self.shared.counts.borrow_mut();
                    let refused = refused.min(batch.events);
                    counts.delivered += batch.events - refused;
                    counts.refused += refused;
                    drop(counts);
                    self.shared.spool.borrow_mut().delivered(&batch);
                }
                Ok(Answer { status: StatusCode::PAYLOAD_TOO_LARGE, .. }) if batch.events > 1 => {
                    self.shared.spool.borrow_mut().failed();
                    // Cut by lines, so halves always end; a single line is the least.
                    max = (batch.body.len() as u64 / 2).max(1);
                    last = Instant::now() - BETWEEN;
                }
                Ok(Answer { status: StatusCode::PAYLOAD_TOO_LARGE, .. }) => self.send_less(&batch).await,
                other => {
                    self.shared.spool.borrow_mut().failed();
                    self.shared.counts.borrow_mut().retried += batch.events;
                    if failures == 0 {
                        say(&other);
                    }
                    failures = failures.saturating_add(1);
                    self.back_off(failures).await;
                }
            }
        }
    }

    /// Until something waits, and enough of it or long enough.
    async fn wait(&self, last: Instant) {
        loop {
            let pending = self.shared.spool.borrow().pending();
            if pending >= MAX_BATCH {
                return;
            }
            if pending > 0 {
                break;
            }
            self.shared.idle.notify_waiters();
            self.shared.news.notified().await;
        }
        let at = (last + BETWEEN).max(Instant::now() + GATHER);
        loop {
            // News come often; only their amount cuts the wait short.
            if timeout(at.saturating_duration_since(Instant::now()), self.shared.news.notified())
                .await
                .is_err()
                || self.shared.spool.borrow().pending() >= MAX_BATCH
            {
                return;
            }
        }
    }

    fn next(&self, max: u64) -> Option<Batch> {
        let mut spool = self.shared.spool.borrow_mut();
        let batch = spool.next_batch(max);
        self.shared.counts.borrow_mut().lost = spool.lost();
        batch
    }

    async fn send(&mut self, body: &[u8]) -> Result<Answer, Error> {
        let (body, packed) = self.packed(body).await;
        let token = self.token();
        let answer = self.client.post(body.clone(), packed, token.as_deref()).await;
        if let Ok(answer) = &answer
            && matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        {
            let anew = self.token();
            if anew != token {
                return self.client.post(body, packed, anew.as_deref()).await;
            }
        }
        answer
    }

    /// A single event that is too large: without its texts it may pass; if not, it is lost.
    async fn send_less(&mut self, batch: &Batch) {
        let line = &batch.body[..];
        let kind = Head::of(line).map(|h| h.kind);
        let less = match kind {
            Some(Kind::Started | Kind::Finished) => event::without_text(line),
            _ => None,
        };
        let mut counts = Delivered::default();
        match less {
            Some(less) => {
                let events = batch.events;
                match self.send(&less).await {
                    Ok(answer) if answer.status.is_success() => counts.delivered = events,
                    Ok(answer) if answer.status == StatusCode::PAYLOAD_TOO_LARGE => counts.lost = events,
                    _ => {
                        self.shared.spool.borrow_mut().failed();
                        self.back_off(1).await;
                        return;
                    }
                }
            }
            None => counts.lost = u64::from(kind == Some(Kind::Finished)),
        }
        let mut spool = self.shared.spool.borrow_mut();
        if kind == Some(Kind::Log) {
            for line in split(line) {
                spool.note_shed(line);
            }
        }
        spool.note_lost(counts.lost);
        spool.delivered(batch);
        let mut all = self.shared.counts.borrow_mut();
        all.delivered += counts.delivered;
        all.lost = spool.lost();
    }

    /// Read anew each time: it rotates.
    fn token(&self) -> Option<String> {
        let path = self.token_file.as_ref()?;
        match std::fs::read_to_string(path) {
            Ok(token) => Some(token.trim().to_owned()).filter(|t| !t.is_empty()),
            Err(error) => {
                tracing::warn!(%error, file = %path.display(), "report token cannot be read");
                None
            }
        }
    }

    async fn packed(&self, body: &[u8]) -> (Bytes, bool) {
        let plain = Bytes::copy_from_slice(body);
        if self.near || body.len() < PACK {
            return (plain, false);
        }
        let packed = if body.len() < PACK_BESIDE {
            pack(&plain).ok()
        } else {
            let beside = plain.clone();
            tokio::task::spawn_blocking(move || pack(&beside)).await.ok().and_then(Result::ok)
        };
        packed.map_or((plain, false), |packed| (packed.into(), true))
    }

    /// Full jitter, so that many supervisors do not come back at once.
    async fn back_off(&self, failures: u32) {
        let most = FIRST_BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_BACK_OFF);
        // At least a little, or a refusing API is asked in a busy loop.
        let wait = most.mul_f64(super::jitter()).max(Duration::from_millis(20));
        sleep_until(Instant::now() + wait).await;
    }
}

fn pack(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let out = Vec::with_capacity(body.len() / 4);
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

fn say(answer: &Result<Answer, Error>) {
    match answer {
        Ok(answer) => {
            tracing::warn!(status = answer.status.as_u16(), "records are refused; they wait in the spool")
        }
        Err(error) => tracing::warn!(%error, "records cannot be delivered; they wait in the spool"),
    }
}

/// Waits until nothing waits for delivery, or `limit` has passed.
pub(super) async fn flush(shared: &Shared, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while shared.spool.borrow().pending() > 0 {
        if Instant::now() >= end {
            return false;
        }
        shared.news.notify_one();
        let idle = shared.idle.notified();
        tokio::select! {
            () = idle => {}
            // The task may be between two looks.
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
    true
}
