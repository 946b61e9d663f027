//! Settings: environment variables, parsed here once.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use sless_backend::Secret;
use sless_codestore_s3::S3Settings;
use sless_core::HostName;

/// A variable.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) default: Option<&'static str>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Without it nothing starts.
    Required,
    /// The same, and never shown.
    Secret,
    Optional,
}

const fn setting(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    about: &'static str,
) -> Setting {
    Setting { name, about, default, kind }
}

/// All of them, in the order in which they are shown.
pub(crate) const SETTINGS: &[Setting] = &[
    setting("API_LISTEN", Kind::Optional, Some("0.0.0.0:8080"), "address of /v1 and /fn"),
    setting("API_INTERNAL_LISTEN", Kind::Optional, Some("0.0.0.0:8081"), "address where pods send records"),
    setting("API_ADMIN_LISTEN", Kind::Optional, Some("0.0.0.0:9090"), "address of health, ready and metrics"),
    setting("API_TOKEN", Kind::Secret, None, "an admin token for all namespaces"),
    setting("EXTERNAL_URL", Kind::Required, None, "how callers reach API_LISTEN"),
    setting("DATABASE_URL", Kind::Secret, None, "PostgreSQL: postgres://USER:PASSWORD@HOST:PORT/NAME"),
    setting(
        "S3_ENDPOINT",
        Kind::Optional,
        None,
        "the server of the bucket, as http://HOST:PORT; Amazon's if unset",
    ),
    setting("S3_REGION", Kind::Optional, Some(S3Settings::DEFAULT_REGION), "the bucket's region"),
    setting("S3_BUCKET", Kind::Required, None, "where uploaded code is kept; made if it isn't there"),
    setting("S3_ACCESS_KEY_ID", Kind::Secret, None, "who uses the bucket"),
    setting("S3_SECRET_ACCESS_KEY", Kind::Secret, None, "the key to that"),
    setting(
        "S3_FORCE_PATH_STYLE",
        Kind::Optional,
        Some("true"),
        "the bucket in the path and not in the host's name",
    ),
    setting("RETENTION_DAYS", Kind::Optional, Some("30"), "how many days records are kept"),
    setting("RETENTION_COUNT", Kind::Optional, Some("10000"), "how many records of a function are kept"),
    setting("MAX_UPLOAD_BYTES", Kind::Optional, Some("104857600"), "largest zip that is taken"),
    setting(
        "TRUSTED_PROXIES",
        Kind::Optional,
        None,
        "networks whose X-Forwarded-For is believed, with commas",
    ),
    setting("INGRESS_HOST", Kind::Optional, None, "the API's own host, which no trigger can have"),
    setting("HOST_SUFFIXES", Kind::Optional, None, "below which triggers may have hosts, with commas"),
    setting(
        "DRAIN_DELAY_SEC",
        Kind::Optional,
        Some("3"),
        "seconds from SIGTERM until new calls are refused: time for those who send them to hear of it",
    ),
    setting(
        "POD_NAMESPACE",
        Kind::Optional,
        None,
        "the namespace of the installation; else that of this pod or of the kubeconfig",
    ),
    setting(
        "RUNTIME_IMAGES",
        Kind::Required,
        None,
        "the runtimes that there are: python3.11=IMAGE,nodejs20=IMAGE",
    ),
];

/// What is in force.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) internal_listen: SocketAddr,
    pub(crate) admin_listen: SocketAddr,
    pub(crate) token: Secret,
    pub(crate) external_url: String,
    pub(crate) database_url: Secret,
    pub(crate) s3: S3Settings,
    pub(crate) retention_days: u32,
    pub(crate) retention_count: u32,
    pub(crate) max_upload_bytes: u64,
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) ingress_host: Option<HostName>,
    pub(crate) drain_delay: Duration,
    pub(crate) kubernetes: sless_backend_kubernetes::Settings,
    /// As they were given, or their defaults; secrets not.
    shown: Vec<(&'static str, String)>,
}

/// What is wrong with the settings.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("not set: {}", .0.join("; "))]
    Missing(Vec<String>),
    #[error("{name}={value:?} {rule}")]
    Wrong { name: &'static str, value: String, rule: String },
    /// Of a secret, whose value is not said.
    #[error("{name} {rule}")]
    WrongSecret { name: &'static str, rule: &'static str },
}

