//! What every backend must do, as one test: `suite::run(&harness).await` panics where it does not.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use sless_core::{FunctionSettings, Phase};
use tokio_stream::StreamExt;

use crate::{
    Backend, BackendError, CodeRef, FunctionRef, FunctionSpec, FunctionStatus, Generation, Revision, Secret,
};

/// Longest wait for something to come true.
const WITHIN: Duration = Duration::from_secs(30);

/// What a backend brings for its test.
#[async_trait]
pub trait Harness: Send + Sync {
    fn backend(&self) -> &dyn Backend;
    /// A runtime that it has.
    fn runtime(&self) -> sless_core::Runtime;
    /// Makes code known for `function` whose file `handler` has a function `handle`, and where asking for a function `broken`
    /// does not load. Different `mark`s give different contents.
    async fn code(&self, function: &FunctionRef, mark: &str) -> CodeRef;
    /// Whether endpoints can be expected (a fake has none of its own).
    fn runs_processes(&self) -> bool {
        true
    }
}

/// Runs all cases, one after another.
///
/// # Panics
/// Where the backend breaks a promise of the trait.
pub async fn run(harness: &dyn Harness) {
    becomes_ready_and_tells_of_the_generation(harness).await;
    the_same_revision_again_is_told_of_with_the_new_generation(harness).await;
    other_values_in_its_secrets_make_new_workers_without_a_build(harness).await;
    a_revision_that_does_not_load_replaces_none_that_does(harness).await;
    an_older_generation_is_ignored(harness).await;
    an_earlier_revision_is_called_beside_the_one_that_answers(harness).await;
    what_answered_last_is_started_when_the_wanted_one_does_not_load(harness).await;
    deletion_leaves_nothing_and_may_be_repeated(harness).await;
    identities_are_those_of_functions(harness).await;
    clean_up(harness).await;
}

fn function(name: &str) -> FunctionRef {
    let parsed = "suite".parse().ok().zip(name.parse().ok());
    #[expect(clippy::expect_used, reason = "the suite is test code: its names are valid")]
    let (namespace, name) = parsed.expect("names of the suite are DNS labels");
    FunctionRef { namespace, name }
}

async fn revision(h: &dyn Harness, f: &FunctionRef, mark: &str, handler: &str) -> Revision {
    let settings = FunctionSettings {
        entrypoint: format!("handler.{handler}").parse().unwrap_or_default(),
        ..Default::default()
    };
    let (name, secrets) = (format!("{mark}{handler}"), BTreeMap::new());
    Revision { name, runtime: h.runtime(), settings, code: h.code(f, mark).await, secrets }
}

async fn apply(
    h: &dyn Harness,
    f: &FunctionRef,
    wanted: &Revision,
    serving: Option<&Revision>,
    generation: u64,
) {
    let (wanted, serving) = (wanted.clone(), serving.cloned());
    let spec =
        FunctionSpec { function: f.clone(), wanted, serving, kept: Vec::new(), index: Default::default() };
    let applied = h.backend().apply_function(spec, Generation(generation)).await;
    assert!(applied.is_ok(), "{applied:?}");
}

async fn settled(h: &dyn Harness, f: &FunctionRef, generation: u64) -> FunctionStatus {
    until(|| {
        let status = h.backend().status(f)?;
        let done = matches!(status.phase, Phase::Ready | Phase::Failed);
        (done && status.generation >= Generation(generation)).then_some(status)
    })
    .await
}

