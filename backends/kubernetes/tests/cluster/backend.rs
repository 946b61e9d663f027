use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sless_backend::{Backend, BackendError, Definitions, Endpoint, FunctionRef, Identity, Revision};
use sless_backend_kubernetes::{Cluster, KubernetesBackend, Settings};
use sless_core::{FunctionSettings, Phase};
use sless_crds::Function;
use sless_crds::names::{
    AUDIENCE, LABEL_COMPONENT, LABEL_FUNCTION, LABEL_NAMESPACE, LABEL_REVISION, LAST_CALL, PROXY_KEY,
};

use crate::support::{Place, make, make_namespace, until};

/// A function that the controller has made ready, and where its pods are to be.
pub(crate) async fn ready(place: &Place, name: &str) -> FunctionRef {
    let f = place.function(name);
    place.definitions.enter_namespace(&f.namespace, true).await.unwrap();
    place
        .definitions
        .insert_function(&f, &"python3.11".parse().unwrap(), &FunctionSettings::default())
        .await
        .unwrap();
    tell(
        place,
        name,
        json!({"observedGeneration": 1, "phase": "Ready", "revision": "0123456789ab", "conditions": []}),
    )
    .await;
    until(async || place.backend.status(&f).filter(|status| status.phase == Phase::Ready)).await;
    let labels =
        [(LABEL_NAMESPACE, place.namespace.as_str()), ("app.kubernetes.io/managed-by", "sless-controller")];
    make_namespace(&place.client, &place.workloads(), &labels).await;
    f
}

async fn tell(place: &Place, name: &str, status: Value) {
    let functions = place.within::<Function>(&place.namespace);
    functions
        .patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
        .await
        .unwrap();
}

pub(crate) fn slice(namespace: &str, ready: &[&str], ending: &[&str]) -> Value {
    let one = |ip: &&str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready, "serving": true, "terminating": !ready}});
    let endpoints: Vec<_> =
        ready.iter().map(|ip| one(ip, true)).chain(ending.iter().map(|ip| one(ip, false))).collect();
    json!({"metadata": {"name": "fn-f-1", "namespace": namespace, "labels": {LABEL_FUNCTION: "f"}}, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 9090}], "endpoints": endpoints})
}

#[tokio::test]
async fn pods_are_known_as_they_come_and_go() {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let backend = &place.backend;
        assert!(backend.endpoints(&f).is_empty());
        let slices = place.within::<EndpointSlice>(&place.workloads());
        // In the user's own namespace anybody could make one.
        make(&place.within::<EndpointSlice>(&place.namespace), slice(&place.namespace, &["10.9.9.9"], &[]))
            .await;
        let waiting = tokio::spawn({
            let (backend, f) = (backend.clone(), f.clone());
            async move { backend.awake(&f).await }
        });
        make(&slices, slice(&place.workloads(), &["10.1.0.1"], &["10.1.0.2"])).await;
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
        let list = backend.endpoints(&f);
        let Some(Endpoint::Tcp { addr, admin }) = list.first() else { panic!("{list:?}") };
        assert_eq!(
            (addr.to_string(), admin.to_string()),
            ("10.1.0.1:8080".to_owned(), "10.1.0.1:9090".to_owned())
        );
        assert_eq!((list.len(), backend.supervisors(&f).len()), (1, 2));
        let moved = Patch::Merge(slice(&place.workloads(), &["10.1.0.2", "10.1.0.3"], &["10.1.0.1"]));
        slices.patch("fn-f-1", &PatchParams::default(), &moved).await.unwrap();
        until(async || (backend.endpoints(&f).len() == 2).then_some(())).await;
        let row = place.definitions.function(&f).await.unwrap().unwrap();
        place.definitions.delete_function(&row).await.unwrap();
        assert!(backend.endpoints(&f).is_empty(), "whoever deletes it is not surprised by its answer");
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_what_is_and_what_becomes_of_it() {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let mut watch = place.backend.watch_functions().filter(|told| std::future::ready(told.function == f));
        let mut next = async || tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap();
        assert_eq!(next().await.phase, Phase::Ready);
        tell(place, "f", json!({"phase": "Failed", "message": "no", "build": {"name": "b-1", "phase": "Failed", "startedAt": "2026-01-01T00:00:00Z"}})).await;
        let told = next().await;
        assert_eq!((told.phase, told.message.as_deref(), told.gone), (Phase::Failed, Some("no"), false));
        assert_eq!(place.backend.status(&f).as_ref(), Some(&told));
        assert_eq!(place.backend.build(&f).map(|build| (build.name, build.phase)), Some(("b-1".to_owned(), Phase::Failed)));
        assert_eq!(place.backend.build_log(&f, "b-1", 0).await.unwrap(), None, "its pod is gone");
        assert_eq!(place.backend.build_log(&f, "b-1,x=y", 0).await.unwrap(), None);
        place.within::<Function>(&place.namespace).delete("f", &DeleteParams::default()).await.unwrap();
        while !next().await.gone {}
        assert_eq!(place.backend.status(&f), None);
    })
    .await;
}