/// The values by their names, where there is one.
struct Given<F>(F);

impl<F: Fn(&str) -> Option<String>> Given<F> {
    /// An empty variable is what a settings file has in the place of none.
    fn get(&self, name: &str) -> Option<String> {
        let default = SETTINGS.iter().find(|setting| setting.name == name).and_then(|s| s.default);
        let given = (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        given.or_else(|| default.map(str::to_owned))
    }

    /// One that is there, as [`Given::complete`] has made sure.
    fn secret(&self, name: &str) -> Secret {
        Secret::new(self.get(name).unwrap_or_default())
    }

    fn complete(&self) -> Result<(), SettingsError> {
        let needed = SETTINGS.iter().filter(|setting| setting.kind != Kind::Optional);
        let missing = needed.filter(|setting| self.get(setting.name).is_none());
        let missing: Vec<_> =
            missing.map(|setting| format!("{} ({})", setting.name, setting.about)).collect();
        if missing.is_empty() { Ok(()) } else { Err(SettingsError::Missing(missing)) }
    }

    fn parse<T: FromStr>(&self, name: &'static str, rule: &str) -> Result<T, SettingsError> {
        let value = self.get(name).unwrap_or_default();
        value.parse().map_err(|_| SettingsError::Wrong { name, value, rule: rule.to_owned() })
    }
}

impl Settings {
    /// # Errors
    /// All that is missing, or the first variable that is wrong.
    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        const ADDRESS: &str = "must be an address with a port, as 0.0.0.0:8080";
        const COUNT: &str = "must be a whole number";
        let given = Given(get);
        given.complete()?;
        let wrong = |name, rule: String| {
            let value = given.get(name).unwrap_or_default();
            SettingsError::Wrong { name, value, rule }
        };
        let external_url = given.get("EXTERNAL_URL").unwrap_or_default();
        if !["http://", "https://"]
            .iter()
            .any(|scheme| external_url.strip_prefix(scheme).is_some_and(|r| !r.is_empty()))
        {
            return Err(wrong("EXTERNAL_URL", "must begin with http:// or https://".to_owned()));
        }
        let database_url = given.secret("DATABASE_URL");
        if !["postgres://", "postgresql://"].iter().any(|scheme| database_url.reveal().starts_with(scheme)) {
            let rule = "must begin with postgres://; on a cluster records are in PostgreSQL alone";
            return Err(SettingsError::WrongSecret { name: "DATABASE_URL", rule });
        }
        let s3 = S3Settings {
            endpoint: given.get("S3_ENDPOINT"),
            region: given.get("S3_REGION").unwrap_or_default(),
            bucket: given.get("S3_BUCKET").unwrap_or_default(),
            access_key_id: given.secret("S3_ACCESS_KEY_ID"),
            secret_access_key: given.secret("S3_SECRET_ACCESS_KEY"),
            force_path_style: given.parse("S3_FORCE_PATH_STYLE", "must be true or false")?,
        };
        let s3 = s3.check().map_err(|e| SettingsError::WrongSecret { name: e.name, rule: e.rule })?;
        let networks = given.get("TRUSTED_PROXIES").unwrap_or_default();
        let networks = networks.split(',').map(str::trim).filter(|text| !text.is_empty()).map(|text| {
            text.parse::<IpNet>().map_err(|_| {
                wrong("TRUSTED_PROXIES", format!("has {text:?}, which is no network such as 10.0.0.0/8"))
            })
        });
        let ingress_host = given.get("INGRESS_HOST").map(|host| host.parse());
        let kubernetes = sless_backend_kubernetes::Settings::from_lookup(|name| given.get(name));
        let name_of =
            |field: &str| SETTINGS.iter().find(|s| s.name == field).map_or("RUNTIME_IMAGES", |s| s.name);
        Ok(Self {
            listen: given.parse("API_LISTEN", ADDRESS)?,
            internal_listen: given.parse("API_INTERNAL_LISTEN", ADDRESS)?,
            admin_listen: given.parse("API_ADMIN_LISTEN", ADDRESS)?,
            token: given.secret("API_TOKEN"),
            database_url,
            s3,
            retention_days: given.parse("RETENTION_DAYS", COUNT)?,
            retention_count: given.parse("RETENTION_COUNT", COUNT)?,
            max_upload_bytes: given.parse("MAX_UPLOAD_BYTES", COUNT)?,
            trusted_proxies: networks.collect::<Result<_, _>>()?,
            drain_delay: Duration::from_secs(given.parse::<u32>("DRAIN_DELAY_SEC", COUNT)?.into()),
            ingress_host: ingress_host
                .transpose()
                .map_err(|error: sless_core::FieldError| wrong("INGRESS_HOST", error.message))?,
            kubernetes: kubernetes.map_err(|error| wrong(name_of(&error.field), error.message))?,
            external_url,
            shown: SETTINGS
                .iter()
                .map(|setting| {
                    let value = given.get(setting.name);
                    let hidden = setting.kind == Kind::Secret && value.is_some();
                    (setting.name, if hidden { "***".to_owned() } else { value.unwrap_or_default() })
                })
                .collect(),
        })
    }
}

