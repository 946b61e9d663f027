//! The second step: layers of what the first one has made, on top of the runtime's image, pushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Parser};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sless_image::{Added, Layer, Registry, RegistryError, pack};

use crate::{DEPENDENCIES, Dependencies, Exit, FUNCTION, FUNCTION_DIR, Failed, PLAN, Plan, known};

/// A plan has a few hundred bytes.
const PLAN_BYTES: u64 = 64 << 10;

/// How the registry is reached.
#[derive(Debug, Args)]
pub struct Access {
    /// Speak HTTP with the registry
    #[arg(long, env, default_value_t = false, action = clap::ArgAction::Set)]
    pub registry_insecure: bool,
    /// As Docker keeps it, with `auths`; may be missing
    #[arg(long, env, default_value = "/var/run/sless/registry/config.json")]
    pub registry_config: PathBuf,
}

/// What is packed, on what, and where it goes: all from the environment.
#[derive(Debug, Parser)]
#[command(
    name = "sless-pack",
    version,
    about = "Appends a built function to its runtime's image, and pushes that; `sless-pack remove` removes tags"
)]
pub struct Pack {
    /// The runtime's image
    #[arg(long, env)]
    pub base: String,
    /// What is pushed: REGISTRY/REPOSITORY:TAG
    #[arg(long, env)]
    pub target: String,
    /// JSON list of the dependencies that the registry has
    #[arg(long, env, default_value = "")]
    pub known_dependencies: String,
    #[command(flatten)]
    pub access: Access,
    /// The folder that the steps share
    #[arg(long, env, default_value = "/work")]
    pub work: PathBuf,
    /// For layers on their way
    #[arg(long, env, default_value = "/tmp")]
    pub temp: PathBuf,
    /// A layer may unpack to so many bytes
    #[arg(long, env, default_value_t = 2 << 30)]
    pub most_layer_bytes: u64,
    #[arg(long, env, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// Which tags go. A parser of its own, as variables do not count for clap when it looks which of two groups was given.
#[derive(Debug, Parser)]
#[command(
    name = "sless-pack remove",
    version,
    about = "Removes tags of a repository; gone already is success"
)]
pub struct Remove {
    /// REGISTRY/REPOSITORY
    pub repository: String,
    /// All, if none is named
    pub tags: Vec<String>,
    #[command(flatten)]
    pub access: Access,
    #[arg(long, env, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// What has been pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Packed {
    /// `sha256:…` of the image's manifest.
    pub digest: String,
    pub content_sha256: String,
    pub dependencies: Option<Dependencies>,
}

/// Packs and pushes.
///
/// # Errors
/// [`Failed`], with a message for the author.
pub async fn run(settings: &Pack) -> Result<Packed, Failed> {
    let known = known(&settings.known_dependencies)
        .map_err(|e| Failed::new(Exit::Settings, format!("KNOWN_DEPENDENCIES: {e}")))?;
    let registry = registry(&settings.access, &settings.target)?;
    let plan = plan(&settings.work.join(PLAN))?;
    let mut added = Vec::new();
    let mut dependencies = None;
    if let Some(key) = &plan.dependencies {
        let one = match known.into_iter().find(|one| one.key == *key) {
            Some(one) => {
                say(&format!("the layer of dependencies is {}", one.digest));
                added.push(Added {
                    layer: Layer { digest: one.digest.clone(), diff_id: one.diff_id.clone(), size: one.size },
                    file: None,
                    from: Some(one.repository.clone()),
                    made_by: "sless: dependencies".to_owned(),
                });
                one
            }
            None => {
                let new = layer(settings, DEPENDENCIES, "sless: dependencies").await?;
                let Layer { digest, diff_id, size } = new.layer.clone();
                added.push(new);
                let repository = sless_image::repository(&settings.target).map_err(|e| of(&e))?;
                Dependencies { key: key.clone(), repository, digest, diff_id, size }
            }
        };
        dependencies = Some(one);
    }
    added.push(layer(settings, FUNCTION, "sless: code").await?);
    let pushed = registry.append(&settings.base, &settings.target, &added).await.map_err(|e| of(&e))?;
    say(&format!("pushed {} ({}), {} new layers", settings.target, pushed.digest, pushed.sent));
    Ok(Packed { digest: pushed.digest, content_sha256: plan.content_sha256, dependencies })
}

