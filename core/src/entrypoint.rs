use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// Where the handler is: `FILE.FUNCTION`, the file in a package with dots or slashes: `handler.handle`, `src/app.main`, `src.app.main`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Entrypoint {
    text: String,
    /// Byte offset of the last dot.
    dot: usize,
}

impl Entrypoint {
    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The file as a path without its ending, from the function's folder: `src/app`.
    #[must_use]
    pub fn file_stem(&self) -> String {
        self.file_part().replace('.', "/")
    }

    /// The name inside the file.
    #[must_use]
    pub fn function(&self) -> &str {
        self.text.get(self.dot + 1..).unwrap_or_default()
    }

    fn file_part(&self) -> &str {
        self.text.get(..self.dot).unwrap_or_default()
    }
}

impl Default for Entrypoint {
    fn default() -> Self {
        Self { text: "handler.handle".to_owned(), dot: "handler".len() }
    }
}

/// A part of a path that stays below its folder and is no hidden or odd file.
fn is_file_segment(segment: &str) -> bool {
    !segment.is_empty()
        && !segment.starts_with('-')
        && segment.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '@' | '+'))
}

fn is_identifier(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphabetic() || matches!(c, '_' | '$'))
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
}

impl FromStr for Entrypoint {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let refuse = |message: &str| {
            FieldError::new("entrypoint", format!("{message}, as in 'handler.handle' or 'src/app.main'"))
        };
        if text.len() > 1024 {
            return Err(refuse("must have at most 1024 bytes"));
        }
        let (file, function) = text.rsplit_once('.').ok_or_else(|| refuse("must be FILE.FUNCTION"))?;
        if !file.split(['/', '.']).all(is_file_segment) {
            return Err(refuse(
                "must begin with a file's path below the function's folder, without its ending",
            ));
        }
        if !is_identifier(function) {
            return Err(refuse("must end with the name of a function"));
        }
        Ok(Self { text: text.to_owned(), dot: file.len() })
    }
}

impl TryFrom<String> for Entrypoint {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
        text.parse()
    }
}

impl From<Entrypoint> for String {
    fn from(entrypoint: Entrypoint) -> Self {
        entrypoint.text
    }
}

impl fmt::Display for Entrypoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn file_and_function_are_told_apart() {
        for (text, stem, function) in [
            ("handler.handle", "handler", "handle"),
            ("src/app.main", "src/app", "main"),
            ("src.app.main", "src/app", "main"),
            ("my-file.$f_1", "my-file", "$f_1"),
        ] {
            let parsed: Entrypoint = text.parse().unwrap();
            assert_eq!(
                (parsed.file_stem().as_str(), parsed.function(), parsed.as_str()),
                (stem, function, text)
            );
        }
        assert_eq!(Entrypoint::default(), "handler.handle".parse().unwrap());
    }

    #[test]
    fn what_is_not_file_and_function_is_refused() {
        for bad in [
            "", "handler", ".handle", "handler.", "/etc/x.y", "../x.y", "a//b.c", "a.1", "a b.c", "a\0.b",
            "a\\b.c", "-m.x",
        ] {
            assert_eq!(bad.parse::<Entrypoint>().unwrap_err().field, "entrypoint", "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn the_file_never_leaves_the_folder(text in "\\PC{0,40}") {
            if let Ok(parsed) = text.parse::<Entrypoint>() {
                let stem = parsed.file_stem();
                prop_assert!(!stem.starts_with('/') && stem.split('/').all(|s| !s.is_empty() && s != ".."));
                prop_assert_eq!(parsed.as_str(), text.as_str());
            }
        }
    }
}
