use sless_backend::Secret;

/// Where the bucket is, and with whose keys.
#[derive(Debug, Clone)]
pub struct S3Settings {
    /// `S3_ENDPOINT`: another server than Amazon's.
    pub endpoint: Option<String>,
    /// `S3_REGION`.
    pub region: String,
    /// `S3_BUCKET`.
    pub bucket: String,
    /// `S3_ACCESS_KEY_ID`.
    pub access_key_id: Secret,
    /// `S3_SECRET_ACCESS_KEY`.
    pub secret_access_key: Secret,
    /// `S3_FORCE_PATH_STYLE`: the bucket in the path and not in the host's name, as most other servers want it.
    pub force_path_style: bool,
}

/// A setting that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {rule}")]
pub struct SettingsError {
    pub name: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

impl S3Settings {
    pub const DEFAULT_REGION: &str = "us-east-1";

    /// Checks what can be said without asking the server, so that a slip of the pen is named and not shown as an answer of S3.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(self) -> Result<Self, SettingsError> {
        let wrong = |name, rule| Err(SettingsError { name, rule });
        if let Some(endpoint) = &self.endpoint
            && !["http://", "https://"]
                .iter()
                .any(|scheme| endpoint.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
        {
            return wrong("S3_ENDPOINT", "must be an URL that begins with http:// or https://");
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        if !(3..=63).contains(&self.bucket.len()) || !self.bucket.bytes().all(plain) {
            return wrong("S3_BUCKET", "must be 3 to 63 lower-case letters, digits, '-' and '.'");
        }
        if self.region.is_empty() || !self.region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return wrong("S3_REGION", "must be letters, digits and '-'");
        }
        for (name, key) in
            [("S3_ACCESS_KEY_ID", &self.access_key_id), ("S3_SECRET_ACCESS_KEY", &self.secret_access_key)]
        {
            if key.reveal().is_empty() {
                return wrong(name, "must be set when S3_BUCKET is");
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> S3Settings {
        S3Settings {
            endpoint: Some("http://127.0.0.1:9000".to_owned()),
            region: S3Settings::DEFAULT_REGION.to_owned(),
            bucket: "code".to_owned(),
            access_key_id: Secret::new("id"),
            secret_access_key: Secret::new("key"),
            force_path_style: true,
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(settings().check().is_ok());
        assert!(S3Settings { endpoint: None, ..settings() }.check().is_ok());
        let name = |settings: S3Settings| settings.check().unwrap_err().name;
        for endpoint in ["127.0.0.1:9000", "http://", ""] {
            assert_eq!(name(S3Settings { endpoint: Some(endpoint.to_owned()), ..settings() }), "S3_ENDPOINT");
        }
        for bucket in ["", "ab", "Code", "a/b", &"x".repeat(64)] {
            assert_eq!(name(S3Settings { bucket: bucket.to_owned(), ..settings() }), "S3_BUCKET");
        }
        assert_eq!(name(S3Settings { region: "a b".to_owned(), ..settings() }), "S3_REGION");
        assert_eq!(name(S3Settings { access_key_id: Secret::new(""), ..settings() }), "S3_ACCESS_KEY_ID");
        assert_eq!(
            name(S3Settings { secret_access_key: Secret::new(""), ..settings() }),
            "S3_SECRET_ACCESS_KEY"
        );
    }
}
