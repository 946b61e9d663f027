//! Settings: environment variables, parsed once into types that cannot be wrong.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use sless_backend::Secret;
use sless_codestore_s3::S3Settings;
use sless_core::Runtime;
use sless_crds::{hosts, names};

use crate::quota::{self, Quota};

/// A setting that can't be used: its name, what it is, and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub(crate) struct ConfigError {
    pub(crate) name: &'static str,
    pub(crate) problem: String,
}

/// All settings. Below `main` nobody reads the environment.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// `POD_NAMESPACE` (`sless`): where API and controller are installed.
    pub(crate) system_namespace: String,
    /// `POD_NAME`: who this process is among the controllers; a random one if it is unset.
    pub(crate) identity: String,
    /// `EXTERNAL_URL` (`http://` and `INGRESS_HOST`): where callers reach the API.
    pub(crate) external_url: String,
    /// `REPORT_URL`: where functions deliver their records (the API's internal port).
    pub(crate) report_url: String,
    /// `API_INTERNAL_URL`: where logs of builds go; empty: nowhere, they are dropped.
    pub(crate) api_internal_url: Option<String>,
    /// `API_TOKEN_FILE` (`/var/run/sless/api-token`): what the API believes the controller by.
    pub(crate) api_token_file: PathBuf,
    /// `REGISTRY`: `HOST[:PORT][/PATH]` that builds push to.
    pub(crate) registry: String,
    /// `REGISTRY_PULL` (as `REGISTRY`): the same as nodes name it.
    pub(crate) registry_pull: String,
    /// `REGISTRY_INSECURE` (false): it speaks HTTP.
    pub(crate) registry_insecure: bool,
    /// `RUNTIME_IMAGES` (`python3.11=ref,nodejs20=ref`): the runtimes that there are, as nodes pull them.
    pub(crate) runtime_images: BTreeMap<Runtime, String>,
    /// `BUILDER_IMAGE`: what packs and pushes, as nodes pull it.
    pub(crate) builder_image: String,
    /// `INGRESS_CLASS`: of Ingresses for triggers' hosts; the cluster's default if it is unset.
    pub(crate) ingress_class: Option<String>,
    /// `INGRESS_TLS_SECRET`: a Secret beside the API with a certificate for triggers' hosts.
    pub(crate) ingress_tls_secret: Option<String>,
    /// `HOST_SUFFIXES`: below which triggers may have hosts, where a namespace has no annotation that says so.
    pub(crate) host_suffixes: Vec<String>,
    /// `S3_*`, as those of the API.
    pub(crate) s3: S3Settings,
    /// `RUNTIME_CLASS`: the `runtimeClassName` of functions and builds.
    pub(crate) runtime_class: Option<String>,
    /// `BUILD_CONCURRENCY` (2): builds at once.
    pub(crate) build_concurrency: usize,
    /// `REBASE_CONCURRENCY` (2): functions at once that move to a new runtime image.
    pub(crate) rebase_concurrency: usize,
    /// `CPU_OVERCOMMIT` (1): how many times a node's CPUs may be promised; a pod asks for that part of its `cpuMilli`.
    pub(crate) cpu_overcommit: u32,
    /// `LISTEN` (`0.0.0.0:9090`): health, ready, metrics.
    pub(crate) listen: SocketAddr,
    /// `DEFAULT_QUOTA` (`NAME=QUANTITY,…`): of a namespace's functions, where it has no annotation that says so.
    pub(crate) default_quota: Quota,
    /// `NAMESPACES`: look at these alone; one that ends in `*` stands for all that begin so. All, if it is unset.
    pub(crate) namespaces: Vec<String>,
}

