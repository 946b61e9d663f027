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

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use sless_crds::Function;

    use super::*;

    fn function(name: &str, phase: &str) -> Function {
        serde_json::from_value(json!({
            "apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"namespace": "team", "name": name},
            "spec": {"runtime": "nodejs20"}, "status": {"observedGeneration": 1, "phase": phase}
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn whoever_is_slow_hears_of_each_function_once_and_of_all_that_are_gone() {
        let (index, stop) = (Arc::new(Index::default()), CancellationToken::new());
        index.function_event(&Event::Apply(function("a", "Ready")));
        let mut stream = watch(index.clone(), stop.clone());
        let first = stream.next().await.unwrap();
        assert_eq!((first.function.name.as_str(), first.phase), ("a", Phase::Ready));
        assert!(stream.next().now_or_never().is_none(), "there is no news");
        for phase in ["Pending", "Building", "Failed"] {
            index.function_event(&Event::Apply(function("b", phase)));
        }
        index.function_event(&Event::Delete(function("a", "Ready")));
        let mut told = [stream.next().await.unwrap(), stream.next().await.unwrap()];
        told.sort_by_key(|status| status.function.name.clone());
        assert_eq!(
            told.iter().map(|s| (s.gone, s.phase)).collect::<Vec<_>>(),
            [(true, Phase::Terminating), (false, Phase::Failed)]
        );
        assert!(stream.next().now_or_never().is_none());
        // Gone and back while nobody looked: what is there now counts.
        index.function_event(&Event::Delete(function("b", "Failed")));
        index.function_event(&Event::Apply(function("b", "Ready")));
        assert_eq!(stream.next().await.map(|s| (s.gone, s.phase)), Some((false, Phase::Ready)));
        stop.cancel();
        assert_eq!(stream.next().await, None);
    }
}
