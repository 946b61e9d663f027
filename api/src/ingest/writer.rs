//! One task writes: batches that wait go into one transaction together, so that a commit is paid once for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use sless_backend::FunctionRef;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::store::{Batch, Records, StoreError};

/// Batches that may wait; more senders wait for their turn.
const WAITING: usize = 256;
/// Rows that go into one transaction, about.
const ROWS: usize = 4096;

type Answer = oneshot::Sender<Result<(), Arc<StoreError>>>;

/// Where batches are handed in.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<(FunctionRef, Batch, Answer)>,
}

/// The task; ends when the last [`Writer`] is gone and all that was handed in is stored.
pub(crate) type WriterTask = JoinHandle<()>;

impl Writer {
    /// `stored` hears of each commit.
    pub(crate) fn start(store: Arc<dyn Records>, stored: watch::Sender<()>) -> (Self, WriterTask) {
        let (queue, waiting) = mpsc::channel(WAITING);
        (Self { queue }, tokio::spawn(run(store, waiting, stored)))
    }

    /// Returns once the batch has been committed.
    pub(crate) async fn write(&self, function: FunctionRef, batch: Batch) -> Result<(), Arc<StoreError>> {
        let stopped = || {
            let source = "the API is stopping".into();
            Arc::new(StoreError::Away { action: "store records", source })
        };
        let (answer, stored) = oneshot::channel();
        self.queue.send((function, batch, answer)).await.map_err(|_| stopped())?;
        stored.await.map_err(|_| stopped())?
    }
}

async fn run(
    store: Arc<dyn Records>,
    mut waiting: mpsc::Receiver<(FunctionRef, Batch, Answer)>,
    stored: watch::Sender<()>,
) {
    while let Some(first) = waiting.recv().await {
        let mut batches: HashMap<FunctionRef, Batch> = HashMap::new();
        let mut answers = Vec::new();
        let mut rows = 0;
        let mut next = Some(first);
        while let Some((function, batch, answer)) = next {
            rows += batch.attempts.len() + batch.logs.len();
            let all = batches.entry(function).or_default();
            if all.attempts.is_empty() && all.logs.is_empty() {
                *all = batch;
            } else {
                all.attempts.extend(batch.attempts);
                all.logs.extend(batch.logs);
            }
            answers.push(answer);
            next = if rows < ROWS { waiting.try_recv().ok() } else { None };
        }
        let result = store.store_events(batches).await.map_err(Arc::new);
        if result.is_ok() {
            stored.send_replace(());
        }
        for answer in answers {
            // A sender that has gone sends it again; each event is stored once.
            let _ = answer.send(result.clone());
        }
    }
}
