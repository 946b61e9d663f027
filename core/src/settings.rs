//! The settings of a function: one table of names, ranges and defaults, from which bodies are read and schemas are made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Entrypoint, FieldError, Seconds, SecretName};

mod read;

#[cfg(test)]
mod tests;

/// What values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `FILE.FUNCTION`.
    Entrypoint,
    Integer {
        min: u32,
        max: u32,
    },
    /// A number of seconds; fractions are allowed.
    Seconds {
        min: f64,
        max: f64,
    },
    /// Variables: names of an environment, not those that begin with `SLESS_`.
    Env,
    /// Names of secrets.
    Secrets,
    Labels,
    /// An object of its own: see [`Retry`].
    Retry,
    /// Statuses of invocations.
    Statuses,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// As in JSON; nested ones with a dot.
    pub name: &'static str,
    pub kind: Kind,
    /// In JSON.
    pub default: &'static str,
    /// Whether a change of it makes a new revision.
    pub revised: bool,
    pub doc: &'static str,
}

const fn row(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    revised: bool,
    doc: &'static str,
) -> Setting {
    Setting { name, kind, default, revised, doc }
}

const fn int(min: u32, max: u32) -> Kind {
    Kind::Integer { min, max }
}

const fn sec(min: f64, max: f64) -> Kind {
    Kind::Seconds { min, max }
}

/// Every setting of a function.
pub const SETTINGS: &[Setting] = &[
    row("entrypoint", Kind::Entrypoint, r#""handler.handle""#, true, "file and function of the handler"),
    row("timeout_sec", sec(0.1, 3600.0), "30", true, "limit of a call"),
    row("init_timeout_sec", sec(0.1, 3600.0), "30", true, "limit of a worker's start"),
    row("memory_mb", int(16, 65_536), "256", true, "memory of all workers together, MiB"),
    row("cpu_milli", int(10, 64_000), "250", true, "thousandths of a CPU that are reserved"),
    row("workers", int(1, 256), "1", true, "most workers of one supervisor"),
    row("concurrency", int(1, 256), "1", true, "calls at once in one worker"),
    row("env", Kind::Env, "{}", true, "the handler's variables"),
    row("secrets", Kind::Secrets, "[]", true, "secrets whose keys become variables"),
    row("min_replicas", int(0, 1000), "1", false, "fewest supervisors"),
    row("max_replicas", int(1, 1000), "1", false, "most supervisors"),
    row(
        "idle_timeout_sec",
        sec(1.0, 604_800.0),
        "300",
        false,
        "time without a call before scaling to min_replicas",
    ),
    row("build_timeout_sec", sec(1.0, 7200.0), "600", false, "limit of a build"),
    row("revision_history", int(1, 100), "10", false, "revisions that are kept"),
    row("retry", Kind::Retry, "{}", false, "how asynchronous calls are tried again"),
    row("retry.max_attempts", int(1, 100), "3", false, "attempts, the first one too"),
    row(
        "retry.backoff_sec",
        sec(0.0, 86_400.0),
        "1",
        false,
        "pause before the second attempt; doubles with each further one",
    ),
    row("retry.max_backoff_sec", sec(0.0, 86_400.0), "60", false, "longest pause"),
    row(
        "retry.on",
        Kind::Statuses,
        r#"["error","timeout","crashed","out_of_memory","init_failed","lost"]"#,
        false,
        "statuses after which it is tried again",
    ),
    row("labels", Kind::Labels, "{}", false, "free labels"),
];

impl Setting {
    /// The row of `name`; the table holds every name that the code asks for, which a test makes sure of.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|s| s.name == name)
    }
}

/// How asynchronous calls are tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    pub max_attempts: u32,
    pub backoff_sec: Seconds,
    pub max_backoff_sec: Seconds,
    pub on: Vec<String>,
}

/// All settings of a function, within their ranges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSettings {
    pub entrypoint: Entrypoint,
    pub timeout_sec: Seconds,
    pub init_timeout_sec: Seconds,
    pub memory_mb: u32,
    pub cpu_milli: u32,
    pub workers: u32,
    pub concurrency: u32,
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<SecretName>,
    pub min_replicas: u32,
    pub max_replicas: u32,
    pub idle_timeout_sec: Seconds,
    pub build_timeout_sec: Seconds,
    pub revision_history: u32,
    pub retry: Retry,
    pub labels: BTreeMap<String, String>,
}

impl FunctionSettings {
    /// Reads what `object` holds; what is missing or `null` gets its default. Fields that are no settings are the caller's to judge.
    ///
    /// # Errors
    /// The first setting that is not as the table says, by name.
    pub fn from_object(object: &Map<String, Value>) -> Result<Self, FieldError> {
        read::settings(object)
    }

    /// As JSON, every setting in it.
    #[must_use]
    pub fn to_object(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(object)) => object,
            // A struct of numbers, texts and maps with text keys always has a JSON form.
            _ => Map::new(),
        }
    }

    /// The part that a revision fixes, in an order that never changes: equal bytes mean the same revision.
    #[must_use]
    pub fn revised(&self) -> Vec<u8> {
        let mut object = self.to_object();
        object.retain(|name, _| Setting::named(name).is_some_and(|s| s.revised));
        serde_json::to_vec(&object).unwrap_or_default()
    }

    /// Takes over from `other` the part that a revision fixes.
    #[must_use]
    pub fn with_revised_of(self, other: &Self) -> Self {
        Self {
            min_replicas: self.min_replicas,
            max_replicas: self.max_replicas,
            idle_timeout_sec: self.idle_timeout_sec,
            build_timeout_sec: self.build_timeout_sec,
            revision_history: self.revision_history,
            retry: self.retry,
            labels: self.labels,
            ..other.clone()
        }
    }
}

impl Default for FunctionSettings {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a test reads the table's defaults")]
        Self::from_object(&Map::new()).expect("defaults are within their ranges")
    }
}