/// Removes tags.
///
/// # Errors
/// [`Failed`]; may be tried again.
pub async fn remove(settings: &Remove) -> Result<serde_json::Value, Failed> {
    let registry = registry(&settings.access, &settings.repository)?;
    let removed = registry.remove(&settings.repository, &settings.tags).await.map_err(|e| of(&e))?;
    say(&format!("removed {removed} images of {}", settings.repository));
    Ok(json!({ "removed": removed }))
}

fn of(error: &RegistryError) -> Failed {
    let exit = match error {
        RegistryError::Gone { .. } => Exit::Forgotten,
        RegistryError::Name { .. } => Exit::Settings,
        _ => Exit::Again,
    };
    Failed::of(exit, error)
}

/// The first step's words, of which only names come out.
fn plan(path: &Path) -> Result<Plan, Failed> {
    let bad = |e: &dyn std::error::Error| Failed::of(Exit::Author, e);
    let mut text = Vec::new();
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_CLOEXEC;
    let file = nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()).map_err(|e| bad(&e))?;
    File::from(file).take(PLAN_BYTES).read_to_end(&mut text).map_err(|e| bad(&e))?;
    serde_json::from_slice(&text).map_err(|e| bad(&e))
}

async fn layer(settings: &Pack, name: &'static str, made_by: &str) -> Result<Added, Failed> {
    let (root, most) = (settings.work.join(name), settings.most_layer_bytes);
    let file = settings.temp.join(format!("{name}.tar.zst"));
    let path = file.clone();
    let packing = move || -> Result<Layer, Failed> {
        let out = File::create(&path).map_err(|e| Failed::of(Exit::Again, &e))?;
        pack(&root, Path::new(FUNCTION_DIR), most, BufWriter::new(out))
            .map_err(|e| Failed::of(Exit::Author, &e))
    };
    let packed = tokio::task::spawn_blocking(packing).await;
    let layer = packed.map_err(|e| Failed::of(Exit::Again, &e))??;
    Ok(Added { layer, file: Some(file), from: None, made_by: made_by.to_owned() })
}

/// <https://docs.docker.com/reference/cli/docker/login/#credential-stores>: what `docker login` writes without a helper.
#[derive(Debug, Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Debug, Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

fn registry(access: &Access, image: &str) -> Result<Registry, Failed> {
    let settings = |text: String| Failed::new(Exit::Settings, text);
    let file = access.registry_config.display();
    let login = match fs::read(&access.registry_config) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(settings(format!("read {file}: {e}"))),
        Ok(text) => {
            let config: DockerConfig =
                serde_json::from_slice(&text).map_err(|e| settings(format!("{file}: {e}")))?;
            let host = image.split('/').next().unwrap_or_default();
            let found = config.auths.into_iter().find(|(name, _)| host_of(name) == host);
            found.map(|(_, auth)| login(auth)).transpose().map_err(|e| settings(format!("{file}: {e}")))?
        }
    };
    Ok(Registry::new(access.registry_insecure, login))
}

fn host_of(name: &str) -> &str {
    let rest = name.split_once("://").map_or(name, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn login(auth: DockerAuth) -> Result<(String, String), &'static str> {
    if let DockerAuth { username: Some(user), password: Some(password), .. } = auth {
        return Ok((user, password));
    }
    let odd = "an entry has neither username and password nor auth in base64";
    let text = STANDARD.decode(auth.auth.ok_or(odd)?).map_err(|_| odd)?;
    let text = String::from_utf8(text).map_err(|_| odd)?;
    let (user, password) = text.split_once(':').ok_or(odd)?;
    Ok((user.to_owned(), password.to_owned()))
}

/// A line as those of the first step.
fn say(text: &str) {
    let time = DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true);
    println!("{}", json!({ "time": time, "stream": "stdout", "text": text }));
}
