use sha2::{Digest as _, Sha256};

use crate::{Digest, FunctionSettings, Runtime};

/// How many digits a revision's name has.
const LENGTH: usize = 12;

/// The name of the revision that code and settings make: the same ones, the same name.
///
/// `content` is the SHA-256 of what is in the code's zip, or of the zip itself where only that is known.
#[must_use]
pub fn revision_name(runtime: &Runtime, settings: &FunctionSettings, content: &Digest) -> String {
    let mut hash = Sha256::new();
    hash.update(content.bytes());
    hash.update(runtime.as_str());
    hash.update([0]);
    hash.update(settings.revised());
    let mut name = Digest::new(hash.finalize().into()).to_string();
    name.truncate(LENGTH);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are kept in databases and objects: they must never change.
    #[test]
    fn the_name_of_a_revision_is_for_ever() {
        let (runtime, settings) = ("python3.11".parse().unwrap(), FunctionSettings::default());
        let name = revision_name(&runtime, &settings, &Digest::new([1; 32]));
        assert_eq!(name, revision_name(&runtime, &settings, &Digest::new([1; 32])));
        assert_ne!(name, revision_name(&runtime, &settings, &Digest::new([2; 32])));
        assert_ne!(name, revision_name(&"nodejs20".parse().unwrap(), &settings, &Digest::new([1; 32])));
        assert_eq!(name.len(), LENGTH);
    }
}