impl Config {
    /// # Errors
    /// The first setting that can't be used.
    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let env = Lookup { get };
        let system_namespace = env.or("POD_NAMESPACE", "sless");
        let registry =
            env.registry("REGISTRY")?.ok_or_else(|| missing("REGISTRY", "registry.example.org/sless"))?;
        let external_url = match env.url("EXTERNAL_URL")? {
            Some(url) => url,
            None => match env.text("INGRESS_HOST") {
                Some(host) => format!("http://{host}"),
                None => return Err(missing("EXTERNAL_URL", "https://sless.example.org")),
            },
        };
        let internal =
            format!("http://{}.{system_namespace}.svc:{}", names::INTERNAL_SERVICE, names::INTERNAL_PORT);
        Ok(Self {
            identity: env
                .text("POD_NAME")
                .unwrap_or_else(|| format!("controller-{}", crate::jitter::random_name())),
            external_url,
            report_url: env.url("REPORT_URL")?.unwrap_or_else(|| format!("{internal}/internal/v1/reports")),
            api_internal_url: match env.raw("API_INTERNAL_URL").as_deref() {
                None => Some(internal),
                Some("") => None,
                Some(_) => env.url("API_INTERNAL_URL")?,
            },
            api_token_file: env.or("API_TOKEN_FILE", "/var/run/sless/api-token").into(),
            registry_pull: env.registry("REGISTRY_PULL")?.unwrap_or_else(|| registry.clone()),
            registry,
            registry_insecure: env.switch("REGISTRY_INSECURE", false)?,
            runtime_images: env.runtimes("RUNTIME_IMAGES")?,
            builder_image: env
                .text("BUILDER_IMAGE")
                .ok_or_else(|| missing("BUILDER_IMAGE", "registry.example.org/sless/builder:0.1.0"))?,
            ingress_class: env.text("INGRESS_CLASS"),
            ingress_tls_secret: env.text("INGRESS_TLS_SECRET"),
            host_suffixes: hosts::parse_suffixes(&env.or("HOST_SUFFIXES", "")),
            s3: env.s3()?,
            runtime_class: env.text("RUNTIME_CLASS"),
            build_concurrency: env.count("BUILD_CONCURRENCY", 2, 1000)?,
            rebase_concurrency: env.count("REBASE_CONCURRENCY", 2, 1000)?,
            cpu_overcommit: u32::try_from(env.count("CPU_OVERCOMMIT", 1, 100)?).unwrap_or(1),
            listen: env.parsed("LISTEN", "0.0.0.0:9090", "give IP:PORT, such as 0.0.0.0:9090")?,
            default_quota: match env.text("DEFAULT_QUOTA") {
                Some(text) => {
                    quota::parse(&text).map_err(|problem| wrong("DEFAULT_QUOTA", &text, problem))?
                }
                None => quota::default(),
            },
            namespaces: list(&env.or("NAMESPACES", "")),
            system_namespace,
        })
    }

    /// Whether objects of this namespace are this controller's.
    #[must_use]
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.namespaces.is_empty()
            || self.namespaces.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(head) => namespace.starts_with(head),
                None => namespace == pattern,
            })
    }

    /// An image that nodes name in one way, as whoever pushes names it.
    #[must_use]
    pub(crate) fn push_name(&self, image: &str) -> String {
        match image.strip_prefix(&self.registry_pull).filter(|rest| rest.starts_with('/')) {
            Some(rest) => format!("{}{rest}", self.registry),
            None => image.to_owned(),
        }
    }
}

/// Parts between commas, without white space, the empty ones left out.
#[must_use]
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn missing(name: &'static str, example: &str) -> ConfigError {
    ConfigError { name, problem: format!("must be set, as in {name}={example}") }
}

fn wrong(name: &'static str, value: &str, rule: impl Display) -> ConfigError {
    ConfigError { name, problem: format!("{value:?}: {rule}") }
}

struct Lookup<F> {
    get: F,
}

impl<F: Fn(&str) -> Option<String>> Lookup<F> {
    fn raw(&self, name: &str) -> Option<String> {
        (self.get)(name)
    }

