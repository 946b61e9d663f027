//! The API server goes away and comes back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sless_backend::{Backend, BackendError, DefinitionError, Definitions, Identity};
use sless_backend_kubernetes::{Cluster, KubernetesBackend, KubernetesDefinitions, Settings};
use sless_crds::Function;
use sless_crds::names::AUDIENCE;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::backend::{ready, slice};
use crate::support::{Place, make, until};

/// What becomes of bytes on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Good,
    /// Connections break, new ones are refused at once.
    Cut,
    /// Nothing comes through, and nobody hears why.
    Silent,
}

/// Stands between a client and the API server.
async fn proxy(to: SocketAddr) -> (SocketAddr, watch::Sender<Line>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, line) = watch::channel(Line::Good);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut line = line.clone();
            tokio::spawn(async move {
                let begun = *line.borrow();
                match begun {
                    Line::Good => {}
                    Line::Cut => return,
                    Line::Silent => std::future::pending().await,
                }
                let mut client = client;
                let mut server = TcpStream::connect(to).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    now = ended(&mut line) => {
                        if now == Line::Silent {
                            std::future::pending::<()>().await;
                        }
                    }
                }
            });
        }
    });
    (address, tell)
}

/// Waits until it is no good line any more.
async fn ended(line: &mut watch::Receiver<Line>) -> Line {
    line.wait_for(|line| *line != Line::Good).await.map_or(Line::Cut, |now| *now)
}

async fn goes_away_and_comes_back(away: Line) {
    Place::run(async |place| {
        let f = ready(place, "f").await;
        let slices = place.within::<EndpointSlice>(&place.workloads());
        make(&slices, slice(&place.workloads(), &["10.1.0.1"], &[])).await;
        let accounts = place.within::<ServiceAccount>(&place.workloads());
        make(&accounts, json!({"metadata": {"name": "fn-f"}})).await;
        let wish: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": [AUDIENCE]}})).unwrap();
        let token = async || {
            let made = accounts.create_token_request("fn-f", &PostParams::default(), &wish).await;
            made.unwrap().status.unwrap().token.unwrap()
        };

        let mut config = place.config.clone();
        let port = config.cluster_url.port_u16().unwrap_or(443);
        let host = config.cluster_url.host().unwrap().to_owned();
        let server = tokio::net::lookup_host((host.as_str(), port)).await.unwrap().next().unwrap();
        let (address, line) = proxy(server).await;
        config.tls_server_name.get_or_insert(host);
        config.cluster_url = format!("https://{address}").parse().unwrap();
        // What is a minute otherwise.
        config.read_timeout = Some(Duration::from_secs(2));
        let settings = Settings {
            system_namespace: Some(place.system.clone()),
            runtimes: Vec::new(),
            host_suffixes: Vec::new(),
        };
        let cluster = Cluster::with_config(config, settings).await.unwrap();
        let (backend, definitions) = (KubernetesBackend::new(Arc::clone(&cluster)), KubernetesDefinitions::new(cluster));
        let (known, unknown) = (token().await, token().await);
        assert_eq!(backend.platform_identity(&known).await.unwrap(), Some(Identity::Function(f.clone())));

        line.send(away).unwrap();
        assert_eq!(backend.endpoints(&f).len(), 1, "calls go on");
        assert_eq!(definitions.reachable().await.unwrap().iter().filter(|one| one.function == f).count(), 1);
        assert_eq!(backend.platform_identity(&known).await.unwrap(), Some(Identity::Function(f.clone())));
        let asked = tokio::time::Instant::now();
        let refused = backend.platform_identity(&unknown).await;
        assert!(matches!(refused, Err(BackendError::Unavailable { .. })), "{refused:?}");
        let refused = definitions.function(&f).await;
        assert!(matches!(refused, Err(DefinitionError::Away { .. })), "{refused:?}");
        assert!(matches!(definitions.ping().await, Err(DefinitionError::Away { .. })));
        assert!(asked.elapsed() < Duration::from_secs(35), "nobody waits for ever");

        // Meanwhile the world goes on.
        let moved = Patch::Merge(slice(&place.workloads(), &["10.1.0.2", "10.1.0.3"], &[]));
        slices.patch("fn-f-1", &PatchParams::default(), &moved).await.unwrap();
        let functions = place.within::<Function>(&place.namespace);
        make(&functions, json!({"apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Function", "metadata": {"name": "g"}, "spec": {"runtime": "python3.11"}})).await;
        line.send(Line::Good).unwrap();
        until(async || (backend.endpoints(&f).len() == 2).then_some(())).await;
        until(async || backend.status(&place.function("g"))).await;
        assert_eq!(backend.platform_identity(&unknown).await.unwrap(), Some(Identity::Function(f.clone())));
        functions.delete("f", &DeleteParams::default()).await.unwrap();
        until(async || backend.status(&f).is_none().then_some(())).await;
        backend.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_known_stays_known_while_the_api_server_is_gone() {
    goes_away_and_comes_back(Line::Cut).await;
}

#[tokio::test]
async fn an_api_server_that_falls_silent_is_not_listened_to_for_ever() {
    goes_away_and_comes_back(Line::Silent).await;
}
