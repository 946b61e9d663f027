//! Calls a function through the API, trigger or not.

use std::fs;
use std::io::{self, Read};
use std::process::ExitCode;

use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::args::{Format, Invoke};
use crate::client::Client;
use crate::error::CliError;
use crate::print;

pub(crate) async fn run(what: &Invoke, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let body = body(what.data.as_deref())?;
    let slash = if what.path.starts_with('/') { "" } else { "/" };
    let path = client.path(&format!("functions/{}/invoke{slash}{}", what.name, what.path));
    let kind = what.content_type.as_deref().unwrap_or("application/json");
    let headers: &[_] = if what.data.is_some() { &[(header::CONTENT_TYPE, kind)] } else { &[] };
    let mut answer = client.send(Method::POST, &path, headers, body).await?;
    let status = answer.status();
    let head = answer.headers().clone();
    let text = |name: &str| head.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let Some(id) = text("x-sless-invocation-id") else {
        // The host's own answer: the function was not called.
        client.take(answer).await?;
        return Err(CliError::Host(format!(
            "{} answered {status} without having called {}",
            path, what.name
        )));
    };
    if output == Format::Json {
        let body = answer.into_body().collect().await.map_err(|e| client.broken(&e))?.to_bytes();
        print::json(&json!({
            "invocation_id": id,
            "status": text("x-sless-status"),
            "http_status": status.as_u16(),
            "headers": headers_of(&head),
            "body": of_body(&body),
        }))?;
    } else {
        // As it comes: a streamed answer is shown while it is made.
        while let Some(frame) = answer.frame().await {
            if let Some(data) = frame.map_err(|e| client.broken(&e))?.data_ref() {
                print::raw(data)?;
            }
        }
    }
    if status.is_success() || status.is_redirection() {
        return Ok(ExitCode::SUCCESS);
    }
    let how = text("x-sless-status").unwrap_or_else(|| "failed".to_owned());
    // What was refused before it began has no record to look at.
    let hint = if how == "rejected" {
        String::new()
    } else {
        format!("; see: sless logs {} --invocation {id}", what.name)
    };
    Err(CliError::Function(format!("{status}, {how}{hint}")))
}

fn body(data: Option<&str>) -> Result<Vec<u8>, CliError> {
    match data {
        None => Ok(Vec::new()),
        Some("@-") => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(CliError::file("read", "standard input"))?;
            Ok(bytes)
        }
        Some(data) => match data.strip_prefix('@') {
            Some(file) => fs::read(file).map_err(CliError::file("read", file)),
            None => Ok(data.as_bytes().to_vec()),
        },
    }
}

fn headers_of(head: &HeaderMap) -> Vec<Value> {
    head.iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect()
}

/// JSON as JSON, other text as a string; what is neither is not shown.
fn of_body(body: &[u8]) -> Value {
    let as_text = || String::from_utf8(body.to_vec()).map_or(Value::Null, Value::String);
    serde_json::from_slice(body).unwrap_or_else(|_| as_text())
}
