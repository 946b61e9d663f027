//! `sless replay`, `sless cancel`: what can be done about a call.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::args::{Format, Target, invocation_id, label};
use crate::client::Client;
use crate::error::CliError;
use crate::print::{self, cell};

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
