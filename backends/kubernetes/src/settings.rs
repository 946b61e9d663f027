use sless_core::{FieldError, Runtime};
use sless_crds::hosts::parse_suffixes;

/// What only this backend has to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the API and the controller run; `None`: where this process does, or what the kubeconfig names.
    pub system_namespace: Option<String>,
    /// The runtimes that the controller has images of.
    pub runtimes: Vec<Runtime>,
    /// Suffixes below which triggers may have hosts in namespaces that say nothing else.
    pub host_suffixes: Vec<String>,
}

impl Settings {
    /// Reads `POD_NAMESPACE`, `RUNTIME_IMAGES` (as the controller does: `python3.11=IMAGE,nodejs20=IMAGE`) and `HOST_SUFFIXES`.
    ///
    /// # Errors
    /// Names the variable and says what is wrong with its value.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, FieldError> {
        let get = |name: &str| get(name).filter(|text| !text.trim().is_empty());
        let images = get("RUNTIME_IMAGES").ok_or_else(|| {
            FieldError::new("RUNTIME_IMAGES", "must be set, as in python3.11=IMAGE,nodejs20=IMAGE")
        })?;
        Ok(Self {
            system_namespace: get("POD_NAMESPACE"),
            runtimes: runtimes(&images)?,
            host_suffixes: get("HOST_SUFFIXES").map(|text| parse_suffixes(&text)).unwrap_or_default(),
        })
    }
}

fn runtimes(images: &str) -> Result<Vec<Runtime>, FieldError> {
    let fail = |message: String| FieldError::new("RUNTIME_IMAGES", message);
    let mut runtimes: Vec<Runtime> = Vec::new();
    for entry in images.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let named = entry.split_once('=').map(|(name, image)| (name.trim(), image.trim()));
        let Some((name, _)) = named.filter(|(_, image)| !image.is_empty()) else {
            return Err(fail(format!("{entry:?} is not RUNTIME=IMAGE")));
        };
        let runtime = name.parse().map_err(|error: FieldError| fail(error.message))?;
        if runtimes.contains(&runtime) {
            return Err(fail(format!("{name:?} is there twice")));
        }
        runtimes.push(runtime);
    }
    if runtimes.is_empty() { Err(fail("names no runtime".to_owned())) } else { Ok(runtimes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(images: &str) -> Result<Settings, FieldError> {
        Settings::from_lookup(|name| match name {
            "RUNTIME_IMAGES" => Some(images.to_owned()),
            "HOST_SUFFIXES" => Some("example.org, .x.example".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn runtimes_are_those_that_have_images() {
        let settings = read("python3.11=r.example/p:1@sha256:00, nodejs20=n:1=2,").unwrap();
        assert_eq!(
            settings.runtimes.iter().map(Runtime::as_str).collect::<Vec<_>>(),
            ["python3.11", "nodejs20"]
        );
        assert_eq!(settings.host_suffixes, ["example.org", "x.example"]);
        assert_eq!(settings.system_namespace, None);
        for wrong in ["", " ", ",", "python3.11", "python3.11=", "../x=a", "a=1,a=2"] {
            assert_eq!(read(wrong).unwrap_err().field, "RUNTIME_IMAGES", "{wrong:?}");
        }
    }
}