async fn until<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let began = tokio::time::Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(began.elapsed() < WITHIN, "did not come true within {WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn becomes_ready_and_tells_of_the_generation(h: &dyn Harness) {
    let f = function("first");
    assert!(h.backend().status(&f).is_none() && h.backend().endpoints(&f).is_empty());
    let wanted = revision(h, &f, "a", "handle").await;
    let mut watch = h.backend().watch_functions();
    apply(h, &f, &wanted, None, 3).await;
    let status = settled(h, &f, 3).await;
    assert_eq!(
        (status.phase, status.active_revision.as_deref()),
        (Phase::Ready, Some("ahandle")),
        "{:?}",
        status.message
    );
    assert_eq!((status.generation, status.gone), (Generation(3), false));
    let seen = tokio::time::timeout(WITHIN, async {
        while let Some(told) = watch.next().await {
            if told == status {
                return true;
            }
        }
        false
    });
    assert_eq!(seen.await, Ok(true), "the watch tells of it");
    let mut late = h.backend().watch_functions();
    assert_eq!(
        tokio::time::timeout(WITHIN, late.next()).await,
        Ok(Some(status)),
        "a new watch begins with the present state"
    );
    if h.runs_processes() {
        assert!(!h.backend().endpoints(&f).is_empty(), "ready means that a call can be taken");
    }
}

async fn the_same_revision_again_is_told_of_with_the_new_generation(h: &dyn Harness) {
    let f = function("first");
    let wanted = revision(h, &f, "a", "handle").await;
    let (endpoints, build) = (h.backend().endpoints(&f), h.backend().build(&f));
    apply(h, &f, &wanted, Some(&wanted), 4).await;
    assert_eq!(settled(h, &f, 4).await.generation, Generation(4));
    assert_eq!(h.backend().endpoints(&f), endpoints, "nothing was started again");
    assert_eq!(h.backend().build(&f), build, "nothing was built again");
}

async fn other_values_in_its_secrets_make_new_workers_without_a_build(h: &dyn Harness) {
    let f = function("secrets");
    let first = revision(h, &f, "a", "handle").await;
    apply(h, &f, &first, None, 1).await;
    settled(h, &f, 1).await;
    let (built, before) = (h.backend().build(&f), h.backend().endpoints(&f));
    let secrets = BTreeMap::from([("KEY".to_owned(), Secret::new("value"))]);
    apply(h, &f, &Revision { secrets, ..first }, None, 2).await;
    let status = settled(h, &f, 2).await;
    assert_eq!((status.phase, status.active_revision.as_deref()), (Phase::Ready, Some("ahandle")));
    assert_eq!(h.backend().build(&f), built);
    if h.runs_processes() {
        let now = h.backend().endpoints(&f);
        assert!(!now.is_empty() && now != before, "the old supervisor has the old values");
    }
}

async fn a_revision_that_does_not_load_replaces_none_that_does(h: &dyn Harness) {
    let f = function("first");
    let (good, bad) = (revision(h, &f, "a", "handle").await, revision(h, &f, "b", "broken").await);
    apply(h, &f, &bad, Some(&good), 5).await;
    let failed = settled(h, &f, 5).await;
    assert_eq!((failed.phase, failed.active_revision.as_deref()), (Phase::Failed, Some("ahandle")));
    assert!(failed.message.is_some_and(|m| !m.is_empty()), "a failure says why");
    if h.runs_processes() {
        assert!(!h.backend().endpoints(&f).is_empty(), "the one before goes on answering");
    }
    let next = revision(h, &f, "c", "handle").await;
    apply(h, &f, &next, Some(&good), 6).await;
    let ready = settled(h, &f, 6).await;
    assert_eq!(
        (ready.phase, ready.message, ready.active_revision.as_deref()),
        (Phase::Ready, None, Some("chandle"))
    );
}

async fn an_older_generation_is_ignored(h: &dyn Harness) {
    let f = function("first");
    let old = revision(h, &f, "a", "handle").await;
    apply(h, &f, &old, None, 2).await;
    let status = settled(h, &f, 6).await;
    assert_eq!((status.generation, status.active_revision.as_deref()), (Generation(6), Some("chandle")));
}

