//! A stream of what functions are, for one watcher.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::stream;
use sless_backend::{BoxStream, FunctionRef, FunctionStatus, Generation};
use sless_core::Phase;
use tokio_util::sync::CancellationToken;

use crate::index::Index;

/// The present state of every function, then each change; several changes of one function while nobody reads are one. So a watcher
/// that is slow costs no memory and misses nothing that is still true.
pub(crate) fn watch(index: Arc<Index>, stop: CancellationToken) -> BoxStream<FunctionStatus> {
    let changes = index.status_changes();
    let told: HashMap<FunctionRef, Arc<FunctionStatus>> = HashMap::new();
    let first = VecDeque::new();
    Box::pin(stream::unfold(
        (index, changes, told, first, true),
        move |(index, mut changes, mut told, mut next, mut begin)| {
            let stop = stop.clone();
            async move {
                loop {
                    if let Some(status) = next.pop_front() {
                        return Some((status, (index, changes, told, next, begin)));
                    }
                    if !begin {
                        tokio::select! {
                            () = stop.cancelled() => return None,
                            changed = changes.changed() => changed.ok()?,
                        }
                    }
                    begin = false;
                    changes.mark_unchanged();
                    let now = index.statuses();
                    next = differences(&told, &now);
                    told = now;
                }
            }
        },
    ))
}

fn differences(
    told: &HashMap<FunctionRef, Arc<FunctionStatus>>,
    now: &HashMap<FunctionRef, Arc<FunctionStatus>>,
) -> VecDeque<FunctionStatus> {
    let gone = told.keys().filter(|function| !now.contains_key(*function)).map(|function| FunctionStatus {
        function: function.clone(),
        generation: Generation(u64::MAX),
        phase: Phase::Terminating,
        message: None,
        active_revision: None,
        gone: true,
    });
    let news = now
        .iter()
        .filter(|(function, status)| told.get(*function).is_none_or(|before| !Arc::ptr_eq(before, status)));
    gone.chain(news.map(|(_, status)| FunctionStatus::clone(status))).collect()
}
