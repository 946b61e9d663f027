//! `sless revisions`, `sless rollback`.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use sless_core::FunctionName;

use crate::args::{Format, Named, Target, label};
use crate::client::Client;
use crate::deploy;
use crate::error::CliError;
use crate::print::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct Rollback {
    pub(crate) name: FunctionName,
    /// A revision as `sless revisions` lists it [default: the one before that which answers]
    #[arg(value_parser = label)]
    pub(crate) revision: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) async fn list(what: &Named, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let items = client.list(&client.path(&format!("functions/{}/revisions", what.name)), usize::MAX).await?;
    if output == Format::Json {
        print::json(&Value::Array(items))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |item: &Value| {
        let code: String = cell(item, "code_sha256").chars().take(12).collect();
        let active = if is_active(item) { "active" } else { "" };
        vec![cell(item, "revision"), cell(item, "created_at"), code, active.to_owned()]
    };
    print::table(&["REVISION", "CREATED", "CODE", ""], &items.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn rollback(what: &Rollback, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let path = client.path(&format!("functions/{}", what.name));
    let revision = match &what.revision {
        Some(revision) => revision.clone(),
        None => {
            let items = client.list(&format!("{path}/revisions"), usize::MAX).await?;
            before(&items).ok_or_else(|| {
                CliError::Refused(format!("{} has no revision before the one that answers", what.name))
            })?
        }
    };
    client.json(Method::POST, &format!("{path}/rollback"), Some(&json!({"revision": revision}))).await?;
    let at = |function: &Value| function.get("revision").and_then(Value::as_str) == Some(&revision);
    let function = deploy::wait(&client, &path, at, output).await?;
    match output {
        Format::Json => print::json(&function)?,
        Format::Text => print::line(&format!("{} is back at {revision}", what.name))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn is_active(item: &Value) -> bool {
    item.get("active").and_then(Value::as_bool) == Some(true)
}

/// Of a list that is newest first, the one made before the active one.
fn before(items: &[Value]) -> Option<String> {
    let active = items.iter().position(is_active)?;
    items.get(active + 1).map(|item| cell(item, "revision"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_name_it_goes_back_by_one_and_never_forward() {
        let list = |active: usize| -> Vec<Value> {
            let names = ["c", "b", "a"].into_iter().enumerate();
            names.map(|(n, name)| json!({"revision": name, "active": n == active})).collect()
        };
        assert_eq!(before(&list(0)).as_deref(), Some("b"));
        assert_eq!(before(&list(1)).as_deref(), Some("a"));
        assert_eq!((before(&list(2)), before(&list(9))), (None, None));
    }
}
