//! `sless trigger list|create|enable|disable|delete`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use sless_core::FunctionName;

use crate::args::{Format, One, Target, label};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Subcommand)]
pub(crate) enum Trigger {
    /// Lists the triggers, the newest first
    List(Target),
    /// Makes an HTTP trigger: from then on anybody may call the function
    Create(Create),
    /// Lets a trigger work again
    Enable(One),
    /// Stops a trigger in its place
    Disable(One),
    /// Removes a trigger
    Delete(One),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// The function that it is of
    #[arg(long)]
    pub(crate) function: FunctionName,
    /// A method that is let through, others are answered with 405; may be given again [default: all]
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Vec<String>,
    /// An origin whose pages may call it from browsers, or *; may be given again
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) async fn run(what: Trigger, output: Format) -> Result<ExitCode, CliError> {
    match what {
        Trigger::List(target) => list(&target, output).await,
        Trigger::Create(what) => create(&what, output).await,
        Trigger::Enable(what) => switch(&what, true, output).await,
        Trigger::Disable(what) => switch(&what, false, output).await,
        Trigger::Delete(what) => delete(&what, output).await,
    }
}

async fn list(target: &Target, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(target)?;
    let items = client.list(&client.path("triggers"), usize::MAX).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |item: &Value| {
        ["name", "type", "function", "enabled", "active", "url"].map(|field| cell(item, field)).to_vec()
    };
    let head = ["NAME", "TYPE", "FUNCTION", "ENABLED", "ACTIVE", "URL"];
    print::table(&head, &items.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

async fn create(what: &Create, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let mut body = json!({"name": what.name, "type": "http", "function": what.function});
    if let Some(fields) = body.as_object_mut() {
        if !what.method.is_empty() {
            fields.insert("methods".to_owned(), json!(what.method));
        }
        if !what.cors_origin.is_empty() {
            fields.insert("cors".to_owned(), json!({"origins": what.cors_origin}));
        }
    }
    let made = client.json(Method::POST, &client.path("triggers"), Some(&body)).await?;
    match output {
        Format::Json => print::json(&made)?,
        Format::Text => print::line(&cell(&made, "url"))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn switch(what: &One, on: bool, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let path = client.path(&format!("triggers/{}", what.name));
    let now = client.json(Method::PATCH, &path, Some(&json!({"enabled": on}))).await?;
    let word = if on { "enabled" } else { "disabled" };
    match output {
        Format::Json => print::json(&now)?,
        Format::Text => print::line(&format!("{} is {word}", what.name))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(what: &One, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    client.json(Method::DELETE, &client.path(&format!("triggers/{}", what.name)), None).await?;
    match output {
        Format::Json => print::json(&json!({"name": what.name, "deleted": true}))?,
        Format::Text => print::line(&format!("{} is deleted", what.name))?,
    }
    Ok(ExitCode::SUCCESS)
}
