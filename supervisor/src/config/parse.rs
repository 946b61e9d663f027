//! From words to values: the command line, the environment, and the rules of each kind of setting.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::{Command, Error, Listen};
use crate::report::Endpoint;

/// Every setting that there is; a flag or a `SLESS_` variable that is not here is a mistake or somebody else's.
const SETTINGS: &[&str] = &[
    "SLESS_NAMESPACE",
    "SLESS_FUNCTION",
    "SLESS_REVISION",
    "SLESS_RUNTIME_DIR",
    "SLESS_FUNCTION_DIR",
    "SLESS_ENTRYPOINT",
    "SLESS_LISTEN",
    "SLESS_ADMIN_LISTEN",
    "SLESS_TIMEOUT_SEC",
    "SLESS_INIT_TIMEOUT_SEC",
    "SLESS_KILL_GRACE_SEC",
    "SLESS_WORKERS",
    "SLESS_MIN_WORKERS",
    "SLESS_CONCURRENCY",
    "SLESS_QUEUE",
    "SLESS_MAX_REQUEST_BYTES",
    "SLESS_MAX_RESPONSE_BYTES",
    "SLESS_LOG_LIMIT_BYTES",
    "SLESS_RESULT_LIMIT_BYTES",
    "SLESS_INPUT_LIMIT_BYTES",
    "SLESS_REPORT_URL",
    "SLESS_REPORT_TOKEN_FILE",
    "SLESS_SPOOL_DIR",
    "SLESS_SPOOL_LIMIT_BYTES",
    "SLESS_FLUSH_SEC",
    "SLESS_SECRET_NAMES",
    "SLESS_LOG_FORMAT",
    "SLESS_CAGE",
    "SLESS_PROXY_TOKEN_FILE",
    "SLESS_EXIT_WITH_STDIN",
    "SLESS_CGROUP",
];

pub(super) enum Parsed {
    Help,
    Version,
    Settings(Source, Command),
}

/// The settings as words, and whether each came from a flag.
#[derive(Debug, Default)]
pub(super) struct Source {
    flags: HashMap<&'static str, OsString>,
    env: HashMap<&'static str, OsString>,
    function_env: Vec<(OsString, OsString)>,
}

fn flag_of(name: &str) -> String {
    format!("--{}", name.trim_start_matches("SLESS_").to_ascii_lowercase().replace('_', "-"))
}

fn usage(setting: &str, problem: impl Into<String>) -> Error {
    Error { setting: setting.to_owned(), problem: problem.into() }
}

impl Source {
    pub(super) fn read(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Parsed, Error> {
        let mut source = Self::default();
        for (name, value) in env {
            match name.to_str().and_then(|n| SETTINGS.iter().find(|s| **s == n)) {
                Some(setting) => drop(source.env.insert(setting, value)),
                None if name.to_string_lossy().starts_with("SLESS_") => {}
                None => source.function_env.push((name, value)),
            }
        }
        let mut args = args.into_iter();
        let (mut command, mut event) = (None, None);
        while let Some(arg) = args.next() {
            let word = arg.to_str().ok_or_else(|| usage("command line", "an argument is not UTF-8"))?;
            match word {
                "-h" | "--help" => return Ok(Parsed::Help),
                "-V" | "--version" => return Ok(Parsed::Version),
                "serve" | "run" if command.is_none() => command = Some(word.to_owned()),
                _ => {
                    let (flag, inline) = match word.split_once('=') {
                        Some((flag, value)) => (flag, Some(OsString::from(value))),
                        None => (word, None),
                    };
                    let setting = SETTINGS.iter().find(|s| flag_of(s) == flag);
                    if setting.is_none() && flag != "--event" {
                        return Err(usage(flag, "no such argument; see sless-supervisor --help"));
                    }
                    let value = inline.or_else(|| args.next()).ok_or_else(|| usage(flag, "needs a value"))?;
                    match setting {
                        Some(setting) => drop(source.flags.insert(setting, value)),
                        None => event = Some(PathBuf::from(value)),
                    }
                }
            }
        }
        let command = match (command.as_deref(), event) {
            (Some("serve"), None) => Command::Serve,
            (Some("serve"), Some(_)) => return Err(usage("--event", "belongs to `run`, not to `serve`")),
            (Some(_), Some(event)) => Command::Run { event },
            (Some(_), None) => {
                return Err(usage(
                    "--event",
                    "is missing: name the file that holds the event, or - for stdin",
                ));
            }
            (None, _) => {
                return Err(usage("command", "is missing: `serve` or `run`; see sless-supervisor --help"));
            }
        };
        Ok(Parsed::Settings(source, command))
    }

    /// A variable that is not ours and is the function's too.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.function_env.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    pub(super) fn function_env(&self) -> Vec<(OsString, OsString)> {
        self.function_env.clone()
    }

    /// An error that names the setting in the form in which it was given.
    pub(super) fn error(&self, name: &'static str, problem: impl Into<String>) -> Error {
        let setting = if self.flags.contains_key(name) { flag_of(name) } else { name.to_owned() };
        Error { setting, problem: problem.into() }
    }
}

