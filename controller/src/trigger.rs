//! A trigger of type http: whether it is active, where it is reached, and for a host of its own an Ingress beside the API.
//!
//! Triggers of other types are the scheduler's and the queue reader's to tell of; here they only must not be kept from going.

mod ingress;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use sless_crds::{FINALIZER, Function, GROUP, Trigger, TriggerStatus, TriggerType, VERSION, hosts, names};

use crate::applied::{ensure, manager};
use crate::config::Config;
use crate::context::Context;
use crate::error::{Error, acting, is_absent};

/// Label of a trigger's Ingress: its name.
pub(crate) const LABEL_TRIGGER: &str = "sless.kube5s.ru/trigger";

/// What the decision rests on.
struct Given<'a> {
    config: &'a Config,
    trigger: &'a Trigger,
    namespace: Option<&'a Namespace>,
    function: Option<&'a Function>,
    /// Who has the host that it asks for.
    winner: Option<&'a Trigger>,
}

/// What is to be true of it.
#[derive(Debug, PartialEq)]
struct Decided {
    active: bool,
    url: Option<String>,
    message: Option<String>,
    /// The host that an Ingress is to be made for.
    host: Option<String>,
}

impl Given<'_> {
    fn decide(&self) -> Decided {
        let spec = &self.trigger.spec;
        let refuse =
            |message: String| Decided { active: false, url: None, message: Some(message), host: None };
        let Some(namespace) = self.namespace else { return refuse("its namespace is gone".into()) };
        if namespace.labels().get(names::LABEL_ENABLED).map(String::as_str) != Some("true") {
            return refuse(format!(
                "the namespace has not been given to sless: label it {}=true",
                names::LABEL_ENABLED
            ));
        }
        if let Some(Err(wrong)) = spec.as_http() {
            return refuse(wrong.to_string());
        }
        if let Some(host) = &spec.host {
            let suffixes = hosts::allowed_suffixes(namespace.annotations(), &self.config.host_suffixes);
            if !hosts::is_below(host, &suffixes) {
                let may = if suffixes.is_empty() {
                    "none".to_owned()
                } else {
                    format!("those below {}", suffixes.join(", "))
                };
                return refuse(format!(
                    "the host {host} is not one that this namespace may have; it may have {may}"
                ));
            }
            if self.winner.is_some_and(|winner| winner.metadata.uid != self.trigger.metadata.uid) {
                return refuse(format!("another trigger has the host {host} already"));
            }
        }
        let name = &spec.function_ref;
        let there = self.function.is_some_and(|function| function.metadata.deletion_timestamp.is_none());
        Decided {
            active: spec.enabled && there,
            url: Some(match &spec.host {
                Some(host) => address_of(&self.config.external_url, host),
                None => format!("{}/fn/{}/{name}", self.config.external_url, namespace.name_any()),
            }),
            message: (!there).then(|| format!("there is no function {name:?}")),
            host: spec.host.clone(),
        }
    }
}

/// Where callers reach a host: as the API, by scheme and port.
fn address_of(external: &str, host: &str) -> String {
    let (scheme, rest) = external.split_once("://").unwrap_or(("http", external));
    let authority = rest.split('/').next().unwrap_or_default();
    // Not the colons of an IPv6 address.
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    port.map_or_else(|| format!("{scheme}://{host}"), |port| format!("{scheme}://{host}:{port}"))
}

/// Makes a trigger so.
pub(crate) async fn reconcile(trigger: Arc<Trigger>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = trigger.namespace().unwrap_or_default();
    if trigger.metadata.deletion_timestamp.is_some() {
        remove_ingress(&context, &trigger).await?;
        finalizer(&context, &trigger, false).await?;
        return Ok(Action::await_change());
    }
    if trigger.spec.kind != TriggerType::Http {
        return Ok(Action::await_change());
    }
    let stores = &context.stores;
    let annotations = |namespace: &str| {
        let object = stores.namespaces.get(&ObjectRef::new(namespace))?;
        let enabled = object.labels().get(names::LABEL_ENABLED).map(String::as_str) == Some("true");
        enabled.then(|| object.annotations().clone())
    };
    let triggers = stores.triggers.state();
    let winner = trigger.spec.host.as_deref().and_then(|host| {
        hosts::winner(host, triggers.iter().map(|other| &**other), |namespace| {
            let allowed = annotations(namespace)
                .map(|annotations| hosts::allowed_suffixes(&annotations, &context.config.host_suffixes));
            allowed.is_some_and(|suffixes| hosts::is_below(host, &suffixes))
        })
    });
    let object = stores.namespaces.get(&ObjectRef::new(&namespace));
    let function = stores.functions.get(&ObjectRef::new(&trigger.spec.function_ref).within(&namespace));
    let decided = Given {
        config: &context.config,
        trigger: &trigger,
        namespace: object.as_deref(),
        function: function.as_deref(),
        winner,
    }
    .decide();
    match &decided.host {
        Some(host) => {
            finalizer(&context, &trigger, true).await?;
            let wanted = ingress::build(&context.config, &namespace, &trigger.name_any(), host);
            let name = wanted.name_any();
            let live = stores.ingresses.get(&ObjectRef::new(&name).within(&context.config.system_namespace));
            ensure(&context.client, live.as_deref(), wanted)
                .await
                .map_err(acting("write the Ingress", &name))?;
        }
        None => {
            remove_ingress(&context, &trigger).await?;
            finalizer(&context, &trigger, false).await?;
        }
    }
    tell(&context, &trigger, decided).await?;
    Ok(Action::await_change())
}

