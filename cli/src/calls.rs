//! `sless invocation`, `sless replay`, `sless cancel`: one call, and what can be done about it.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::args::{Format, Target, invocation_id, label};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct Invocation {
    /// The call, as `sless invocations` lists it
    #[arg(value_parser = invocation_id)]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The call, as `sless invocations` lists it
    #[arg(value_parser = invocation_id)]
    pub(crate) id: String,
    /// On this revision [default: the one that answers now]
    #[arg(long, value_parser = label)]
    pub(crate) revision: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The call, as `sless invocations` lists it
    #[arg(value_parser = invocation_id)]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) async fn invocation(what: &Invocation, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let call = client.get(&client.path(&format!("invocations/{}", what.id))).await?;
    match output {
        Format::Json => print::json(&call)?,
        Format::Text => print::raw(text(&call).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(call: &Value) -> String {
    let of = |field: &str| cell(call, field);
    let unit = |field: &str, unit: &str| match call.get(field).and_then(Value::as_f64) {
        Some(number) => format!("{number} {unit}"),
        None => "-".to_owned(),
    };
    let mut lines = vec![
        format!("{}  {}", of("id"), of("status")),
        format!("function   {}, revision {}", of("function"), of("revision")),
        format!("trigger    {}, attempt {}", of("trigger"), of("attempt")),
        format!("started    {}", of("started_at")),
        format!("took       {}, after {} in the queue", unit("duration_ms", "ms"), unit("queue_ms", "ms")),
        format!(
            "used       {} of CPU, {} of memory at most",
            unit("cpu_ms", "ms"),
            unit("max_rss_bytes", "bytes")
        ),
        format!("answered   {}", of("http_status")),
        format!("logged     {}", unit("log_bytes", "bytes")),
    ];
    if of("replay_of") != "-" {
        lines.push(format!("replay of  {}", of("replay_of")));
    }
    if let Some(request) = call.get("request").filter(|request| request.is_object()) {
        let query = cell(request, "raw_query");
        let mark = if query.is_empty() || query == "-" { String::new() } else { format!("?{query}") };
        lines.push(format!("request    {} {}{mark}", cell(request, "method"), cell(request, "path")));
        lines.extend(kept(request));
    }
    if let Some(result) = call.get("result").filter(|result| result.is_object()) {
        lines.push("result".to_owned());
        lines.extend(kept(result));
    }
    if let Some(error) = call.get("error").filter(|error| error.is_object()) {
        lines.push(format!("error      {}: {}", cell(error, "type"), cell(error, "message")));
        let traceback = error.get("traceback").and_then(Value::as_str).unwrap_or_default();
        lines.extend(traceback.lines().map(|line| format!("  {line}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The body that was kept of a request or a result.
fn kept(part: &Value) -> Vec<String> {
    let body = match (part.get("text").and_then(Value::as_str), part.get("base64").and_then(Value::as_str)) {
        (Some(text), _) => text.to_owned(),
        (None, Some(base64)) => format!("{base64} (base64)"),
        (None, None) => return Vec::new(),
    };
    let cut = part.get("truncated").and_then(Value::as_bool) == Some(true);
    let mut lines: Vec<String> = body.lines().map(|line| format!("  {line}")).collect();
    if cut {
        lines.push(format!("  … cut; it had {} bytes", cell(part, "size")));
    }
    lines
}

pub(crate) async fn replay(what: &Replay, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let body = what.revision.as_ref().map_or(json!({}), |revision| json!({"revision": revision}));
    let path = client.path(&format!("invocations/{}/replay", what.id));
    let begun = client.json(Method::POST, &path, Some(&body)).await?;
    match output {
        Format::Json => print::json(&begun)?,
        Format::Text => print::line(&cell(&begun, "invocation_id"))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn cancel(what: &Cancel, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let path = client.path(&format!("invocations/{}/cancel", what.id));
    let answer = client.json(Method::POST, &path, None).await?;
    match output {
        Format::Json if answer == Value::Null => print::json(&json!({"id": what.id, "cancelled": true}))?,
        Format::Json => print::json(&answer)?,
        Format::Text => print::line(&format!("{} is being ended", what.id))?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_with_its_request_its_error_and_where_it_failed() {
        let call = json!({"id": "i", "status": "timeout", "function": "hello", "revision": "r1", "trigger": "http", "attempt": 1,
            "started_at": "T", "duration_ms": 1001.5, "queue_ms": 0.25, "cpu_ms": null, "max_rss_bytes": 4096, "http_status": 504,
            "log_bytes": 0, "replay_of": null, "result": null,
            "request": {"method": "POST", "path": "/a", "raw_query": "b=c", "text": "{}", "size": 9, "truncated": true},
            "error": {"type": "Timeout", "message": "too long", "traceback": "in deep\nin handle"}});
        let text = text(&call);
        for part in [
            "i  timeout\n",
            "took       1001.5 ms, after 0.25 ms in the queue\n",
            "used       - of CPU, 4096 bytes of memory at most\n",
            "request    POST /a?b=c\n  {}\n  … cut; it had 9 bytes\n",
            "error      Timeout: too long\n  in deep\n  in handle\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
