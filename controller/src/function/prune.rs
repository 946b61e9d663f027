//! Revisions beyond the function's history, with the code and the images that no other one needs.

use std::collections::HashSet;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use sless_backend::CodeStore;
use sless_core::Digest;
use sless_crds::Function;

use super::pass::Pass;
use crate::error::{Error, acting, chain, is_absent};
use crate::revision::Revision;
use crate::tags;

/// Which go: all but the newest `history` and those that are in use. The oldest first, as `all` is.
fn beyond<'a>(all: &'a [Revision], history: usize, used: &HashSet<&str>) -> Vec<&'a Revision> {
    let kept = all.iter().filter(|revision| used.contains(revision.name.as_str())).count();
    let free = all.iter().filter(|revision| !used.contains(revision.name.as_str()));
    let most = history.saturating_sub(kept);
    let count = free.clone().count().saturating_sub(most);
    free.take(count).collect()
}

fn tag_of(revision: &Revision) -> Option<String> {
    revision.image.as_ref()?;
    Some(tags::tag(revision.source.identity(), revision.runtime_image.as_deref()?))
}

impl Pass<'_> {
    /// Forgets what is beyond the history. `used`: the revisions that are wanted, or answer, or are aside.
    pub(super) async fn prune(&self, all: &[Revision], used: &HashSet<&str>) -> Result<(), Error> {
        let history = usize::try_from(self.valid.settings.revision_history).unwrap_or(usize::MAX);
        let gone = beyond(all, history, used);
        if gone.is_empty() {
            return Ok(());
        }
        // An upload that came just now may be of code that was about to go.
        let namespace = self.valid.of.namespace.as_str();
        let api: Api<Function> = Api::namespaced(self.context.client.clone(), namespace);
        let name = self.valid.of.name.as_str();
        let live = api.get(name).await.map_err(acting("read the function", name))?;
        if live.metadata.generation != self.known.function.metadata.generation {
            return Err(Error::Stale { name: name.to_owned() });
        }
        let left: Vec<_> =
            all.iter().filter(|one| !gone.iter().any(|other| other.name == one.name)).collect();
        let code: HashSet<_> = left.iter().map(|revision| revision.source.sha256.as_str()).collect();
        let images: HashSet<_> = left.iter().filter_map(|revision| revision.image.as_deref()).collect();
        let revisions: Api<ControllerRevision> = Api::namespaced(self.context.client.clone(), namespace);
        let away =
            |action: &str, problem| Error::Away { action: format!("{action} of {}", self.valid.of), problem };
        for revision in gone {
            if !code.contains(revision.source.sha256.as_str())
                && let Ok(sha256) = revision.source.sha256.parse::<Digest>()
            {
                let removed = self.context.code.delete(&self.valid.of, &sha256).await;
                removed.map_err(|error| away("remove old code", chain(&error)))?;
            }
            if let (Some(image), Some(tag)) = (&revision.image, tag_of(revision))
                && !images.contains(image.as_str())
            {
                let removed = tags::remove(self.context, &self.valid.of, &[tag]).await;
                removed.map_err(|problem| away("remove an old image", problem))?;
            }
            // Last: until then it says what is still to be removed.
            let name = revision.object.name_any();
            match revisions.delete(&name, &DeleteParams::default()).await {
                Err(error) if !is_absent(&error) => return Err(acting("delete the revision", &name)(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{fixtures, revision};

    #[test]
    fn the_oldest_go_and_none_that_is_in_use() {
        let all: Vec<_> = (1..=5)
            .map(|number| {
                let function = fixtures::function("team", "hello", 1);
                let object =
                    revision::object(&function, &format!("r{number}"), number, Timestamp::UNIX_EPOCH)
                        .unwrap();
                Revision::read(&Arc::new(object)).unwrap()
            })
            .collect();
        let gone = |history, used: &[&'static str]| {
            let used = used.iter().copied().collect();
            beyond(&all, history, &used).iter().map(|revision| revision.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(gone(3, &["r5"]), ["r1", "r2"]);
        assert_eq!(gone(3, &["r1", "r5"]), ["r2", "r3"]);
        assert_eq!(gone(1, &["r1", "r5"]), ["r2", "r3", "r4"]);
        assert!(gone(5, &["r5"]).is_empty());
    }
}
