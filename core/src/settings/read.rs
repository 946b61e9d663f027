//! Reads settings out of a JSON object by the table.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::{FunctionSettings, Kind, Retry, Setting};
use crate::{Entrypoint, FieldError, Seconds, SecretName};

/// Statuses after which another attempt can make sense.
const RETRIED: &[&str] = &["error", "timeout", "crashed", "out_of_memory", "init_failed", "lost"];

pub(super) fn settings(object: &Map<String, Value>) -> Result<FunctionSettings, FieldError> {
    let at = At { object, prefix: "" };
    let settings = FunctionSettings {
        entrypoint: at.entrypoint("entrypoint")?,
        timeout_sec: at.seconds("timeout_sec")?,
        init_timeout_sec: at.seconds("init_timeout_sec")?,
        memory_mb: at.integer("memory_mb")?,
        cpu_milli: at.integer("cpu_milli")?,
        workers: at.integer("workers")?,
        concurrency: at.integer("concurrency")?,
        env: at.env("env")?,
        secrets: at.secrets("secrets")?,
        min_replicas: at.integer("min_replicas")?,
        max_replicas: at.integer("max_replicas")?,
        idle_timeout_sec: at.seconds("idle_timeout_sec")?,
        build_timeout_sec: at.seconds("build_timeout_sec")?,
        revision_history: at.integer("revision_history")?,
        retry: at.retry("retry")?,
        labels: at.labels("labels")?,
    };
    if settings.min_replicas > settings.max_replicas {
        return Err(FieldError::new("min_replicas", "must not be above max_replicas"));
    }
    Ok(settings)
}

struct At<'a> {
    object: &'a Map<String, Value>,
    /// Of the table's names: empty, or `retry.`.
    prefix: &'static str,
}

impl At<'_> {
    fn fail<T>(&self, name: &str, message: impl Into<String>) -> Result<T, FieldError> {
        Err(FieldError::new(format!("{}{name}", self.prefix), message))
    }

    /// The value, or its default, and the row.
    fn get(&self, name: &str) -> Result<(Value, &'static Setting), FieldError> {
        let Some(row) = Setting::named(&format!("{}{name}", self.prefix)) else {
            return self.fail(name, "is not a setting");
        };
        let value = match self.object.get(name) {
            None | Some(Value::Null) => serde_json::from_str(row.default).unwrap_or_default(),
            Some(value) => value.clone(),
        };
        Ok((value, row))
    }

    fn integer(&self, name: &str) -> Result<u32, FieldError> {
        let (value, row) = self.get(name)?;
        let Kind::Integer { min, max } = row.kind else { return self.fail(name, "is not a whole number") };
        // 5.0 is the same number as 5 in JSON.
        let whole = value.as_u64().or_else(|| value.as_f64().and_then(Seconds::new).and_then(Seconds::whole));
        match whole.and_then(|n| u32::try_from(n).ok()).filter(|n| (min..=max).contains(n)) {
            Some(number) => Ok(number),
            None => self.fail(name, format!("must be a whole number from {min} to {max}")),
        }
    }

    fn seconds(&self, name: &str) -> Result<Seconds, FieldError> {
        let (value, row) = self.get(name)?;
        let Kind::Seconds { min, max } = row.kind else { return self.fail(name, "is not a length of time") };
        match value.as_f64().and_then(Seconds::new).filter(|s| (min..=max).contains(&s.get())) {
            Some(seconds) => Ok(seconds),
            None => self.fail(name, format!("must be a number of seconds from {min} to {max}")),
        }
    }

    fn entrypoint(&self, name: &str) -> Result<Entrypoint, FieldError> {
        match self.get(name)?.0 {
            Value::String(text) => text.parse(),
            _ => self.fail(name, "must be a string FILE.FUNCTION"),
        }
    }

    fn texts(&self, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
        let Value::Object(entries) = self.get(name)?.0 else {
            return self.fail(name, "must be an object of strings");
        };
        let mut texts = BTreeMap::new();
        for (key, value) in entries {
            match value {
                Value::String(text) => texts.insert(key, text),
                _ => return self.fail(&format!("{name}.{key}"), "must be a string"),
            };
        }
        Ok(texts)
    }

    fn env(&self, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
        crate::variables(name, &self.get(name)?.0)
    }

    fn labels(&self, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
        let labels = self.texts(name)?;
        let plain = |text: &str, max, slash| {
            text.len() <= max
                && text.bytes().all(|b| {
                    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-') || (slash && b == b'/')
                })
        };
        for (key, value) in &labels {
            if key.is_empty() || !plain(key, 253, true) || !plain(value, 63, false) {
                return self.fail(
                    name,
                    format!("{key:?}: a label's name and value are letters, digits, '-', '_' and '.', the value at most 63"),
                );
            }
        }
        Ok(labels)
    }

    fn list(&self, name: &str) -> Result<Vec<String>, FieldError> {
        let Value::Array(items) = self.get(name)?.0 else {
            return self.fail(name, "must be a list of strings");
        };
        let mut seen = HashSet::new();
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            let Value::String(text) = item else { return self.fail(name, "must be a list of strings") };
            if seen.insert(text.clone()) {
                list.push(text);
            }
        }
        Ok(list)
    }

    fn secrets(&self, name: &str) -> Result<Vec<SecretName>, FieldError> {
        let parse = |text: String| {
            text.parse().map_err(|e: FieldError| FieldError::new(name, format!("{text:?} {}", e.message)))
        };
        self.list(name)?.into_iter().map(parse).collect()
    }

    fn retry(&self, name: &str) -> Result<Retry, FieldError> {
        let Value::Object(object) = self.get(name)?.0 else { return self.fail(name, "must be an object") };
        let at = At { object: &object, prefix: "retry." };
        if let Some(unknown) = object.keys().find(|k| Setting::named(&format!("retry.{k}")).is_none()) {
            return at.fail(unknown, "is not a field of retry");
        }
        let on = at.list("on")?;
        if let Some(odd) = on.iter().find(|s| !RETRIED.contains(&s.as_str())) {
            return at.fail("on", format!("{odd:?} is not one of {}", RETRIED.join(", ")));
        }
        Ok(Retry {
            max_attempts: at.integer("max_attempts")?,
            backoff_sec: at.seconds("backoff_sec")?,
            max_backoff_sec: at.seconds("max_backoff_sec")?,
            on,
        })
    }
}
