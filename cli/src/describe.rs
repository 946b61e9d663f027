//! `sless describe`: how a function is, why it is not ready, what went wrong last.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::args::{Format, Named};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

/// What the rate is of.
const WINDOW: Duration = Duration::from_secs(15 * 60);
/// More calls than that in the window are not counted one by one.
const COUNTED: usize = 1000;
const ERRORS: usize = 5;
/// Statuses of calls that did not go well.
const BAD: [&str; 7] = ["error", "timeout", "crashed", "out_of_memory", "init_failed", "cancelled", "lost"];

pub(crate) async fn run(what: &Named, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let path = client.path(&format!("functions/{}", what.name));
    let function = client.get(&path).await?;
    let since = DateTime::<Utc>::from(SystemTime::now() - WINDOW).to_rfc3339_opts(SecondsFormat::Secs, true);
    let calls = client.list(&format!("{path}/invocations?since={since}"), COUNTED).await?;
    let errors = last_errors(&client, &path).await?;
    let build = client.find(&format!("{path}/build")).await?;
    if output == Format::Json {
        print::json(&json!({
            "function": function,
            "build": build,
            "calls": {"since": since, "count": calls.len(), "by_status": by_status(&calls)},
            "errors": errors,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print::raw(text(&function, build.as_ref(), &calls, &errors).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The newest calls that went wrong, whole.
async fn last_errors(client: &Client, path: &str) -> Result<Vec<Value>, CliError> {
    let mut found = Vec::new();
    for status in BAD {
        found.extend(client.list(&format!("{path}/invocations?status={status}"), ERRORS).await?);
    }
    found.sort_by_key(|call| std::cmp::Reverse(cell(call, "started_at")));
    let mut whole = Vec::new();
    for call in found.iter().take(ERRORS) {
        let path = client.path(&format!("invocations/{}", cell(call, "id")));
        // One that retention has taken meanwhile is no loss.
        whole.extend(client.find(&path).await?);
    }
    Ok(whole)
}

fn by_status(calls: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(cell(call, "status")).or_default() += 1;
    }
    counts
}

fn text(function: &Value, build: Option<&Value>, calls: &[Value], errors: &[Value]) -> String {
    let of = |field: &str| cell(function, field);
    let mut lines = vec![format!("{}  {}", of("name"), of("phase"))];
    if of("message") != "-" {
        lines.push(format!("why        {}", of("message")));
    }
    lines.push(format!("url        {}", of("url")));
    lines.push(format!("runtime    {}, {}", of("runtime"), of("entrypoint")));
    lines.push(format!("revision   {}", of("revision")));
    lines.push(format!(
        "limits     {} s a call, {} MiB, workers: {}, calls at once in each: {}",
        of("timeout_sec"),
        of("memory_mb"),
        of("workers"),
        of("concurrency")
    ));
    if let Some(env) = function.get("env").and_then(Value::as_object).filter(|env| !env.is_empty()) {
        // Without the values: they are often not for everybody who looks over a shoulder.
        lines.push(format!("variables  {}", env.keys().cloned().collect::<Vec<_>>().join(", ")));
    }
    for condition in function.get("conditions").and_then(Value::as_array).into_iter().flatten() {
        let part = |field: &str| cell(condition, field);
        let line = format!("{:<10} {} {} {}", part("type"), part("status"), part("reason"), part("message"));
        lines.push(line.trim_end().to_owned());
    }
    if let Some(build) = build {
        let line = format!("last build {} {}", cell(build, "phase"), cell(build, "finished_at"));
        lines.push(line);
    }
    lines.push(format!("calls      {}", rate(calls)));
    if !errors.is_empty() {
        lines.push("last errors".to_owned());
    }
    for call in errors {
        let error = call.get("error").unwrap_or(&Value::Null);
        let message = cell(error, "message");
        lines.push(format!(
            "  {}  {}  {}  {}: {}",
            cell(call, "started_at"),
            cell(call, "status"),
            cell(call, "id"),
            cell(error, "type"),
            message.lines().next().unwrap_or_default()
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn rate(calls: &[Value]) -> String {
    let minutes = WINDOW.as_secs() / 60;
    if calls.is_empty() {
        return format!("none in the last {minutes} min");
    }
    let more = if calls.len() >= COUNTED { "or more " } else { "" };
    let counts: Vec<_> = by_status(calls).iter().map(|(status, count)| format!("{count} {status}")).collect();
    // Newest first, so the middle is a median over the window only once they are in order.
    let mut took: Vec<f64> =
        calls.iter().filter_map(|call| call.get("duration_ms").and_then(Value::as_f64)).collect();
    took.sort_by(f64::total_cmp);
    let median = took.get(took.len() / 2).map_or(String::new(), |ms| format!("; median {ms:.2} ms"));
    format!("{} {more}in the last {minutes} min: {}{median}", calls.len(), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_does_not_load_is_told_with_its_reason_and_last_errors() {
        let function = json!({"name": "hello", "phase": "Failed", "message": "ImportError: no x", "url": "http://u",
            "runtime": "python3.11", "entrypoint": "handler.handle", "revision": "r1", "timeout_sec": 30.0, "memory_mb": 256,
            "workers": 1, "concurrency": 1, "env": {"KEY": "of nobody's business"},
            "conditions": [{"type": "Built", "status": "True", "reason": "Succeeded", "message": ""}]});
        let calls = [
            json!({"status": "success", "duration_ms": 3.0}),
            json!({"status": "error", "duration_ms": 1.0}),
            json!({"status": "success", "duration_ms": 2.0}),
        ];
        let errors = [
            json!({"started_at": "T", "status": "error", "id": "i", "error": {"type": "KeyError", "message": "'a'\nmore"}}),
        ];
        let text = text(&function, None, &calls, &errors);
        for part in [
            "hello  Failed\n",
            "why        ImportError: no x\n",
            "variables  KEY\n",
            "Built      True Succeeded\n",
            "3 in the last 15 min: 1 error, 2 success; median 2.00 ms\n",
            "  T  error  i  KeyError: 'a'\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("business"));
        assert_eq!(rate(&[]), "none in the last 15 min");
    }
}
