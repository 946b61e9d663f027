//! Names: DNS labels (RFC 1123), so that each can be part of a URL, of a host name and of a Kubernetes object's name.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// Longest label that DNS has.
const LABEL_MAX: usize = 63;
/// Longest name that DNS has.
const HOST_MAX: usize = 253;
/// What runs lives in `sless-fn-{namespace}`, itself a label.
const NAMESPACE_MAX: usize = LABEL_MAX - "sless-fn-".len();

fn check_label(text: &str, max: usize) -> Result<(), String> {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    if bytes.len() > max {
        return Err(format!("has {} characters, at most {max} are allowed", bytes.len()));
    }
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if inner && edge(bytes.first()) && edge(bytes.last()) {
        return Ok(());
    }
    Err("must be a DNS label: lower-case letters, digits and '-', with a letter or digit at both ends"
        .to_owned())
}

fn check_namespace(text: &str) -> Result<(), String> {
    check_label(text, NAMESPACE_MAX)?;
    if text.starts_with("kube-") || text.starts_with("sless") {
        return Err("must not begin with 'kube-' or 'sless'".to_owned());
    }
    Ok(())
}

fn check_name(text: &str) -> Result<(), String> {
    check_label(text, LABEL_MAX)
}

/// A full name of a host (RFC 1123): at least two labels, the last one not a number, so that it is no address.
fn check_host(text: &str) -> Result<(), String> {
    let labels: Vec<&str> = text.split('.').collect();
    let number = |label: &&str| label.bytes().all(|b| b.is_ascii_digit());
    let whole = text.len() <= HOST_MAX
        && labels.len() > 1
        && labels.iter().all(|label| check_label(label, LABEL_MAX).is_ok())
        && !labels.last().is_some_and(number);
    if whole {
        return Ok(());
    }
    Err("must be the full name of a host in lower case, without a port, as in 'shop.example.org'".to_owned())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $field:literal, $check:path) => {
        $(#[$doc])*
        ///
        /// Cheap to clone; exists only once it has been checked.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = FieldError;

            fn from_str(text: &str) -> Result<Self, FieldError> {
                $check(text).map_err(|message| FieldError::new($field, message))?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $type {
            type Error = FieldError;

            fn try_from(text: String) -> Result<Self, FieldError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

name!(
    /// A namespace: what a token is bound to.
    Namespace, "namespace", check_namespace
);
name!(
    /// The name of a host that calls are sent to.
    HostName, "host", check_host
);
name!(
    /// The name of a function in its namespace.
    FunctionName, "name", check_name
);
name!(
    /// The name of a trigger in its namespace.
    TriggerName, "name", check_name
);
name!(
    /// The name of a secret in its namespace.
    SecretName, "name", check_name
);
name!(
    /// The name of a token in its namespace.
    TokenName, "name", check_name
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_taken_and_everything_else_is_refused() {
        for good in ["a", "0", "hello-2", &"a".repeat(63)] {
            assert_eq!(good.parse::<FunctionName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "../x", "é", "a b", "a\0", &"a".repeat(64)] {
            assert_eq!(bad.parse::<FunctionName>().unwrap_err().field, "name", "{bad:?}");
        }
    }

    #[test]
    fn a_namespace_leaves_room_for_its_prefix_and_keeps_off_reserved_ones() {
        assert!("a".repeat(54).parse::<Namespace>().is_ok());
        for bad in ["a".repeat(55).as_str(), "kube-system", "sless", "sless-x", "slessy"] {
            assert_eq!(bad.parse::<Namespace>().unwrap_err().field, "namespace", "{bad}");
        }
        assert!("kube".parse::<Namespace>().is_ok());
    }
}
