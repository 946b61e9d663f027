//! The command line over `https`: a real exchange with a host behind something that ends TLS.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[allow(dead_code, reason = "each test file uses what it needs of it")]
mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use support::{Done, Host, SLESS, done};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// An authority that nobody knows, and its certificate for `localhost`.
fn certificate(folder: &Path) {
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        let made = command.args(["-days", "2"]).args(arguments).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    openssl(&["-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem"]);
    openssl(&[
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca-key.pem",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]);
}

/// Ends TLS and passes the bytes on to the host, for as long as the runtime lives.
async fn end_tls(folder: &Path, host: u16) -> SocketAddr {
    let certificates = CertificateDer::pem_file_iter(folder.join("cert.pem")).unwrap().map(Result::unwrap);
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.collect(), key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not believe the certificate hangs up.
                let Ok(mut outside) = acceptor.accept(stream).await else { return };
                let mut inside = TcpStream::connect(("127.0.0.1", host)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    address
}

#[test]
fn everything_works_over_tls_and_an_unknown_certificate_does_not() {
    let host = Host::start();
    certificate(host.folder.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = runtime.block_on(end_tls(host.folder.path(), host.port)).port();
    let token = fs::read_to_string(host.data().join("private/token")).unwrap();
    let home = host.folder.path().join("home");
    let far = |arguments: &[&str], url: &str, trusted: bool| -> Done {
        let mut command = Command::new(SLESS);
        command.args(arguments).env_clear().env("XDG_CONFIG_HOME", &home).env("XDG_DATA_HOME", &home);
        command.env("SLESS_URL", url).env("SLESS_TOKEN", token.trim());
        if trusted {
            command.env("SSL_CERT_FILE", host.folder.path().join("ca.pem"));
        }
        done(command.stdin(Stdio::null()).output().unwrap())
    };
    let url = format!("https://localhost:{port}");
    let code = "def handle(event, context):\n    print('over tls')\n    return 'x' * 300_000\n";
    let folder = host.folder("far", &[("handler.py", code)]);
    let deployed = far(&["deploy", &folder], &url, true);
    assert_eq!(deployed.code, 0, "{deployed:?}");
    assert_eq!(far(&["invoke", "far"], &url, true).out.len(), 300_000);
    host.until(|| far(&["logs", "far"], &url, true).out == "over tls\n");

    let unknown = far(&["list"], &url, false);
    assert!(unknown.code == 3 && unknown.err.contains("SSL_CERT_FILE"), "{unknown:?}");
    let other = far(&["list"], &format!("https://127.0.0.1:{port}"), true);
    assert!(other.code == 3 && other.err.contains("127.0.0.1"), "{other:?}");
    let plain = far(&["list"], &format!("https://localhost:{}", host.port), true);
    assert_eq!(plain.code, 3, "it speaks no TLS there: {plain:?}");

    let login = far(&["login", &url], &url, true);
    assert_eq!(login.code, 0, "{login:?}");
}
