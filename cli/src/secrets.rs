//! `sless secret set|list|delete`. Values go in and never come out.

use std::fs;
use std::io::{self, Read};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use crate::args::{Format, One, Target, label, variable};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Makes a secret, or replaces all that is in it
    Set(Set),
    /// Lists the secrets and their keys
    List(Target),
    /// Removes a secret that no function names
    Delete(One),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// KEY=VALUE, KEY=@FILE, or KEY=@- for standard input, which others on this machine can't see; files are taken as they are
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = variable)]
    pub(crate) data: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) async fn run(what: Secret, output: Format) -> Result<ExitCode, CliError> {
    match what {
        Secret::Set(what) => set(what, output).await,
        Secret::List(target) => list(&target, output).await,
        Secret::Delete(what) => delete(&what, output).await,
    }
}

async fn set(what: Set, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let mut data = Map::new();
    for (key, value) in what.data {
        data.insert(key, Value::String(read(value)?));
    }
    let path = client.path(&format!("secrets/{}", what.name));
    let secret = client.json(Method::PUT, &path, Some(&json!({"data": data}))).await?;
    match output {
        Format::Json => print::json(&secret)?,
        Format::Text => {
            print::line(&format!("{} is kept; name it with `sless deploy --secret {0}`", what.name))?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(value: String) -> Result<String, CliError> {
    let bytes = match value.strip_prefix('@') {
        None => return Ok(value),
        Some("-") => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(CliError::file("read", "standard input"))?;
            bytes
        }
        Some(file) => fs::read(file).map_err(CliError::file("read", file))?,
    };
    String::from_utf8(bytes)
        .map_err(|_| CliError::Refused(format!("{value}: this is not UTF-8, so no variable can hold it")))
}

async fn list(target: &Target, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(target)?;
    let items = client.list(&client.path("secrets"), usize::MAX).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |item: &Value| {
        let keys = item.get("keys").and_then(Value::as_array).into_iter().flatten();
        let keys: Vec<_> = keys.filter_map(Value::as_str).collect();
        vec![cell(item, "name"), keys.join(", "), cell(item, "updated_at")]
    };
    print::table(&["NAME", "KEYS", "UPDATED"], &items.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(what: &One, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    client.json(Method::DELETE, &client.path(&format!("secrets/{}", what.name)), None).await?;
    match output {
        Format::Json => print::json(&json!({"name": what.name, "deleted": true}))?,
        Format::Text => print::line(&format!("{} is deleted", what.name))?,
    }
    Ok(ExitCode::SUCCESS)
}