/// Each with its value, as in a file of settings.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.iter().try_for_each(|(name, value)| writeln!(f, "{name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sless_api::ApiConfig;

    use super::*;

    const LEAST: &[(&str, &str)] = &[
        ("API_TOKEN", "s3cret-token"),
        ("EXTERNAL_URL", "https://sless.example.com"),
        ("DATABASE_URL", "postgres://sless:s3cret-password@db/sless"),
        ("S3_BUCKET", "code"),
        ("S3_ACCESS_KEY_ID", "s3cret-id"),
        ("S3_SECRET_ACCESS_KEY", "s3cret-key"),
        ("RUNTIME_IMAGES", "python3.11=r.example/python:1"),
    ];

    fn read(more: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let all: BTreeMap<_, _> = LEAST.iter().chain(more).copied().collect();
        Settings::from_lookup(|name| all.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn what_has_a_default_need_not_be_set() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.listen, "0.0.0.0:8080".parse().unwrap());
        assert_eq!(settings.internal_listen.port(), 8081);
        assert_eq!(settings.admin_listen.port(), 9090);
        assert_eq!(
            (settings.retention_days, settings.retention_count),
            (ApiConfig::DEFAULT_RETENTION_DAYS, ApiConfig::DEFAULT_RETENTION_COUNT)
        );
        assert_eq!(settings.max_upload_bytes, ApiConfig::DEFAULT_MAX_UPLOAD_BYTES);
        assert!(settings.s3.force_path_style && settings.trusted_proxies.is_empty());
    }

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let error =
            Settings::from_lookup(|name| (name == "DATABASE_URL").then(|| " ".to_owned())).unwrap_err();
        let text = error.to_string();
        for (name, _) in LEAST {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("PostgreSQL"), "{text}");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_rule_and_no_secret_is_said() {
        for (name, value, says) in [
            ("API_LISTEN", "8080", "0.0.0.0:8080"),
            ("EXTERNAL_URL", "sless.example.com", "https://"),
            ("DATABASE_URL", "mysql://root:s3cret@db", "postgres://"),
            ("S3_BUCKET", "No", "lower-case"),
            ("S3_FORCE_PATH_STYLE", "maybe", "true or false"),
            ("RETENTION_DAYS", "-1", "whole number"),
            ("TRUSTED_PROXIES", "10.0.0.0/8,nobody", "nobody"),
            ("INGRESS_HOST", "..", ""),
            ("RUNTIME_IMAGES", "python3.11", "RUNTIME=IMAGE"),
        ] {
            let text = read(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(name) && text.contains(says) && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn what_is_shown_has_every_setting_and_no_secret() {
        let settings =
            read(&[("TRUSTED_PROXIES", "10.0.0.0/8, 192.168.1.1/32"), ("INGRESS_HOST", "sless.example.com")])
                .unwrap();
        assert_eq!(settings.trusted_proxies.len(), 2);
        let text = settings.to_string();
        assert!(text.contains("S3_BUCKET=code\n") && text.contains("API_TOKEN=***\n"), "{text}");
        assert!(!text.contains("s3cret") && !format!("{settings:?}").contains("s3cret-"), "{text}");
        assert_eq!(text.lines().count(), SETTINGS.len());
    }

    #[test]
    fn the_page_for_operators_has_every_setting() {
        let page = include_str!("../../../docs/kubernetes.md");
        for setting in SETTINGS {
            assert!(page.contains(&format!("`{}`", setting.name)), "{}", setting.name);
        }
    }
}
