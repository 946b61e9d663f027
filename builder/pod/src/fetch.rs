//! Fetches a zip by a presigned URL.

use std::fs::File;
use std::io::{Seek, Write};
use std::time::Duration;

use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::{Digest as _, Sha256};
use sless_core::Digest;

use crate::{Exit, Failed};

/// How often it is tried.
const TRIES: u32 = 5;
/// Before the second try; twice as long before each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// Without a byte for so long the store is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);
/// No upload is larger: the API's own limit is below.
const MOST_BYTES: u64 = 4 << 30;

enum Trouble {
    /// May pass.
    Passing(String),
    Final(Failed),
}

/// The zip in a file that has no name, at its beginning. What came has the SHA-256 `expected`.
///
/// # Errors
/// [`Exit::Again`] if the store can't be reached, [`Exit::Author`] if it has no such zip.
pub async fn fetch(url: &str, expected: &Digest) -> Result<File, Failed> {
    let uri: Uri =
        url.parse().map_err(|e| Failed::new(Exit::Settings, format!("CODE_URL is no URL: {e}")))?;
    let mut pause = PAUSE;
    for attempt in 1.. {
        match once(&uri, expected).await {
            Ok(file) => return Ok(file),
            Err(Trouble::Final(failed)) => return Err(failed),
            Err(Trouble::Passing(message)) if attempt == TRIES => {
                return Err(Failed::new(Exit::Again, format!("fetch the code: {message}")));
            }
            Err(Trouble::Passing(_)) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
    Err(Failed::new(Exit::Again, "fetch the code"))
}

async fn once(uri: &Uri, expected: &Digest) -> Result<File, Trouble> {
    let passing = |e: &dyn std::error::Error| Trouble::Passing(Failed::of(Exit::Again, e).message);
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(Duration::from_secs(10)));
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_webpki_roots()
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(https);
    let response = tokio::time::timeout(SILENCE, client.get(uri.clone())).await;
    let response = response.map_err(|e| passing(&e))?.map_err(|e| passing(&e))?;
    let status = response.status();
    if status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS {
        return Err(Trouble::Passing(format!("the store answered {status}")));
    }
    if status == http::StatusCode::NOT_FOUND {
        let text = "the code is not in the store any more: upload it again";
        return Err(Trouble::Final(Failed::new(Exit::Author, text)));
    }
    if !status.is_success() {
        // The presigned URL's time is over, or a clock is wrong: the next build has another one.
        return Err(Trouble::Final(Failed::new(Exit::Again, format!("the store answered {status}"))));
    }
    let mut file = tempfile::tempfile().map_err(|e| passing(&e))?;
    let (mut body, mut hash, mut size) = (response.into_body(), Sha256::new(), 0_u64);
    while let Some(frame) = tokio::time::timeout(SILENCE, body.frame()).await.map_err(|e| passing(&e))? {
        let Ok(bytes) = frame.map_err(|e| passing(&e))?.into_data() else { continue };
        size += bytes.len() as u64;
        if size > MOST_BYTES {
            let text = format!("the zip has more than {MOST_BYTES} bytes");
            return Err(Trouble::Final(Failed::new(Exit::Author, text)));
        }
        hash.update(&bytes);
        file.write_all(&bytes).map_err(|e| passing(&e))?;
    }
    let got = Digest::new(hash.finalize().into());
    if got != *expected {
        let text = format!("what lies at source.key has SHA-256 {got}, and source.sha256 says {expected}");
        return Err(Trouble::Final(Failed::new(Exit::Author, text)));
    }
    file.rewind().map_err(|e| passing(&e))?;
    Ok(file)
}
