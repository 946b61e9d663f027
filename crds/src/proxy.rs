//! What the API and a function's supervisor know each other by.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use sless_core::{Digest, FunctionName, Namespace};

/// The proxy token of a function, made from the installation's key: who learns one learns no other.
#[must_use]
pub fn proxy_token(key: &[u8], namespace: &Namespace, function: &FunctionName) -> String {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(format!("{namespace}/{function}").as_bytes());
    Digest::new(mac.finalize().into_bytes().into()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pods that run hold theirs: it must not change with a version.
    #[test]
    fn a_token_is_that_of_one_function_and_key_for_ever() {
        let token =
            |key: &[u8], ns: &str, name: &str| proxy_token(key, &ns.parse().unwrap(), &name.parse().unwrap());
        assert_eq!(
            token(b"key", "team", "hello"),
            "da8ca667260ec2b77f08a76e9d2a7aa5f6c0397b2d0cafc95cf1421500794309"
        );
        for other in
            [token(b"kez", "team", "hello"), token(b"key", "tea", "mhello"), token(b"key", "team", "hell")]
        {
            assert_ne!(other, token(b"key", "team", "hello"));
        }
    }
}
