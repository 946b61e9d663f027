use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sless_backend::{
    Backend, CodeRef, DefinitionError, Definitions, FunctionChange, FunctionRef, FunctionRow, Generation,
    Moment, RevisionRow, Secret, TriggerWish, definitions_suite,
};
use sless_core::{Digest, FunctionSettings, HttpTrigger, TriggerKind, revision_name};
use sless_crds::names::{LABEL_ENABLED, LABEL_FUNCTION, LABEL_REVISION, revision_object};
use sless_crds::{Function, RevisionData, Trigger};

use crate::support::{Place, make, make_namespace, until};

/// Plays the controller.
struct Suite<'a> {
    place: &'a Place,
    host: String,
}

#[async_trait]
impl definitions_suite::Harness for Suite<'_> {
    fn definitions(&self) -> &dyn Definitions {
        &self.place.definitions
    }

    fn namespace(&self) -> &str {
        &self.place.namespace
    }

    fn host(&self) -> &str {
        &self.host
    }

    async fn finish(&self, function: &FunctionRef) {
        for _ in 0..500 {
            if self.place.definitions.function(function).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("{function} does not go");
    }

    async fn keep(&self, row: &FunctionRow) {
        let functions = self.place.within::<Function>(&self.place.namespace);
        let object = functions.get(row.function.name.as_str()).await.unwrap();
        let revision = row.wanted.clone().unwrap();
        let kept = ControllerRevision {
            metadata: kube::api::ObjectMeta {
                name: Some(revision_object(&row.function.name, &revision)),
                labels: Some(BTreeMap::from([
                    (LABEL_FUNCTION.to_owned(), object.name_any()),
                    (LABEL_REVISION.to_owned(), revision),
                ])),
                owner_references: Some(vec![kube::Resource::controller_owner_ref(&object, &()).unwrap()]),
                ..Default::default()
            },
            data: RevisionData::of(&object.spec).unwrap().write().unwrap(),
            revision: Some(object.metadata.generation.unwrap()),
        };
        let made = self.place.within(&self.place.namespace).create(&PostParams::default(), &kept).await;
        // A rollback finds it there.
        assert!(
            made.is_ok() || matches!(&made, Err(kube::Error::Api(e)) if e.is_already_exists()),
            "{made:?}"
        );
    }
}

#[tokio::test]
async fn objects_keep_what_definitions_must() {
    Place::run(async |place| {
        definitions_suite::run(&Suite { place, host: place.host() }).await;
    })
    .await;
}

