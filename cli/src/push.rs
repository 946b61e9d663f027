//! Code for a `Function` that is applied to a cluster by other means.

use std::process::ExitCode;

use http::{Method, header};
use serde_json::Value;

use crate::args::{Format, Push};
use crate::client::{Client, encode};
use crate::deploy::{name_of, runtime_of};
use crate::error::CliError;
use crate::pack::pack;
use crate::print;

pub(crate) async fn run(what: &Push, output: Format) -> Result<ExitCode, CliError> {
    if !what.dir.is_dir() {
        let dir = what.dir.display();
        return Err(CliError::Refused(format!("{dir} is no folder; name the one that holds the handler")));
    }
    let client = Client::new(&what.target)?;
    let name = match &what.name {
        Some(name) => name.clone(),
        None => name_of(&what.dir)?,
    };
    let entrypoint = what.entrypoint.clone().unwrap_or_default();
    let runtime = match &what.runtime {
        Some(runtime) => runtime.clone(),
        None => runtime_of(&what.dir, &entrypoint)?,
    };
    let packed = pack(&what.dir)?;
    if output == Format::Text {
        print::progress(&format!("packed {} files, {} bytes", packed.files, packed.zip.len()));
    }
    let query =
        format!("runtime={}&entrypoint={}", encode(runtime.as_str()), encode(&entrypoint.to_string()));
    let path = client.path(&format!("functions/{name}/code?{query}"));
    let kind = [(header::CONTENT_TYPE, "application/zip")];
    let answer = client.take(client.send(Method::POST, &path, &kind, packed.zip).await?).await?;
    let source: Value = serde_json::from_slice(&answer)
        .map_err(|e| CliError::Host(format!("the code was not answered for in JSON: {e}")))?;
    match output {
        Format::Json => print::json(&source)?,
        Format::Text => {
            let of = |field: &str| print::cell(&source, field);
            // Hashes and names need no quotes in YAML, but for a hash that is all digits.
            print::line("source:")?;
            print::line(&format!("  key: {}", of("key")))?;
            print::line(&format!("  sha256: \"{}\"", of("sha256")))?;
            print::line(&format!("  contentSha256: \"{}\"", of("content_sha256")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