/// Typed look-ups; each error names the setting, its value and the rule.
pub(super) trait Lookup {
    fn raw(&self, name: &'static str) -> Option<&OsStr>;
    fn text(&self, name: &'static str, default: &str) -> Result<String, Error>;
    fn seconds(&self, name: &'static str, default: f64, min: f64, max: f64) -> Result<Duration, Error>;
    fn number(&self, name: &'static str, default: u64, min: u64, max: u64) -> Result<u64, Error>;
    fn count(&self, name: &'static str, default: u64, max: u64) -> Result<NonZeroUsize, Error>;
    fn bytes32(&self, name: &'static str, default: u64) -> Result<u32, Error>;
    fn path(&self, name: &'static str) -> Option<PathBuf>;
    fn folder(&self, name: &'static str, default: &str) -> Result<PathBuf, Error>;
    fn listen(&self, name: &'static str, default: &str) -> Result<Listen, Error>;
    fn list(&self, name: &'static str) -> Result<Vec<String>, Error>;
    fn one_of<T: Copy>(&self, name: &'static str, choices: &[(&str, T)], default: T) -> Result<T, Error>;
    fn entrypoint(&self, name: &'static str, default: &str) -> Result<String, Error>;
    fn endpoint(&self, name: &'static str) -> Result<Option<Endpoint>, Error>;
}

impl Lookup for Source {
    /// An empty value counts as unset.
    fn raw(&self, name: &'static str) -> Option<&OsStr> {
        self.flags.get(name).or_else(|| self.env.get(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    fn text(&self, name: &'static str, default: &str) -> Result<String, Error> {
        match self.raw(name) {
            None => Ok(default.to_owned()),
            Some(value) => value.to_str().map(str::to_owned).ok_or_else(|| self.error(name, "is not UTF-8")),
        }
    }

    fn seconds(&self, name: &'static str, default: f64, min: f64, max: f64) -> Result<Duration, Error> {
        let text = self.text(name, "")?;
        if text.is_empty() {
            return Ok(Duration::from_secs_f64(default));
        }
        let rule = |why: &dyn Display| {
            self.error(name, format!("{text:?} {why}: give seconds from {min} to {max}, such as 30 or 0.5"))
        };
        let value: f64 = text.trim().parse().map_err(|_| rule(&"is not a number"))?;
        if !value.is_finite() || value < min || value > max {
            return Err(rule(&"is out of range"));
        }
        Ok(Duration::from_secs_f64(value))
    }

    fn number(&self, name: &'static str, default: u64, min: u64, max: u64) -> Result<u64, Error> {
        let text = self.text(name, "")?;
        if text.is_empty() {
            return Ok(default);
        }
        match text.trim().parse::<u64>() {
            Ok(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self.error(name, format!("{text:?} is not a whole number from {min} to {max}"))),
        }
    }

    fn count(&self, name: &'static str, default: u64, max: u64) -> Result<NonZeroUsize, Error> {
        let value = self.number(name, default, 1, max)?;
        usize::try_from(value)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or_else(|| self.error(name, format!("{value} is not a whole number from 1 to {max}")))
    }

    /// A size that fits into a frame's length.
    fn bytes32(&self, name: &'static str, default: u64) -> Result<u32, Error> {
        const MAX: u64 = 2 << 30;
        let value = self.number(name, default, 0, MAX)?;
        u32::try_from(value).map_err(|_| self.error(name, format!("{value} is more than {MAX} bytes")))
    }

    fn path(&self, name: &'static str) -> Option<PathBuf> {
        self.raw(name).map(PathBuf::from)
    }

    fn folder(&self, name: &'static str, default: &str) -> Result<PathBuf, Error> {
        let path = self.path(name).unwrap_or_else(|| default.into());
        let absolute =
            path.canonicalize().map_err(|e| self.error(name, format!("{}: {e}", path.display())))?;
        if absolute.is_dir() {
            Ok(absolute)
        } else {
            Err(self.error(name, format!("{} is not a folder", path.display())))
        }
    }

    fn listen(&self, name: &'static str, default: &str) -> Result<Listen, Error> {
        let text = self.text(name, default)?;
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() || path.len() > 107 {
                Err(self.error(name, format!("{text:?}: the path of a socket has 1 to 107 bytes")))
            } else {
                Ok(Listen::Unix(path.into()))
            };
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            self.error(
                name,
                format!("{text:?} is no address: give IP:PORT, such as 0.0.0.0:8080, or unix:PATH"),
            )
        })
    }

    fn list(&self, name: &'static str) -> Result<Vec<String>, Error> {
        let text = self.text(name, "")?;
        Ok(text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect())
    }

    fn one_of<T: Copy>(&self, name: &'static str, choices: &[(&str, T)], default: T) -> Result<T, Error> {
        let text = self.text(name, "")?;
        if text.is_empty() {
            return Ok(default);
        }
        choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            self.error(name, format!("{text:?} is not one of {}", words.join(", ")))
        })
    }

    fn entrypoint(&self, name: &'static str, default: &str) -> Result<String, Error> {
        let text = self.text(name, default)?;
        let split = text.rsplit_once('.');
        let fine = split.is_some_and(|(file, function)| {
            !file.is_empty()
                && !function.is_empty()
                && !function.contains('/')
                && !file.starts_with(['/', '.'])
                && !file.split(['/', '.']).any(str::is_empty)
                && !text.contains(['\0', '\\', '\n'])
        });
        if fine {
            Ok(text)
        } else {
            Err(self.error(
                name,
                format!(
                    "{text:?} is no entry point: give FILE.FUNCTION, such as handler.handle or src/app.main"
                ),
            ))
        }
    }

    fn endpoint(&self, name: &'static str) -> Result<Option<Endpoint>, Error> {
        let text = self.text(name, "")?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse()
            .map(Some)
            .map_err(|e| self.error(name, format!("{text:?} is no address for reports: it {e}")))
    }
}

/// The name by which records call this pod.
pub(super) fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|s| s.trim().to_owned()).unwrap_or_default()
}
