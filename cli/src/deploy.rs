//! From a folder to a function that answers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use http::{Method, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use sless_core::{Entrypoint, FunctionName, Runtime};
use tokio::time::{Instant, sleep};

use crate::args::{Deploy, Format};
use crate::client::Client;
use crate::error::CliError;
use crate::pack::{Packed, pack};
use crate::print;

/// Runtimes by the handler's file, in the order in which they are looked for.
const RUNTIMES: [(&str, &str); 4] =
    [(".py", "python3.11"), (".js", "nodejs20"), (".mjs", "nodejs20"), (".cjs", "nodejs20")];
/// A host that is ready with other code for so long will not come to ours.
const REPLACED: Duration = Duration::from_secs(2);
/// For a start beside build and init, which have limits of their own.
const MARGIN: Duration = Duration::from_secs(60);

pub(crate) async fn run(what: Deploy, output: Format) -> Result<ExitCode, CliError> {
    let client = Client::new(&what.target)?;
    let (name, ready) = deploy(&client, &what, output).await?;
    match output {
        Format::Json => {
            print::json(&client.get(&client.path(&format!("functions/{name}"))).await?)?;
        }
        Format::Text if what.no_trigger => print::line(&format!("{name} is ready: sless invoke {name}"))?,
        Format::Text => print::line(&print::cell(&ready, "url"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Its name, and the function as it is once it answers.
pub(crate) async fn deploy(
    client: &Client,
    what: &Deploy,
    output: Format,
) -> Result<(FunctionName, Value), CliError> {
    if !what.dir.is_dir() {
        return Err(CliError::Refused(format!(
            "{} is no folder; name the one that holds the handler",
            what.dir.display()
        )));
    }
    let name = match &what.name {
        Some(name) => name.clone(),
        None => name_of(&what.dir)?,
    };
    let say = |text: String| {
        if output == Format::Text {
            print::progress(&text);
        }
    };
    let path = client.path(&format!("functions/{name}"));
    let before = client.find(&path).await?;
    let known = |field: &str| before.as_ref()?.get(field)?.as_str().map(str::to_owned);
    let known_entrypoint = known("entrypoint").and_then(|text| text.parse().ok());
    let entrypoint = what.entrypoint.clone().or(known_entrypoint).unwrap_or_default();
    let runtime = match &what.runtime {
        Some(runtime) => runtime.clone(),
        None => runtime_of(&what.dir, &entrypoint)?,
    };
    let packed = pack(&what.dir)?;
    say(format!("packed {} files, {} bytes", packed.files, packed.zip.len()));
    put(client, what, &name, &runtime, known("runtime")).await?;
    let code = upload(client, &path, packed).await?;
    say(format!("uploaded to {name}"));
    let uploaded = |function: &Value| function.get("code_sha256").and_then(Value::as_str) == Some(&code);
    let ready = wait(client, &path, uploaded, output).await?;
    if !what.no_trigger {
        trigger(client, &name).await?;
    }
    Ok((name, ready))
}

/// The folder's name as a DNS label.
pub(crate) fn name_of(dir: &Path) -> Result<FunctionName, CliError> {
    let full = dir.canonicalize().map_err(CliError::file("find", dir))?;
    let name = full.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let label: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    label.trim_matches('-').parse().map_err(|_| {
        CliError::Refused(format!("no function can have the folder's name {name:?}; give one with --name"))
    })
}

pub(crate) fn runtime_of(dir: &Path, entrypoint: &Entrypoint) -> Result<Runtime, CliError> {
    let stem = entrypoint.file_stem();
    let mut found: Vec<(PathBuf, &str)> = RUNTIMES
        .iter()
        .map(|(end, runtime)| (dir.join(format!("{stem}{end}")), *runtime))
        .filter(|(file, _)| file.is_file())
        .collect();
    if dir.join(&stem).join("__init__.py").is_file() {
        found.push((dir.join(stem.as_str()).join("__init__.py"), "python3.11"));
    }
    found.dedup_by_key(|(_, runtime)| *runtime);
    match found.as_slice() {
        [(_, runtime)] => runtime.parse().map_err(|e| CliError::Refused(format!("{e}"))),
        [] => Err(CliError::Refused(format!(
            "{} holds no {stem}.py, {stem}.js, {stem}.mjs or {stem}.cjs; put the handler there, or name its file and function with --entrypoint",
            dir.display()
        ))),
        [(one, _), (other, _), ..] => Err(CliError::Refused(format!(
            "{} and {} are both there; say which with --runtime",
            one.display(),
            other.display()
        ))),
    }
}

/// Creates the function, or changes the settings that were given.
async fn put(
    client: &Client,
    what: &Deploy,
    name: &FunctionName,
    runtime: &Runtime,
    before: Option<String>,
) -> Result<(), CliError> {
    let mut settings = settings(what);
    match before {
        None => {
            settings.insert("name".into(), json!(name));
            settings.insert("runtime".into(), json!(runtime));
            client.json(Method::POST, &client.path("functions"), Some(&Value::Object(settings))).await?;
        }
        Some(before) if before != runtime.as_str() => {
            return Err(CliError::Refused(format!(
                "{name} is there with runtime {before}, and a runtime cannot be changed to {runtime}; delete it first, or give another --name"
            )));
        }
        Some(_) if settings.is_empty() => {}
        Some(_) => {
            let path = client.path(&format!("functions/{name}"));
            client.json(Method::PATCH, &path, Some(&Value::Object(settings))).await?;
        }
    }
    Ok(())
}

fn settings(what: &Deploy) -> Map<String, Value> {
    let mut settings = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings.insert(name.into(), value);
        }
    };
    set("entrypoint", what.entrypoint.as_ref().map(|e| json!(e)));
    set("timeout_sec", what.timeout_sec.map(|n| json!(n)));
    set("init_timeout_sec", what.init_timeout_sec.map(|n| json!(n)));
    set("build_timeout_sec", what.build_timeout_sec.map(|n| json!(n)));
    set("memory_mb", what.memory_mb.map(|n| json!(n)));
    set("workers", what.workers.map(|n| json!(n)));
    set("concurrency", what.concurrency.map(|n| json!(n)));
    let env: Map<_, _> = what.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    set("secrets", (!what.secret.is_empty()).then(|| json!(what.secret)));
    set("env", (!env.is_empty()).then_some(Value::Object(env)));
    settings
}

/// The SHA-256 of what was sent, as the host has it.
async fn upload(client: &Client, path: &str, packed: Packed) -> Result<String, CliError> {
    let code: String = Sha256::digest(&packed.zip).iter().map(|b| format!("{b:02x}")).collect();
    let kind = [(header::CONTENT_TYPE, "application/zip")];
    let answer = client.send(Method::POST, &format!("{path}/upload"), &kind, packed.zip).await?;
    let answer: Value = serde_json::from_slice(&client.take(answer).await?)
        .map_err(|e| CliError::Host(format!("the upload was not answered in JSON: {e}")))?;
    if answer.get("code_sha256").and_then(Value::as_str) == Some(&code) {
        return Ok(code);
    }
    Err(CliError::Host("the host did not take what was sent: the hashes differ".to_owned()))
}

/// Waits until the newest change answers, and that is the one that is meant.
pub(crate) async fn wait(
    client: &Client,
    path: &str,
    is_meant: impl Fn(&Value) -> bool,
    output: Format,
) -> Result<Value, CliError> {
    let began = Instant::now();
    let mut told = String::new();
    let mut other = None;
    loop {
        let function = client.get(path).await?;
        let phase = print::cell(&function, "phase");
        match phase.as_str() {
            "Ready" if is_meant(&function) => return Ok(function),
            "Failed" => {
                return Err(CliError::Function(format!(
                    "it does not answer: {}",
                    print::cell(&function, "message")
                )));
            }
            // What answers is something else, and nothing is on its way: somebody has deployed after us.
            "Ready" if other.get_or_insert_with(Instant::now).elapsed() > REPLACED => {
                return Err(CliError::Refused("another deploy has replaced it meanwhile".to_owned()));
            }
            "Ready" => {}
            "Terminating" => return Err(CliError::Refused("somebody has deleted it meanwhile".to_owned())),
            _ => {}
        }
        if phase != "Ready" {
            other = None;
        }
        if phase == "Building" && told != phase && output == Format::Text {
            print::progress("building …");
        }
        let limit = |field: &str| function.get(field).and_then(Value::as_f64).unwrap_or_default();
        let limit = Duration::try_from_secs_f64(limit("build_timeout_sec") + limit("init_timeout_sec"))
            .unwrap_or_default();
        if began.elapsed() > limit.saturating_add(MARGIN) {
            return Err(CliError::Host(format!("it is still {phase} after {} s", began.elapsed().as_secs())));
        }
        told = phase;
        sleep(Duration::from_millis(if began.elapsed() < Duration::from_secs(2) { 20 } else { 200 })).await;
    }
}

/// Makes the function's HTTP trigger, unless it has one of its name.
async fn trigger(client: &Client, name: &FunctionName) -> Result<(), CliError> {
    let path = client.path(&format!("triggers/{name}"));
    match client.find(&path).await? {
        None => {
            let trigger = json!({"name": name, "type": "http", "function": name});
            client.json(Method::POST, &client.path("triggers"), Some(&trigger)).await?;
        }
        Some(found) if found.get("function") != Some(&json!(name)) => {
            return Err(CliError::Refused(format!(
                "the trigger {name} belongs to another function, {}; make one by hand, or give --no-trigger",
                print::cell(&found, "function")
            )));
        }
        Some(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn the_handlers_file_tells_the_runtime() {
        let of = |files: &[&str], entrypoint: &str| {
            runtime_of(folder(files).path(), &entrypoint.parse().unwrap())
                .map(|r| r.to_string())
                .map_err(|e| e.to_string())
        };
        assert_eq!(of(&["handler.py"], "handler.handle"), Ok("python3.11".into()));
        assert_eq!(of(&["handler/__init__.py"], "handler.handle"), Ok("python3.11".into()));
        assert_eq!(of(&["handler.mjs", "handler.cjs"], "handler.handle"), Ok("nodejs20".into()));
        assert_eq!(of(&["src/app.js"], "src/app.main"), Ok("nodejs20".into()));
        assert!(of(&["main.py"], "handler.handle").unwrap_err().contains("handler.py"));
        assert!(of(&["handler.py", "handler.js"], "handler.handle").unwrap_err().contains("--runtime"));
    }

    #[test]
    fn the_folders_name_becomes_a_label() {
        let parent = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let folder = parent.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            name_of(&folder).map(|name| name.to_string())
        };
        assert_eq!(of("Hello_World 2").unwrap(), "hello-world-2");
        assert!(of("___").unwrap_err().to_string().contains("--name"));
    }
}
