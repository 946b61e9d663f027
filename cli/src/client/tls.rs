//! TLS towards a host: the certificates of SSL_CERT_FILE if that is set, else those that are built in.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What curl, pip and OpenSSL read too.
const CA_FILE: &str = "SSL_CERT_FILE";

pub(super) async fn connect(host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let file = env::var_os(CA_FILE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots(file.as_deref())?)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

fn roots(file: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(roots);
    };
    let bad = |e: &dyn std::fmt::Display| {
        io::Error::other(format!("certificates of {} ({CA_FILE}): {e}", path.display()))
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| bad(&e))? {
        roots.add(certificate.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?;
    }
    if roots.is_empty() {
        return Err(bad(&"there is none in it"));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = roots(Some(file.path())).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()) && error.contains(CA_FILE), "{error}");
        assert!(roots(Some(Path::new("/nowhere"))).is_err() && !roots(None).unwrap().is_empty());
    }
}
