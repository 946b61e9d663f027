//! From a built folder to an OCI image.
//!
//! A folder that strangers' installers have written becomes one layer: no link is followed, nothing but files, folders and links inside of
//! it is taken, and equal content gives an equal digest, wherever and whenever it is packed. [`Registry::append`] puts layers on top of
//! a runtime's image: blobs of the base are mounted in the registry, not copied, and a layer that is there already is not sent again.

mod image;
mod layer;
mod registry;
mod tree;

pub use image::ImageError;
pub use layer::{Layer, MEDIA_TYPE, pack};
pub use registry::{Added, Pushed, Registry, RegistryError, repository};
pub use tree::TreeError;
