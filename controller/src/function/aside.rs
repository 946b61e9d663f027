//! A pod of an earlier revision, for as long as somebody calls it.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use sless_crds::names;

use super::objects::Role;
use super::pass::Pass;
use crate::applied::ensure;
use crate::error::{Error, acting, is_absent};
use crate::revision::Revision;

/// It goes when nobody has asked for it for so long.
const LASTS: SignedDuration = SignedDuration::from_mins(5);

/// What the function's annotation asks for: a revision, and how long still.
fn asked(annotation: Option<&String>, now: Timestamp) -> Option<(&str, Duration)> {
    let (revision, moment) = annotation?.split_once(' ')?;
    let since = now.duration_since(moment.parse::<Timestamp>().ok()?);
    let left = Duration::try_from(LASTS.saturating_sub(since)).ok().filter(|left| !left.is_zero())?;
    // A moment in the future is a clock that is wrong.
    (since > -LASTS).then_some((revision, left))
}

/// What there is of it now.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// The Secret with its variables.
    pub(super) variables: Option<String>,
    /// Which it is.
    pub(super) revision: Option<String>,
    /// Until it has to go.
    pub(super) left: Option<Duration>,
}

impl Pass<'_> {
    /// Starts the pod that is asked for, and removes those that are not.
    pub(super) async fn aside(&self, revisions: &[Revision]) -> Result<Aside, Error> {
        let wish = asked(self.known.function.annotations().get(names::ASIDE), self.now);
        let found = wish.and_then(|(name, left)| {
            let revision =
                revisions.iter().find(|revision| revision.name == name && revision.image.is_some())?;
            Some((revision, left))
        });
        let namespace = names::workload_namespace(&self.valid.of.namespace);
        let mut aside = Aside::default();
        let mut keep = None;
        if let Some((revision, left)) = found
            && let Some(settings) = revision.settings()
            && let Ok(variables) = self.given.variables(&settings)
        {
            let token = self.context.proxy_token(&self.valid.of.namespace, &self.valid.of.name);
            let workload = self.workload(revision, &settings, &variables, 1, &token);
            let (client, stores) = (&self.context.client, &self.context.stores);
            for secret in workload.objects().secrets {
                let name = secret.name_any();
                let live = stores.secrets.get(&ObjectRef::new(&name).within(&namespace));
                ensure(client, live.as_deref(), secret).await.map_err(acting("write the Secret", &name))?;
            }
            let deployment = workload.deployment(Role::Aside);
            let name = deployment.name_any();
            let live = stores.deployments.get(&ObjectRef::new(&name).within(&namespace));
            ensure(client, live.as_deref(), deployment)
                .await
                .map_err(acting("write the Deployment", &name))?;
            aside = Aside {
                variables: workload.variables_name(),
                revision: Some(revision.name.clone()),
                left: Some(left),
            };
            keep = Some(name);
        }
        let other = |deployment: &Deployment| {
            let label = |name: &str| deployment.labels().get(name).map(String::as_str);
            deployment.metadata.namespace.as_ref() == Some(&namespace)
                && label(names::LABEL_FUNCTION) == Some(self.valid.of.name.as_str())
                && label(names::LABEL_COMPONENT) == Some(names::COMPONENT_ASIDE)
                && deployment.metadata.deletion_timestamp.is_none()
                && Some(deployment.name_any()) != keep
        };
        let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), &namespace);
        for deployment in self.context.stores.deployments.state_filter(|deployment| other(deployment)) {
            let name = deployment.name_any();
            match api.delete(&name, &DeleteParams::background()).await {
                Err(error) if !is_absent(&error) => {
                    return Err(acting("delete the Deployment", &name)(error));
                }
                _ => {}
            }
        }
        Ok(aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_for_five_minutes_after_it_was_asked_for_last() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let of = |text: &str| {
            asked(Some(&text.to_owned()), now).map(|(name, left)| (name.to_owned(), left.as_secs()))
        };
        assert_eq!(of("abc 2026-01-01T00:59:00.5Z"), Some(("abc".into(), 240)));
        for none in ["abc 2026-01-01T00:55:00Z", "abc 2026-01-01T02:00:00Z", "abc", "abc soon", ""] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(asked(None, now), None);
    }
}
