//! The commands that only ask.

use std::process::ExitCode;
use std::time::Duration;

use http::{Method, header};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::args::{Delete, Format, Invocations, Logs, Target};
use crate::client::Client;
use crate::error::CliError;
use crate::print;

/// Longer than any call may still run is not waited for: the host goes on without us.
const DELETE_WITHIN: Duration = Duration::from_secs(120);

pub(crate) async fn list(target: &Target, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(target)?;
    let items = client.list(&client.path("functions"), usize::MAX).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |item: &Value| {
        let short: String = print::cell(item, "revision").chars().take(12).collect();
        vec![
            print::cell(item, "name"),
            print::cell(item, "runtime"),
            print::cell(item, "phase"),
            short,
            print::cell(item, "url"),
        ]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    print::table(&["NAME", "RUNTIME", "PHASE", "REVISION", "URL"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn invocations(what: &Invocations, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let mut path = client.path(&format!("functions/{}/invocations", what.name));
    let filters = [
        ("status", &what.status),
        ("trigger", &what.trigger),
        ("since", &what.since),
        ("until", &what.until),
    ];
    for (name, value) in filters.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        let mark = if path.contains('?') { '&' } else { '?' };
        path.push_str(&format!("{mark}{name}={value}"));
    }
    let items = client.list(&path, usize::try_from(what.limit).unwrap_or(usize::MAX)).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |item: &Value| {
        let duration = item
            .get("duration_ms")
            .and_then(Value::as_f64)
            .map_or("-".to_owned(), |ms| format!("{ms:.2} ms"));
        let cell = |field| print::cell(item, field);
        vec![cell("id"), cell("status"), cell("http_status"), cell("trigger"), cell("started_at"), duration]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    print::table(&["ID", "STATUS", "HTTP", "TRIGGER", "STARTED", "DURATION"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn logs(what: &Logs, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let mut path = match &what.invocation {
        Some(id) => client.path(&format!("invocations/{id}/logs")),
        None => client.path(&format!("functions/{}/logs", what.name)),
    };
    if let Some(tail) = what.tail {
        path.push_str(&format!("?tail={tail}"));
    }
    print_log(&client, &path, what.follow, output).await
}

/// A log as it is, or with each line that comes until the host ends it.
pub(crate) async fn print_log(
    client: &Client,
    path: &str,
    follow: bool,
    output: Format,
) -> Result<ExitCode, CliError> {
    if follow {
        let mark = if path.contains('?') { '&' } else { '?' };
        let each = |item: &Value| match output {
            // A line an item: a list would never be whole.
            Format::Json => print::line(&item.to_string()),
            Format::Text => print::line(item.get("text").and_then(Value::as_str).unwrap_or_default()),
        };
        client.follow(&format!("{path}{mark}follow=true"), each).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let kind = if output == Format::Json { "application/json" } else { "text/plain" };
    let answer = client.send(Method::GET, path, &[(header::ACCEPT, kind)], "").await?;
    print::raw(&client.take(answer).await?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn delete(what: &Delete, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let function = client.path(&format!("functions/{}", what.name));
    let trigger = client.path(&format!("triggers/{}", what.name));
    let name = what.name.to_string();
    let ours = |t: &Value| t.get("function") == Some(&json!(name)) && t.get("type") == Some(&json!("http"));
    client.json(Method::DELETE, &function, None).await?;
    if client.find(&trigger).await?.is_some_and(|found| ours(&found)) {
        client.json(Method::DELETE, &trigger, None).await?;
    }
    let began = Instant::now();
    while client.find(&function).await?.is_some() {
        if began.elapsed() > DELETE_WITHIN {
            return Err(CliError::Host(format!(
                "{name} is still there after {DELETE_WITHIN:?}; its calls may be running"
            )));
        }
        sleep(Duration::from_millis(50)).await;
    }
    match output {
        Format::Json => print::json(&json!({"name": name, "deleted": true}))?,
        Format::Text => print::line(&format!("{name} is deleted"))?,
    }
    Ok(ExitCode::SUCCESS)
}