    /// An empty value counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        self.raw(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        name: &'static str,
        default: &str,
        rule: &str,
    ) -> Result<T, ConfigError> {
        let text = self.or(name, default);
        text.parse().map_err(|_| wrong(name, &text, rule))
    }

    fn count(&self, name: &'static str, default: usize, max: usize) -> Result<usize, ConfigError> {
        let text = self.or(name, &default.to_string());
        match text.parse() {
            Ok(count) if (1..=max).contains(&count) => Ok(count),
            _ => Err(wrong(name, &text, format!("give a whole number from 1 to {max}"))),
        }
    }

    fn switch(&self, name: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.text(name).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(wrong(name, other, "give true or false")),
        }
    }

    fn url(&self, name: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) || text.contains(['?', '#', ' '])
        {
            return Err(wrong(name, &text, "give an URL that begins with http:// or https://"));
        }
        Ok(Some(text.trim_end_matches('/').to_owned()))
    }

    fn registry(&self, name: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        if text.contains("://") || text.contains(['@', ' ', '?']) || text.starts_with('/') {
            return Err(wrong(name, &text, "give HOST[:PORT][/PATH], such as registry.example.org/sless"));
        }
        Ok(Some(text.trim_end_matches('/').to_owned()))
    }

    fn runtimes(&self, name: &'static str) -> Result<BTreeMap<Runtime, String>, ConfigError> {
        const EXAMPLE: &str = "python3.11=registry.example.org/sless/runtime-python3.11:0.1.0";
        let text = self.text(name).ok_or_else(|| missing(name, EXAMPLE))?;
        let mut runtimes = BTreeMap::new();
        for part in list(&text) {
            let rule =
                || wrong(name, &part, format!("give RUNTIME=IMAGE with commas between, as in {EXAMPLE}"));
            let (runtime, image) = part.split_once('=').ok_or_else(rule)?;
            let runtime: Runtime = runtime.trim().parse().map_err(|_| rule())?;
            let image = image.trim();
            if image.is_empty() || image.contains(' ') || image.contains("://") {
                return Err(rule());
            }
            runtimes.insert(runtime, image.to_owned());
        }
        Ok(runtimes)
    }

    fn s3(&self) -> Result<S3Settings, ConfigError> {
        let bucket = self.text("S3_BUCKET").ok_or_else(|| missing("S3_BUCKET", "sless"))?;
        let settings = S3Settings {
            endpoint: self.text("S3_ENDPOINT"),
            region: self.or("S3_REGION", S3Settings::DEFAULT_REGION),
            bucket,
            access_key_id: Secret::new(self.or("S3_ACCESS_KEY_ID", "")),
            secret_access_key: Secret::new(self.or("S3_SECRET_ACCESS_KEY", "")),
            force_path_style: self.switch("S3_FORCE_PATH_STYLE", true)?,
        };
        settings.check().map_err(|e| ConfigError { name: e.name, problem: e.rule.to_owned() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const GOOD: &[(&str, &str)] = &[
        ("EXTERNAL_URL", "https://sless.example.org/"),
        ("REGISTRY", "registry:5000/x"),
        ("REGISTRY_PULL", "localhost:5000/x"),
        (
            "RUNTIME_IMAGES",
            "python3.11=localhost:5000/x/runtime-python3.11:1, nodejs20=localhost:5000/x/runtime-nodejs20:1",
        ),
        ("BUILDER_IMAGE", "localhost:5000/x/builder:1"),
        ("S3_BUCKET", "code"),
        ("S3_ACCESS_KEY_ID", "id"),
        ("S3_SECRET_ACCESS_KEY", "key"),
    ];

    pub(crate) fn config(more: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let all: BTreeMap<_, _> =
            GOOD.iter().chain(more).map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Config::from_lookup(|name| all.get(name).cloned())
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = config(&[]).unwrap();
        assert_eq!(config.external_url, "https://sless.example.org");
        assert_eq!(config.report_url, "http://sless-api-internal.sless.svc:8081/internal/v1/reports");
        assert_eq!(config.api_internal_url.as_deref(), Some("http://sless-api-internal.sless.svc:8081"));
        assert_eq!((config.build_concurrency, config.listen.port()), (2, 9090));
        assert_eq!(config.runtime_images.len(), 2);
        assert!(config.covers("anything"));
    }

    #[test]
    fn each_mistake_names_its_setting() {
        for (name, value) in [
            ("EXTERNAL_URL", "sless.example.org"),
            ("REGISTRY", "https://registry"),
            ("REGISTRY_INSECURE", "yes"),
            ("RUNTIME_IMAGES", "python3.11"),
            ("RUNTIME_IMAGES", "../x=y"),
            ("BUILD_CONCURRENCY", "0"),
            ("REBASE_CONCURRENCY", "many"),
            ("LISTEN", "9090"),
            ("DEFAULT_QUOTA", "pods"),
            ("S3_BUCKET", "A"),
            ("S3_ENDPOINT", "s3"),
        ] {
            assert_eq!(config(&[(name, value)]).unwrap_err().name, name, "{value}");
        }
        for name in ["REGISTRY", "RUNTIME_IMAGES", "BUILDER_IMAGE", "S3_BUCKET", "EXTERNAL_URL"] {
            assert_eq!(config(&[(name, "")]).unwrap_err().name, name);
        }
    }

    #[test]
    fn images_have_two_names() {
        let config = config(&[]).unwrap();
        assert_eq!(config.push_name("localhost:5000/x/runtime@sha256:1"), "registry:5000/x/runtime@sha256:1");
        assert_eq!(config.push_name("localhost:5000/xy/runtime"), "localhost:5000/xy/runtime");
    }

    #[test]
    fn a_controller_may_look_at_some_namespaces_alone() {
        let config = config(&[("NAMESPACES", "one, dev-*")]).unwrap();
        assert_eq!(
            ["one", "dev-a", "onex", "de"].map(|name| config.covers(name)),
            [true, true, false, false]
        );
    }

    #[test]
    fn no_secret_is_printed() {
        assert!(!format!("{:?}", config(&[("S3_SECRET_ACCESS_KEY", "hush")]).unwrap()).contains("hush"));
    }
}
