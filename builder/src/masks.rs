//! Keeps secrets of installers out of a build's log and messages.
//!
//! What is hidden is the credential alone, not the address of an index: who reads "401" must see of which host.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const MASK: &str = "***";
/// As with the values that handlers are given: shorter ones would take ordinary words with them.
const SHORTEST: usize = 6;

/// Texts that become `***`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Masks(Vec<String>);

impl Masks {
    /// A variable of an installer's.
    pub(crate) fn variable(&mut self, name: &str, value: &str) {
        let of_npm = name.to_ascii_lowercase().starts_with("npm_config_");
        if value.contains("://") || name.starts_with("PIP_") || (of_npm && !is_secret(name)) {
            self.addresses(value);
        } else {
            self.hide(value);
        }
    }

    /// A file of settings.
    pub(crate) fn file(&mut self, path: &str, text: &str) {
        self.addresses(text);
        if path.ends_with("netrc") {
            let words: Vec<_> = text.split_whitespace().collect();
            for pair in words.windows(2).filter(|pair| pair.first() == Some(&"password")) {
                pair.last().iter().for_each(|word| self.hide(word));
            }
            return;
        }
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            if is_secret(key) {
                self.hide(value.trim().trim_matches('"'));
            }
        }
    }

    /// What stands before the `@` of the addresses in `text`.
    pub(crate) fn addresses(&mut self, text: &str) {
        for rest in text.split("://").skip(1) {
            let end = rest.find(['/', '?', '#', '"', '\'', ' ', '\t', '\n']).unwrap_or(rest.len());
            let Some((who, _)) = rest.get(..end).and_then(|authority| authority.rsplit_once('@')) else {
                continue;
            };
            let (user, password) = who.split_once(':').unwrap_or(("", who));
            self.hide(password);
            let (user, plain) = (percent_decoded(user), percent_decoded(password));
            self.push(STANDARD.encode(format!("{user}:{plain}")));
            self.hide(&plain);
        }
    }

    fn hide(&mut self, value: &str) {
        for line in value.lines().map(str::trim) {
            self.push(line.to_owned());
            // `_auth` and `_password` of npm are Base64 of what is secret.
            if let Some(inner) = STANDARD.decode(line).ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                let password = inner.split_once(':').map_or(inner.as_str(), |(_, password)| password);
                self.push(password.to_owned());
            }
        }
    }

    fn push(&mut self, text: String) {
        if text.len() >= SHORTEST && !self.0.contains(&text) {
            self.0.push(text);
            // Of two that begin alike the longer one must go first.
            self.0.sort_by_key(|text| std::cmp::Reverse(text.len()));
        }
    }

    pub(crate) fn apply(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["auth", "token", "password", "secret"].iter().any(|word| key.contains(word))
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_and_addresses_stay() {
        let mut masks = Masks::default();
        masks.variable("PIP_INDEX_URL", "https://me:t0ken%2Ftwo@index.example:8443/simple");
        masks.variable("NPM_TOKEN", "npm_abcdef123");
        masks.variable("PIP_TRUSTED_HOST", "index.example");
        masks.file(".npmrc", "registry=https://r.example/\n//r.example/:_authToken=deadbeefcafe\n");
        masks.file(".netrc", "machine m.example login me password hunter22\n");
        for (text, seen) in [
            (
                "401 for https://me:t0ken%2Ftwo@index.example:8443/simple",
                "401 for https://me:***@index.example:8443/simple",
            ),
            ("plain t0ken/two and npm_abcdef123, deadbeefcafe, hunter22", "plain *** and ***, ***, ***"),
            ("index.example, r.example and m.example", "index.example, r.example and m.example"),
        ] {
            assert_eq!(masks.apply(text), seen);
        }
        let basic = STANDARD.encode("me:t0ken/two");
        assert_eq!(masks.apply(&format!("Basic {basic}")), "Basic ***");
    }

    #[test]
    fn what_is_encoded_is_hidden_in_both_forms() {
        let mut masks = Masks::default();
        let auth = STANDARD.encode("me:longer-password");
        masks.file(".npmrc", &format!("//r.example/:_auth = \"{auth}\""));
        assert_eq!(masks.apply(&format!("{auth} longer-password")), "*** ***");
        masks.variable("SHORT", "abc");
        assert_eq!(masks.apply("abc"), "abc");
    }
}