#[tokio::test]
async fn a_namespace_has_to_be_given_to_sless() {
    Place::run(async |place| {
        let d = &place.definitions;
        let namespace = place.namespace.parse().unwrap();
        let refused = d.enter_namespace(&namespace, false).await;
        assert!(
            matches!(&refused, Err(DefinitionError::NamespaceRefused(why)) if why.contains("no namespace")),
            "{refused:?}"
        );
        make_namespace(&place.client, &place.namespace, &[]).await;
        let refused = d.enter_namespace(&namespace, true).await;
        assert!(
            matches!(&refused, Err(DefinitionError::NamespaceRefused(why)) if why.contains("kubectl label")),
            "{refused:?}"
        );
        let label = Patch::Merge(json!({"metadata": {"labels": {LABEL_ENABLED: "true"}}}));
        let namespaces = place.all::<k8s_openapi::api::core::v1::Namespace>();
        namespaces.patch(&place.namespace, &PatchParams::default(), &label).await.unwrap();
        d.enter_namespace(&namespace, false).await.unwrap();
        // The place where its functions would run belongs to somebody else.
        make_namespace(&place.client, &place.workloads(), &[]).await;
        until(async || {
            let refused = d.enter_namespace(&namespace, true).await;
            matches!(&refused, Err(DefinitionError::NamespaceRefused(why)) if why.contains("sless-fn-"))
                .then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_left_alone() {
    Place::run(async |place| {
        let d = &place.definitions;
        let (namespace, name) = (place.namespace.parse().unwrap(), "theirs".parse().unwrap());
        d.enter_namespace(&namespace, true).await.unwrap();
        let secrets = place.within::<SecretObject>(&place.namespace);
        make(&secrets, json!({"metadata": {"name": "theirs"}, "stringData": {"A": "b"}})).await;
        assert_eq!(d.secret(&namespace, &name).await.unwrap(), None);
        assert_eq!(d.secrets(&namespace, None, 9).await.unwrap(), []);
        let values = BTreeMap::from([("A".to_owned(), Secret::new("c"))]);
        let refused = d.insert_secret(&namespace, &name, &values).await;
        assert!(
            matches!(&refused, Err(DefinitionError::NamespaceRefused(why)) if why.contains("kubectl")),
            "{refused:?}"
        );
        let settings = FunctionSettings { secrets: vec![name.clone()], ..Default::default() };
        let refused =
            d.insert_function(&place.function("f"), &"python3.11".parse().unwrap(), &settings).await;
        assert!(matches!(refused, Err(DefinitionError::NoSecret(_))), "{refused:?}");
        assert_eq!(secrets.get("theirs").await.unwrap().data.unwrap()["A"].0, b"b");
    })
    .await;
}

fn revision(row: &FunctionRow, settings: &FunctionSettings, mark: u8) -> RevisionRow {
    let code = CodeRef { sha256: Digest::new([mark; 32]), content_sha256: Digest::new([mark + 1; 32]) };
    let name = revision_name(&row.runtime, settings, &code.content_sha256);
    RevisionRow { name, settings: settings.clone(), code, image: None, created_at: Moment::now() }
}

#[tokio::test]
async fn what_is_wanted_again_is_told_apart_from_what_was_seen() {
    Place::run(async |place| {
        let (d, f) = (&place.definitions, place.function("f"));
        d.enter_namespace(&f.namespace, true).await.unwrap();
        let settings = FunctionSettings::default();
        let row = d.insert_function(&f, &"python3.11".parse().unwrap(), &settings).await.unwrap();
        let wanted = revision(&row, &settings, 1);
        let change = FunctionChange { settings, wanted: Some(wanted.clone()) };
        let row = d.change_function(&row, &change).await.unwrap();
        assert_eq!(row.wanted.as_ref(), Some(&wanted.name));
        let functions = place.within::<Function>(&place.namespace);
        let object = functions.get("f").await.unwrap();
        let source = object.spec.source.clone().unwrap();
        assert_eq!(source.key, format!("{}/f/{}.zip", place.namespace, wanted.code.sha256));
        assert_eq!(source.content_sha256, Some(wanted.code.content_sha256.to_string()));
        assert_eq!(d.revision(&row, &wanted.name).await.unwrap().map(|r| r.code), Some(wanted.code), "before it is kept");

        // The controller says that it failed …
        let answer = |generation: i64, retried: Option<&str>| {
            Patch::Merge(json!({"status": {"observedGeneration": generation, "phase": "Failed", "message": "no", "retried": retried, "conditions": []}}))
        };
        let generation = object.metadata.generation.unwrap();
        functions.patch_status("f", &PatchParams::default(), &answer(generation, None)).await.unwrap();
        let told = |wanted: u64| async move {
            until(async || place.backend.status(&place.function("f")).filter(|s| s.generation == Generation(wanted))).await
        };
        told(row.generation).await;
        // … and the same is wanted again: what was told is older than that at once.
        let again = d.change_function(&row, &change).await.unwrap();
        assert!(again.generation > row.generation && again.version > row.version);
        let unchanged = functions.get("f").await.unwrap();
        assert_eq!(unchanged.metadata.generation, Some(generation), "the spec is the same, to the API server too");
        let seen = place.backend.status(&f).unwrap();
        assert!(seen.generation < Generation(again.generation), "{seen:?}");
        functions.patch_status("f", &PatchParams::default(), &answer(generation, Some("1"))).await.unwrap();
        told(again.generation).await;
        let stale = d.change_function(&row, &change).await;
        assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
        // A status is nobody's version.
        d.delete_function(&again).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_kubectl_writes_is_there_too() {
    Place::run(async |place| {
        let (d, namespace) = (&place.definitions, place.namespace.parse().unwrap());
        d.enter_namespace(&namespace, true).await.unwrap();
        let mut changes = d.changes();
        let functions = place.within::<Function>(&place.namespace);
        let triggers = place.within::<Trigger>(&place.namespace);
        let sha = "a".repeat(64);
        let spec = json!({"runtime": "python3.11", "memoryMb": 64, "source": {"key": format!("{}/k/{sha}.zip", place.namespace), "sha256": sha}});
        make(&functions, json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"name": "k"}, "spec": spec})).await;
        tokio::time::timeout(std::time::Duration::from_secs(10), changes.next()).await.unwrap().unwrap();
        let trigger = |name: &str, spec| json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Trigger", "metadata": {"name": name}, "spec": spec});
        make(&triggers, trigger("web", json!({"type": "http", "functionRef": "k", "methods": ["GET"]}))).await;
        make(&triggers, trigger("tick", json!({"type": "cron", "functionRef": "k", "schedule": "* * * * *", "payload": {"a": 1}}))).await;
        let open = async || {
            let all = d.reachable().await.unwrap();
            all.into_iter().find(|one| one.function == place.function("k")).map(|one| one.triggers)
        };
        let seen = until(async || open().await.filter(|triggers| !triggers.is_empty())).await;
        assert_eq!(seen, [HttpTrigger { methods: vec!["GET".to_owned()], ..Default::default() }]);
        let listed = d.triggers(&namespace, None, 9).await.unwrap();
        assert_eq!(listed.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["web"], "of types that there are");
        let row = d.function(&place.function("k")).await.unwrap().unwrap();
        assert_eq!(row.settings.memory_mb, 64);
        let wanted = d.revision(&row, row.wanted.as_ref().unwrap()).await.unwrap().unwrap();
        assert_eq!(wanted.code.sha256.to_string(), sha);
        // Settings alone: what is not known of the code stays unknown.
        let settings = FunctionSettings { memory_mb: 128, ..row.settings.clone() };
        let name = revision_name(&row.runtime, &settings, &wanted.code.content_sha256);
        let change = FunctionChange { settings: settings.clone(), wanted: Some(RevisionRow { name: name.clone(), settings, ..wanted }) };
        let changed = d.change_function(&row, &change).await.unwrap();
        assert_eq!(changed.wanted, Some(name));
        assert_eq!(functions.get("k").await.unwrap().spec.source.unwrap().content_sha256, None);
        // A namespace that is taken away again counts no more.
        let label = Patch::Merge(json!({"metadata": {"labels": {LABEL_ENABLED: null}}}));
        let namespaces = place.all::<k8s_openapi::api::core::v1::Namespace>();
        namespaces.patch(&place.namespace, &PatchParams::default(), &label).await.unwrap();
        until(async || open().await.is_none().then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn a_host_is_had_by_one_and_only_where_it_is_allowed() {
    Place::run(async |place| {
        let (d, namespace) = (&place.definitions, place.namespace.parse().unwrap());
        d.enter_namespace(&namespace, true).await.unwrap();
        let f = place.function("f");
        d.insert_function(&f, &"python3.11".parse().unwrap(), &FunctionSettings::default()).await.unwrap();
        let wish = |host: &str| TriggerWish {
            kind: TriggerKind::Http,
            enabled: true,
            function: f.name.clone(),
            http: HttpTrigger { host: Some(host.parse().unwrap()), ..Default::default() },
        };
        for host in ["evil.example", "suite.example"] {
            let refused = d.insert_trigger(&namespace, &"t".parse().unwrap(), &wish(host)).await;
            assert!(
                matches!(&refused, Err(DefinitionError::HostRefused(why)) if why.contains(".example")),
                "{refused:?}"
            );
        }
        // Somebody goes around the API: the older one keeps the host.
        let made = d.insert_trigger(&namespace, &"t".parse().unwrap(), &wish(&place.host())).await.unwrap();
        let triggers = place.within::<Trigger>(&place.namespace);
        // Moments of creation have whole seconds: of the same one, the first by name has it.
        make(
            &triggers,
            json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Trigger", "metadata": {"name": "u"},
            "spec": {"type": "http", "functionRef": "f", "host": place.host()}}),
        )
        .await;
        until(async || {
            d.triggers(&namespace, None, 9)
                .await
                .unwrap()
                .iter()
                .any(|row| row.name.as_str() == "u")
                .then_some(())
        })
        .await;
        let open = async || {
            let all = d.reachable().await.unwrap();
            all.into_iter().find(|one| one.function == f).map_or(0, |one| one.triggers.len())
        };
        assert_eq!(open().await, 1);
        // What is forbidden later lets nobody in, and can still be switched off.
        let annotation = Patch::Merge(
            json!({"metadata": {"annotations": {"sless.kube5s.ru/host-suffixes": "other.example"}}}),
        );
        let namespaces = place.all::<k8s_openapi::api::core::v1::Namespace>();
        namespaces.patch(&place.namespace, &PatchParams::default(), &annotation).await.unwrap();
        until(async || (open().await == 0).then_some(())).await;
        let off =
            d.change_trigger(&made, &TriggerWish { enabled: false, ..made.wish.clone() }).await.unwrap();
        assert!(!off.wish.enabled);
        triggers.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_trigger_can_be_made_again_while_the_old_one_ends() {
    Place::run(async |place| {
        let (d, f) = (&place.definitions, place.function("f"));
        d.enter_namespace(&f.namespace, true).await.unwrap();
        let name = "t".parse().unwrap();
        let wish = TriggerWish {
            kind: TriggerKind::Http,
            enabled: true,
            function: f.name,
            http: HttpTrigger::default(),
        };
        let made = d.insert_trigger(&f.namespace, &name, &wish).await.unwrap();
        let triggers = place.within::<Trigger>(&place.namespace);
        // Somebody has something to clear up first.
        let held = |finalizers| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        triggers.patch("t", &PatchParams::default(), &held(vec!["sless.kube5s.ru/cleanup"])).await.unwrap();
        d.remove_trigger(&made).await.unwrap();
        assert_eq!(d.trigger(&f.namespace, &name).await.unwrap(), None);
        assert_eq!(d.triggers(&f.namespace, None, 9).await.unwrap(), []);
        let (again, released) = tokio::join!(d.insert_trigger(&f.namespace, &name, &wish), async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            triggers.patch("t", &PatchParams::default(), &held(Vec::new())).await
        });
        released.unwrap();
        assert!(again.unwrap().id > made.id);
        let taken = d.insert_trigger(&f.namespace, &name, &wish).await;
        assert!(matches!(taken, Err(DefinitionError::Exists)), "{taken:?}");
    })
    .await;
}

#[tokio::test]
async fn what_only_the_api_server_can_tell_is_named() {
    Place::run(async |place| {
        let (d, f) = (&place.definitions, place.function("f"));
        d.enter_namespace(&f.namespace, true).await.unwrap();
        let env = (0..1025).map(|n| (format!("V{n}"), String::new())).collect();
        let settings = FunctionSettings { env, ..Default::default() };
        let refused = d.insert_function(&f, &"python3.11".parse().unwrap(), &settings).await;
        assert!(
            matches!(&refused, Err(DefinitionError::Invalid(error)) if error.field == "env"),
            "{refused:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn the_api_server_takes_what_the_api_takes() {
    Place::run(async |place| {
        let (d, f) = (&place.definitions, place.function("f"));
        d.enter_namespace(&f.namespace, true).await.unwrap();
        for (n, entrypoint) in ["a.b", "src/app.main", "@x/y-z+1.$h", "äpp.ünit"].iter().enumerate() {
            let settings = json!({
                "entrypoint": entrypoint, "timeout_sec": 0.1, "idle_timeout_sec": 604_800, "min_replicas": 0,
                "env": {"a.b-c": "x", "_": "", "-": "line\nline", "long": "x".repeat(100 << 10)},
                "labels": {"example.org/team": "a_b.C-1", "empty": ""}, "retry": {"max_attempts": 1, "backoff_sec": 0, "on": []}
            });
            let settings = FunctionSettings::from_object(settings.as_object().unwrap()).unwrap();
            let function = place.function(&format!("f{n}"));
            let made = d.insert_function(&function, &"a-1.b".parse().unwrap(), &settings).await.unwrap();
            assert_eq!(made.settings, settings);
        }
        let http = json!({"methods": ["GET", "M-SEARCH"], "cors": {"origins": ["https://my-app.example.org:8443", "capacitor://localhost", "*"], "methods": ["*", "PUT"], "headers": ["*", "X-A_b~"], "max_age_sec": 0}});
        let http = HttpTrigger::from_object(http.as_object().unwrap()).unwrap();
        let wish = TriggerWish { kind: TriggerKind::Http, enabled: false, function: f.name, http };
        let made = d.insert_trigger(&f.namespace, &"t".parse().unwrap(), &wish).await.unwrap();
        assert_eq!(made.wish, wish);
    })
    .await;
}

#[tokio::test]
async fn null_is_the_default() {
    Place::run(async |place| {
        let f = place.function("f");
        place.definitions.enter_namespace(&f.namespace, true).await.unwrap();
        let mut spec = json!({"runtime": "python3.11"});
        for name in FunctionSettings::default().to_object().keys() {
            let mut words = name.split('_');
            let camel: String = words.next().into_iter().map(str::to_owned).chain(words.map(|word| format!("{}{}", word[..1].to_uppercase(), &word[1..]))).collect();
            spec[camel] = serde_json::Value::Null;
        }
        let object = json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"name": "f", "namespace": place.namespace}, "spec": spec});
        let path = format!("/apis/sless.kube5s.ru/v1alpha1/namespaces/{}/functions", place.namespace);
        // Typed objects leave out what is null.
        let request = http::Request::post(path).header("content-type", "application/json").body(object.to_string().into_bytes()).unwrap();
        place.client.request::<Function>(request).await.unwrap();
        let row = place.definitions.function(&f).await.unwrap().unwrap();
        assert_eq!(row.settings, FunctionSettings::default());
    })
    .await;
}

#[tokio::test]
async fn the_api_server_refuses_what_the_api_refuses() {
    Place::run(async |place| {
        place.definitions.enter_namespace(&place.function("f").namespace, true).await.unwrap();
        let refused = async |kind: &str, plural: &str, spec: serde_json::Value, field: &str| {
            let gvk = kube::core::GroupVersionKind::gvk("sless.kube5s.ru", "v1alpha1", kind);
            let resource = kube::discovery::ApiResource::from_gvk_with_plural(&gvk, plural);
            let api: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(place.client.clone(), &place.namespace, &resource);
            let object = json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec});
            let answer = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
            let Err(kube::Error::Api(status)) = answer else { panic!("{spec} was taken") };
            assert!(status.is_invalid() && status.message.contains(field), "{spec}: {status:?}");
        };
        for (wrong, field) in [
            (json!({"runtime": "../x"}), "spec.runtime"),
            (json!({"runtime": "a", "entrypoint": "abc"}), "spec.entrypoint"),
            (json!({"runtime": "a", "entrypoint": "../a.b"}), "spec.entrypoint"),
            (json!({"runtime": "a", "timeoutSec": 0}), "spec.timeoutSec"),
            (json!({"runtime": "a", "timeoutSec": 3601}), "spec.timeoutSec"),
            (json!({"runtime": "a", "minReplicas": 2}), "spec.minReplicas"),
            (json!({"runtime": "a", "env": {"1a": ""}}), "spec.env"),
            (json!({"runtime": "a", "env": {"SLESS_X": ""}}), "spec.env"),
            (json!({"runtime": "a", "labels": {"a b": ""}}), "spec.labels"),
            (json!({"runtime": "a", "labels": {"a": "b c"}}), "spec.labels"),
            (json!({"runtime": "a", "secrets": ["A_b"]}), "spec.secrets"),
            (json!({"runtime": "a", "retry": {"on": ["success"]}}), "spec.retry.on"),
            (json!({"runtime": "a", "source": {"key": "a/b/c.zip", "sha256": "a".repeat(64)}}), "spec.source.key"),
        ] {
            refused("Function", "functions", wrong, field).await;
        }
        for (wrong, field) in [
            (json!({"type": "http", "functionRef": "A"}), "spec.functionRef"),
            (json!({"type": "http", "functionRef": "f", "host": "localhost"}), "spec.host"),
            (json!({"type": "http", "functionRef": "f", "host": "A.example"}), "spec.host"),
            (json!({"type": "http", "functionRef": "f", "methods": ["get"]}), "spec.methods"),
            (json!({"type": "http", "functionRef": "f", "cors": {"origins": []}}), "spec.cors.origins"),
            (json!({"type": "http", "functionRef": "f", "cors": {"origins": ["https://a/"]}}), "spec.cors.origins"),
            (json!({"type": "http", "functionRef": "f", "cors": {"origins": ["https://A"]}}), "spec.cors.origins"),
            (json!({"type": "http", "functionRef": "f", "cors": {"origins": ["*"], "headers": ["x y"]}}), "spec.cors.headers"),
            (json!({"type": "http", "functionRef": "f", "payload": 1}), "spec"),
            (json!({"type": "http", "functionRef": "f", "schedule": "* * * * *"}), "schedule"),
            (json!({"type": "cron", "functionRef": "f"}), "schedule"),
            (json!({"type": "rabbitmq", "functionRef": "f", "queue": "q"}), "connection"),
        ] {
            refused("Trigger", "triggers", wrong, field).await;
        }
        refused("FunctionJob", "functionjobs", json!({"functionRef": "f", "runId": -1}), "spec.runId").await;
        refused("FunctionJob", "functionjobs", json!({"functionRef": "f", "timeoutSec": 0}), "spec.timeoutSec").await;
    })
    .await;
}

#[tokio::test]
async fn a_controller_that_writes_all_the_time_makes_nobodys_change_stale() {
    Place::run(async |place| {
        let (d, f) = (&place.definitions, place.function("f"));
        d.enter_namespace(&f.namespace, true).await.unwrap();
        let mut row = d
            .insert_function(&f, &"python3.11".parse().unwrap(), &FunctionSettings::default())
            .await
            .unwrap();
        let functions = place.within::<Function>(&place.namespace);
        let busy = tokio::spawn({
            let functions = functions.clone();
            async move {
                for n in 0.. {
                    let status = json!({"status": {"message": format!("{n}"), "conditions": []}});
                    let written =
                        functions.patch_status("f", &PatchParams::default(), &Patch::Merge(status)).await;
                    // Until the function is deleted.
                    if written.is_err() {
                        return n;
                    }
                }
                0
            }
        });
        for workers in 2..12 {
            let settings = FunctionSettings { workers, ..FunctionSettings::default() };
            row = d.change_function(&row, &FunctionChange { settings, wanted: None }).await.unwrap();
            assert_eq!(row.settings.workers, workers);
        }
        d.delete_function(&row).await.unwrap();
        assert!(busy.await.unwrap() > 10);
    })
    .await;
}