#[tokio::test]
async fn a_call_of_what_sleeps_is_noted_but_not_each_one() {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let functions = place.within::<Function>(&place.namespace);
        let noted = async || functions.get("f").await.unwrap().annotations().get(LAST_CALL).cloned();
        assert_eq!(noted().await, None);
        assert!(place.backend.wake(&f).await.unwrap());
        let first = noted().await;
        assert!(first.is_some());
        assert!(place.backend.wake(&f).await.unwrap());
        assert_eq!(noted().await, first);
        assert!(!place.backend.wake(&place.function("nobody")).await.unwrap());
        let row = place.definitions.function(&f).await.unwrap().unwrap();
        assert_eq!(row.version, 1, "a call is nobody's write");
        // Nothing lets the public in, so that its pods would end without this.
        let g = place.function("g");
        place
            .definitions
            .insert_function(&g, &"python3.11".parse().unwrap(), &FunctionSettings::default())
            .await
            .unwrap();
        place.backend.called(&g);
        until(async || functions.get("g").await.unwrap().annotations().get(LAST_CALL).cloned()).await;
    })
    .await;
}

#[tokio::test]
async fn a_token_is_that_of_the_function_whose_pod_has_it() {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let token = async |namespace: &str, name: &str, audience: &str| {
            let accounts = place.within::<ServiceAccount>(namespace);
            let _ = accounts
                .create(
                    &PostParams::default(),
                    &serde_json::from_value(json!({"metadata": {"name": name}})).unwrap(),
                )
                .await;
            let wish: TokenRequest = serde_json::from_value(
                json!({"metadata": {}, "spec": {"audiences": [audience], "expirationSeconds": 600}}),
            )
            .unwrap();
            accounts
                .create_token_request(name, &PostParams::default(), &wish)
                .await
                .unwrap()
                .status
                .unwrap()
                .token
                .unwrap()
        };
        let of = async |token: &str| place.backend.platform_identity(token).await.unwrap();
        let good = token(&place.workloads(), "fn-f", AUDIENCE).await;
        for _ in 0..2 {
            assert_eq!(of(&good).await, Some(Identity::Function(f.clone())));
        }
        assert_eq!(
            of(&token(&place.system, "sless-controller", AUDIENCE).await).await,
            Some(Identity::Controller)
        );
        for nobody in [
            token(&place.workloads(), "fn-f", "https://kubernetes.default.svc").await,
            token(&place.namespace, "fn-f", AUDIENCE).await,
            token(&place.namespace, "sless-controller", AUDIENCE).await,
            format!("{good}x"),
            String::new(),
            place.backend.proxy_token(&f).reveal().to_owned(),
        ] {
            assert_eq!(of(&nobody).await, None, "{nobody}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_key_of_proxy_tokens_is_made_once() {
    Place::run(async |place| {
        let secrets = place.within::<Secret>(&place.system);
        let kept = secrets.get(PROXY_KEY).await.unwrap();
        let settings = Settings {
            system_namespace: Some(place.system.clone()),
            runtimes: Vec::new(),
            host_suffixes: Vec::new(),
        };
        let second = KubernetesBackend::new(
            Cluster::with_config(place.config.clone(), settings.clone()).await.unwrap(),
        );
        let (f, g) = (place.function("f"), place.function("g"));
        assert_eq!(second.proxy_token(&f), place.backend.proxy_token(&f));
        assert_ne!(second.proxy_token(&g), place.backend.proxy_token(&f));
        assert_eq!(secrets.get(PROXY_KEY).await.unwrap().data, kept.data);
        second.shutdown().await;
        let mut ended = second.watch_functions();
        while ended.next().await.is_some() {}
        let damaged = Patch::Merge(json!({"data": {"key": ""}}));
        secrets.patch(PROXY_KEY, &PatchParams::default(), &damaged).await.unwrap();
        let refused = Cluster::with_config(place.config.clone(), settings).await;
        assert!(
            matches!(&refused, Err(BackendError::Conflict(why)) if why.contains(PROXY_KEY)),
            "{refused:?}"
        );
        assert!(!format!("{:?}", place.cluster).contains(&format!("{:?}", kept.data.unwrap()["key"].0)));
    })
    .await;
}

#[tokio::test]
async fn an_earlier_revision_gets_a_pod_that_is_asked_for() {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let functions = place.within::<Function>(&place.namespace);
        let revision = Revision {
            name: "cafe".to_owned(),
            runtime: "python3.11".parse().unwrap(),
            settings: FunctionSettings::default(),
            code: sless_backend::CodeRef { sha256: sless_core::Digest::new([1; 32]), content_sha256: sless_core::Digest::new([1; 32]) },
            secrets: Default::default(),
        };
        let asking = tokio::spawn({
            let (backend, f, revision) = (place.backend.clone(), f.clone(), revision.clone());
            async move { backend.revision_endpoints(&f, revision).await }
        });
        // What the controller would do, as soon as it is asked.
        let asked = until(async || functions.get("f").await.unwrap().annotations().get("sless.kube5s.ru/aside").cloned()).await;
        assert!(asked.starts_with("cafe 20"), "{asked}");
        let pods = place.within::<Pod>(&place.workloads());
        let labels = json!({LABEL_FUNCTION: "f", LABEL_REVISION: "cafe", LABEL_COMPONENT: "function-aside"});
        // On no node, for nothing need run.
        let spec = json!({"nodeName": "nowhere", "containers": [{"name": "function", "image": "x"}], "terminationGracePeriodSeconds": 0});
        make(&pods, json!({"metadata": {"name": "fn-f-cafe", "labels": labels}, "spec": spec})).await;
        let up = json!({"status": {"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}], "conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status("fn-f-cafe", &PatchParams::default(), &Patch::Merge(up)).await.unwrap();
        let list = tokio::time::timeout(Duration::from_secs(10), asking).await.unwrap().unwrap().unwrap();
        assert!(matches!(list.first(), Some(Endpoint::Tcp { addr, .. }) if addr.to_string() == "10.1.0.7:8080"), "{list:?}");
        let again = place.backend.revision_endpoints(&f, revision).await.unwrap();
        assert!(std::sync::Arc::ptr_eq(&list, &again), "one is started for all who ask");
        assert_eq!(functions.get("f").await.unwrap().annotations()["sless.kube5s.ru/aside"], asked, "and asked for once");
        assert!(place.backend.supervisors(&f).contains(&list[0]) && place.backend.endpoints(&f).is_empty());
        let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        pods.delete("fn-f-cafe", &now).await.unwrap();
        until(async || place.backend.supervisors(&f).is_empty().then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn the_log_of_a_build_is_read_while_it_runs() {
    let Ok(image) = std::env::var("SLESS_TEST_IMAGE") else {
        eprintln!(
            "not run: SLESS_TEST_IMAGE is not set; scripts/e2e sets it to an image with a shell that nodes can pull"
        );
        return;
    };
    Place::run(async |place| {
        let f = place.function("f");
        // It is the installation's, or is made so for once.
        let builds = kube::api::ObjectMeta { name: Some("sless-builds".to_owned()), ..Default::default() };
        let builds = k8s_openapi::api::core::v1::Namespace { metadata: builds, ..Default::default() };
        let _ = place.all().create(&PostParams::default(), &builds).await;
        let pods = place.within::<Pod>("sless-builds");
        let build = format!("b-{}", place.namespace);
        let says = |texts: &[&str], then: &str| {
            let lines: Vec<_> = texts.iter().map(|text| format!(r#"{{"time":"t","stream":"stdout","text":"{text}"}}"#)).collect();
            json!(["sh", "-c", format!("printf '%s\\n' {}; {then}", lines.iter().map(|line| format!("'{line}'")).collect::<Vec<_>>().join(" "))])
        };
        let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let container = |name: &str, command| json!({"name": name, "image": image, "command": command, "securityContext": security});
        let labels = json!({"batch.kubernetes.io/job-name": build, LABEL_NAMESPACE: place.namespace, LABEL_FUNCTION: "f"});
        make(&pods, json!({"metadata": {"name": build, "labels": labels}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [container("install", says(&["one", "two"], "echo no json; exit 0"))],
            "containers": [container("pack", says(&["three"], "sleep 60"))]
        }})).await;
        let texts = async |from: usize| {
            let lines = place.backend.build_log(&f, &build, from).await.unwrap();
            lines.map(|lines| lines.into_iter().map(|line| line.text).collect::<Vec<_>>())
        };
        until(async || (texts(0).await.unwrap().len() == 3).then_some(())).await;
        assert_eq!(texts(0).await.unwrap(), ["one", "two", "three"]);
        assert_eq!(texts(2).await.unwrap(), ["three"]);
        assert!(texts(9).await.unwrap().is_empty());
        assert_eq!(place.backend.build_log(&place.function("g"), &build, 0).await.unwrap(), None, "it is another's");
        pods.delete(&build, &DeleteParams { grace_period_seconds: Some(0), ..Default::default() }).await.unwrap();
        until(async || texts(0).await.is_none().then_some(())).await;
    })
    .await;
}
