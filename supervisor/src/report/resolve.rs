//! Names to addresses. A static binary has no resolver of the system's.

use std::io;
use std::net::IpAddr;

use hickory_resolver::TokioResolver;

#[derive(Debug)]
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    /// As `/etc/resolv.conf` and `/etc/hosts` say.
    pub(super) fn new() -> io::Result<Self> {
        let builder = TokioResolver::builder_tokio().map_err(io::Error::other)?;
        Ok(Self(builder.build().map_err(io::Error::other)?))
    }

    pub(super) async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found = self.0.lookup_ip(name).await.map_err(io::Error::other)?;
        Ok(found.iter().collect())
    }
}