async fn remove_ingress(context: &Context, trigger: &Trigger) -> Result<(), Error> {
    let system = &context.config.system_namespace;
    let name = ingress::name(&trigger.namespace().unwrap_or_default(), &trigger.name_any());
    if context.stores.ingresses.get(&ObjectRef::new(&name).within(system)).is_none()
        && !trigger.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    {
        return Ok(());
    }
    let api: Api<Ingress> = Api::namespaced(context.client.clone(), system);
    match api.delete(&name, &DeleteParams::default()).await {
        Err(error) if !is_absent(&error) => Err(acting("delete the Ingress", &name)(error)),
        _ => Ok(()),
    }
}

/// Only what has an Ingress needs one.
async fn finalizer(context: &Context, trigger: &Trigger, wanted: bool) -> Result<(), Error> {
    let mut finalizers = trigger.finalizers().to_vec();
    let there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if there == wanted {
        return Ok(());
    }
    if wanted {
        finalizers.push(FINALIZER.to_owned());
    } else {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let name = trigger.name_any();
    let api: Api<Trigger> = Api::namespaced(context.client.clone(), &trigger.namespace().unwrap_or_default());
    let metadata = json!({ "finalizers": finalizers, "resourceVersion": trigger.resource_version() });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(error) if !is_absent(&error) => Err(acting("write the finalizer of", &name)(error)),
        _ => Ok(()),
    }
}

async fn tell(context: &Context, trigger: &Trigger, decided: Decided) -> Result<(), Error> {
    let before = trigger.status.clone().unwrap_or_default();
    let status = TriggerStatus {
        observed_generation: trigger.metadata.generation,
        active: Some(decided.active),
        url: decided.url,
        message: decided.message,
        ..before
    };
    if trigger.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let name = trigger.name_any();
    let api: Api<Trigger> = Api::namespaced(context.client.clone(), &trigger.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Trigger", "metadata": { "name": name }, "status": status,
    });
    match api.patch_status(&name, &manager(), &Patch::Apply(patch)).await {
        Err(error) if !is_absent(&error) => Err(acting("write the status of", &name)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures;

    fn decide(spec: Value, namespace: Value, function: Option<&Function>, other_wins: bool) -> Decided {
        let config = crate::config::tests::config(&[("HOST_SUFFIXES", "example.org")]).unwrap();
        let trigger = |uid: &str| {
            let mut all = json!({"type": "http", "functionRef": "hello"});
            all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let object = json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Trigger", "metadata": {"name": "t", "uid": uid}, "spec": all});
            serde_json::from_value::<Trigger>(object).unwrap()
        };
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        let (this, other) = (trigger("1"), trigger("2"));
        let winner = Some(if other_wins { &other } else { &this });
        Given { config: &config, trigger: &this, namespace: Some(&namespace), function, winner }.decide()
    }

    #[test]
    fn it_is_active_where_its_function_is_and_its_host_is_its_own() {
        let team = || json!({"metadata": {"name": "team", "labels": {"sless.kube5s.ru/enabled": "true"}}});
        let function = fixtures::function("team", "hello", 1);
        let plain = decide(json!({}), team(), Some(&function), false);
        assert_eq!(
            (plain.active, plain.url.as_deref(), plain.host),
            (true, Some("https://sless.example.org/fn/team/hello"), None)
        );
        assert!(!decide(json!({"enabled": false}), team(), Some(&function), false).active);
        let orphan = decide(json!({}), team(), None, false);
        assert_eq!(
            (orphan.active, orphan.message.as_deref()),
            (false, Some("there is no function \"hello\""))
        );
        let host = json!({"host": "shop.example.org"});
        let own = decide(host.clone(), team(), Some(&function), false);
        assert_eq!(
            (own.url.as_deref(), own.host.as_deref()),
            (Some("https://shop.example.org"), Some("shop.example.org"))
        );
        for (refused, word) in [
            (decide(host.clone(), team(), Some(&function), true), "already"),
            (
                decide(json!({"host": "shop.example.com"}), team(), Some(&function), false),
                "below example.org",
            ),
            (decide(host, json!({"metadata": {"name": "team"}}), Some(&function), false), "label"),
        ] {
            assert!(!refused.active && refused.host.is_none() && refused.url.is_none());
            assert!(refused.message.as_deref().unwrap().contains(word), "{refused:?}");
        }
    }

    #[test]
    fn a_host_is_reached_at_the_same_port() {
        assert_eq!(address_of("http://127.0.0.1:8080", "a.example"), "http://a.example:8080");
        assert_eq!(address_of("https://[::1]", "a.example"), "https://a.example");
    }
}
