//! Writes the definitions into a folder: `cargo run -p sless-crds -- crds/manifests`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder: PathBuf = std::env::args_os().nth(1).ok_or("usage: sless-crds FOLDER")?.into();
    std::fs::create_dir_all(&folder)?;
    for definition in sless_crds::definitions() {
        std::fs::write(folder.join(definition.file), definition.to_yaml()?)?;
    }
    Ok(())
}
