//! Objects of one kind as the API server tells of them: listed, then watched, for as long as this process lives.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Longest wait for what this process has written to be seen here.
const OWN_WRITES: Duration = Duration::from_secs(2);

/// The first pause after a watch that failed, and the longest: what each call asks for should not be old for long.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// After so long without trouble the pauses are short again.
const CALM: Duration = Duration::from_secs(30);

/// Pauses between tries: each twice the one before, less up to a half by chance, so that not all processes try at once.
#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PAUSE.0)
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = pause.saturating_mul(2).min(PAUSE.1);
        // Without chance all is as well, if less even.
        let chance = getrandom::u32().unwrap_or_default();
        Some(pause.saturating_sub(pause.mul_f64(f64::from(chance) / f64::from(u32::MAX) / 2.0)))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// What is known of the objects of one kind.
#[derive(Clone)]
pub(crate) struct Mirror<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    news: watch::Receiver<News>,
}

/// How far a mirror is.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    /// Only grows: something has changed.
    count: u64,
    /// The first list is here whole.
    complete: bool,
    /// Why it is not as it should be now.
    trouble: Option<String>,
}

impl<K: Resource<DynamicType = ()> + 'static> Debug for Mirror<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("kind", &K::kind(&())).field("news", &*self.news.borrow()).finish()
    }
}

impl<K> Mirror<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Hash + Eq,
{
    /// Begins to mirror in a task of `tasks`. `heard` gets each event before it is in the store: who sees it
    /// there sees what was made of it, too.
    pub(crate) fn spawn(
        api: Api<K>,
        config: Config,
        tasks: &mut JoinSet<()>,
        heard: impl Fn(&Event<K>) + Send + 'static,
    ) -> Self {
        let (reader, writer) = store();
        let (tell, news) = watch::channel(News::default());
        let events = reflector(
            writer,
            watcher(api, config).map(move |event| {
                // Who wrote which field is half of an object, and nobody asks for it here.
                let event = event.map(|event| event.modify(|object| object.managed_fields_mut().clear()));
                if let Ok(event) = &event {
                    heard(event);
                }
                event
            }),
        );
        tasks.spawn(async move {
            let backoff = ResetTimerBackoff::new(Pauses::default(), CALM);
            let mut events = std::pin::pin!(events.backoff(backoff));
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        tell.send_modify(|news| {
                            news.trouble = None;
                            news.complete |= matches!(event, Event::InitDone);
                            // What is listed counts when the list is whole.
                            if !matches!(event, Event::Init | Event::InitApply(_)) {
                                news.count += 1;
                            }
                        });
                    }
                    Err(error) => {
                        let kind = K::kind(&());
                        let text = error.to_string();
                        if tell.borrow().trouble.as_ref() != Some(&text) {
                            tracing::warn!(kind = %kind, error = %text, "failed to watch objects, trying again");
                        }
                        tell.send_modify(|news| news.trouble = Some(text));
                    }
                }
            }
        });
        Self { store: reader, news }
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// One that lies in no namespace.
    pub(crate) fn get_global(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// Waits for the first list.
    ///
    /// # Errors
    /// Why it did not come within `limit`.
    pub(crate) async fn complete(&self, limit: Duration) -> Result<(), String> {
        let mut news = self.news.clone();
        let whole = tokio::time::timeout(limit, news.wait_for(|news| news.complete)).await;
        if matches!(whole, Ok(Ok(_))) {
            return Ok(());
        }
        let trouble = self.news.borrow().trouble.clone();
        let trouble = trouble.unwrap_or_else(|| format!("no answer within {limit:?}"));
        Err(format!("list objects of kind {}: {trouble}", K::kind(&())))
    }

    /// Waits until `seen` holds, for as long as the mirror may lag behind what this process has written itself.
    pub(crate) async fn until(&self, mut seen: impl FnMut(&Self) -> bool) {
        let mut news = self.news.clone();
        let wait = async {
            loop {
                news.mark_unchanged();
                if seen(self) || news.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(OWN_WRITES, wait).await.is_err() {
            tracing::debug!(kind = %K::kind(&()), "an own write is not seen yet");
        }
    }

    /// Waits until what was written is seen here, or something newer.
    pub(crate) async fn until_seen(&self, written: &K) {
        let (Some(namespace), name) = (written.namespace(), written.name_any()) else { return };
        let version = version(written);
        self.until(|mirror| {
            mirror.get(&namespace, &name).is_some_and(|seen| self::version(&*seen) >= version)
        })
        .await;
    }

    /// Yields after changes; several at once may yield once.
    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.clone()
    }
}

/// Resource versions of one kind are numbers that grow, since Kubernetes 1.35 by promise and before as a fact.
fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_are_short_again_after_that() {
        let mut pauses = Pauses::default();
        for longest in [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0] {
            let pause = pauses.next().unwrap().as_secs_f64();
            assert!((longest / 2.0..=longest).contains(&pause), "{pause} of {longest}");
        }
        pauses.reset();
        assert!(pauses.next().unwrap() <= PAUSE.0);
    }
}
