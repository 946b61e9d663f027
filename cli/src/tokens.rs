//! `sless token create|list|delete`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Map, Value, json};

use crate::args::{Format, One, Target, label};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Makes a token of a namespace and prints it, this once
    Create(Create),
    /// Lists the tokens, without what they are
    List(Target),
    /// Removes a token: it is refused from then on
    Delete(One),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Reads all but tokens
    Viewer,
    /// Also calls functions
    Invoker,
    /// Also changes all but tokens
    Deployer,
    /// Everything in its namespace
    Admin,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[arg(value_parser = label)]
    pub(crate) name: String,
    #[arg(long, value_enum)]
    pub(crate) role: Role,
    /// How long it is valid, in seconds [default: until it is deleted]
    #[arg(long)]
    pub(crate) expires_in_sec: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) async fn run(what: Token, output: Format) -> Result<ExitCode, CliError> {
    match what {
        Token::Create(what) => create(&what, output).await,
        Token::List(target) => list(&target, output).await,
        Token::Delete(what) => delete(&what, output).await,
    }
}

async fn create(what: &Create, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let role = what.role.to_possible_value().map(|value| value.get_name().to_owned());
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(what.name));
    body.insert("role".to_owned(), json!(role));
    if let Some(seconds) = what.expires_in_sec {
        body.insert("expires_in_sec".to_owned(), json!(seconds));
    }
    let made = client.json(Method::POST, &client.path("tokens"), Some(&Value::Object(body))).await?;
    match (output, made.get("token").and_then(Value::as_str)) {
        (Format::Json, _) => print::json(&made)?,
        // Alone on standard output, so that it can be piped into a file.
        (Format::Text, Some(token)) => print::line(token)?,
        (Format::Text, None) => {
            return Err(CliError::Host("the host made a token and did not say what it is".to_owned()));
        }
    }
    if output == Format::Text {
        print::progress("keep it now: it is not shown again");
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(target: &Target, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(target)?;
    let items = client.list(&client.path("tokens"), usize::MAX).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row =
        |item: &Value| ["name", "role", "created_at", "expires_at"].map(|field| cell(item, field)).to_vec();
    print::table(&["NAME", "ROLE", "CREATED", "EXPIRES"], &items.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(what: &One, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    client.json(Method::DELETE, &client.path(&format!("tokens/{}", what.name)), None).await?;
    match output {
        Format::Json => print::json(&json!({"name": what.name, "deleted": true}))?,
        Format::Text => print::line(&format!("{} is deleted, and refused from now on", what.name))?,
    }
    Ok(ExitCode::SUCCESS)
}
