//! How many builds may run at once, and who waits for one to end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use sless_crds::Function;

/// Which places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Build,
    Rebase,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    builds: usize,
    rebases: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Jobs that were asked for and that no watch has told of yet.
    starting: HashMap<String, Kind>,
    waiting: VecDeque<ObjectRef<Function>>,
}

impl Places {
    pub(crate) fn new(builds: usize, rebases: usize) -> Self {
        Self { builds, rebases, inner: Mutex::default() }
    }

    /// A place for `job`, or `function` waits: it is in [`Places::waiting`] when a build has ended.
    /// `active`: Jobs of this kind that have not ended, as the watch tells.
    pub(crate) fn take(
        &self,
        kind: Kind,
        job: &str,
        active: &[String],
        function: &ObjectRef<Function>,
    ) -> bool {
        let most = match kind {
            Kind::Build => self.builds,
            Kind::Rebase => self.rebases,
        };
        let mut inner = self.lock();
        let unseen =
            inner.starting.iter().filter(|(name, of)| **of == kind && !active.contains(name)).count();
        if active.iter().any(|name| name == job) || active.len() + unseen < most {
            inner.starting.insert(job.to_owned(), kind);
            inner.waiting.retain(|waiting| waiting != function);
            return true;
        }
        if !inner.waiting.contains(function) {
            inner.waiting.push_back(function.clone());
        }
        false
    }

    /// The watch has told of this Job, or it could not be made.
    pub(crate) fn seen(&self, job: &str) {
        self.lock().starting.remove(job);
    }

    /// Those that may try again; whoever still gets no place waits once more.
    pub(crate) fn waiting(&self) -> Vec<ObjectRef<Function>> {
        let mut inner = self.lock();
        let some = inner.waiting.len().min(self.builds.max(self.rebases));
        inner.waiting.drain(..some).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked left whole collections.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_before_a_watch_tells_of_them() {
        let places = Places::new(2, 1);
        let function = |name: &str| ObjectRef::new(name).within("team");
        assert!(places.take(Kind::Build, "a", &[], &function("a")));
        assert!(places.take(Kind::Build, "b", &[], &function("b")));
        assert!(!places.take(Kind::Build, "c", &[], &function("c")));
        assert!(!places.take(Kind::Build, "c", &["a".into(), "b".into()], &function("c")));
        places.seen("a");
        places.seen("b");
        assert_eq!(places.waiting(), [function("c")]);
        assert!(places.take(Kind::Build, "c", &["a".into()], &function("c")));
        assert!(!places.take(Kind::Build, "d", &["a".into()], &function("d")));
    }

    #[test]
    fn who_has_a_place_keeps_it() {
        let places = Places::new(1, 1);
        let function = ObjectRef::new("a").within("team");
        assert!(places.take(Kind::Build, "a", &["a".into()], &function));
    }
}