async fn an_earlier_revision_is_called_beside_the_one_that_answers(h: &dyn Harness) {
    let f = function("first");
    let (now, before) = (revision(h, &f, "c", "handle").await, revision(h, &f, "a", "handle").await);
    let answering = h.backend().endpoints(&f);
    let same = h.backend().revision_endpoints(&f, now).await;
    assert_eq!(same.ok().as_ref(), Some(&answering), "that which answers is not started again");
    let bad = revision(h, &f, "b", "broken").await;
    let refused = h.backend().revision_endpoints(&f, bad).await;
    assert!(matches!(refused, Err(BackendError::Conflict(_))), "{refused:?}");
    if !h.runs_processes() {
        return;
    }
    let mut lists = Vec::new();
    for _ in 0..2 {
        let list = h.backend().revision_endpoints(&f, before.clone()).await;
        assert!(list.as_ref().is_ok_and(|list| !list.is_empty() && *list != answering), "{list:?}");
        lists.extend(list);
    }
    assert_eq!(lists.first(), lists.last(), "one is started for all who ask");
    let running = h.backend().supervisors(&f);
    let known = |list: &[crate::Endpoint]| list.iter().all(|one| running.contains(one));
    assert!(known(&answering) && lists.iter().all(|list| known(list)), "{running:?}");
    assert_eq!(h.backend().endpoints(&f), answering, "what answers is the same as before");
}

async fn what_answered_last_is_started_when_the_wanted_one_does_not_load(h: &dyn Harness) {
    let f = function("again");
    let (good, bad) = (revision(h, &f, "a", "handle").await, revision(h, &f, "b", "broken").await);
    apply(h, &f, &bad, Some(&good), 1).await;
    let failed = until(|| {
        let status = h.backend().status(&f)?;
        (status.phase == Phase::Failed && status.active_revision.is_some()).then_some(status)
    })
    .await;
    assert_eq!(failed.active_revision.as_deref(), Some("ahandle"));
}

async fn deletion_leaves_nothing_and_may_be_repeated(h: &dyn Harness) {
    let f = function("first");
    let mut watch = h.backend().watch_functions();
    for _ in 0..2 {
        let deleted = h.backend().delete_function(&f).await;
        assert!(deleted.is_ok(), "{deleted:?}");
    }
    until(|| h.backend().status(&f).is_none().then_some(())).await;
    assert!(h.backend().endpoints(&f).is_empty());
    let gone = tokio::time::timeout(WITHIN, async {
        while let Some(told) = watch.next().await {
            if told.function == f && told.gone {
                return true;
            }
        }
        false
    });
    assert_eq!(gone.await, Ok(true), "the watch tells that it is gone");
    let wanted = revision(h, &f, "a", "handle").await;
    apply(h, &f, &wanted, None, 1).await;
    assert_eq!(
        settled(h, &f, 1).await.phase,
        Phase::Ready,
        "the name can be used again, its generations begin anew"
    );
}

async fn identities_are_those_of_functions(h: &dyn Harness) {
    let f = function("first");
    for nobody in ["", "wrong", h.backend().proxy_token(&f).reveal()] {
        assert_eq!(h.backend().platform_identity(nobody).await.ok(), Some(None), "{nobody:?}");
    }
}

async fn clean_up(h: &dyn Harness) {
    for f in [function("first"), function("again"), function("secrets")] {
        let deleted = h.backend().delete_function(&f).await;
        assert!(deleted.is_ok(), "{deleted:?}");
        until(|| h.backend().status(&f).is_none().then_some(())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBackend;

    struct Fake(FakeBackend);

    #[async_trait]
    impl Harness for Fake {
        fn backend(&self) -> &dyn Backend {
            &self.0
        }

        fn runtime(&self) -> sless_core::Runtime {
            "python3.11".parse().unwrap()
        }

        async fn code(&self, _: &FunctionRef, mark: &str) -> CodeRef {
            let digest = mark.repeat(64).parse().unwrap();
            CodeRef { sha256: digest, content_sha256: digest }
        }

        fn runs_processes(&self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn the_fake_passes() {
        run(&Fake(FakeBackend::default())).await;
    }
}
