//! Images of functions in the registry that nobody needs any more.

use sless_backend::FunctionRef;

use crate::context::Context;
use crate::error::chain;

/// Where the images of a function are.
pub(crate) fn repository(registry: &str, of: &FunctionRef) -> String {
    format!("{registry}/{}/{}", of.namespace, of.name)
}

/// The tag of an image: what is in it, and on which runtime image. Equal input has an equal tag.
pub(crate) fn tag(identity: &str, runtime_image: &str) -> String {
    let short = |text: &str, length| text.get(..length).unwrap_or(text).to_owned();
    let digest = runtime_image.rsplit_once("sha256:").map_or("", |(_, hex)| hex);
    format!("{}-{}", short(identity, 20), short(digest, 8))
}

/// Removes these tags of a function, all if none is named, with the images that they name.
///
/// # Errors
/// What the registry says, in words.
pub(crate) async fn remove(context: &Context, of: &FunctionRef, tags: &[String]) -> Result<(), String> {
    let repository = repository(&context.config.registry, of);
    context.registry.remove(&repository, tags).await.map(drop).map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_what_is_in_it_and_below_it() {
        let (identity, image) = ("ab".repeat(32), format!("r/x@sha256:{}", "12".repeat(32)));
        assert_eq!(tag(&identity, &image), format!("{}-12121212", "ab".repeat(10)));
    }
}
