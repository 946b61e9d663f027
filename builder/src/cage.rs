//! Keeps what installers run from the host's secrets.
//!
//! Scripts of packages run as the host's user. Landlock (Linux 5.13) takes from them what lies in the hidden folder. The host's
//! environment in `/proc` is out of reach of a user's processes because the host is not dumpable, and of root's because they have
//! no capabilities (Landlock lets a caged process read it: seen on Linux 6.18, where only attaching is denied).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use caps::CapSet;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

/// The newest version whose rights are asked for; an older kernel gives those that it has.
const VERSION: ABI = ABI::V6;

/// Whether the kernel does what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caged {
    Yes,
    /// This kernel has no Landlock.
    No,
}

/// Why a process could not be caged.
#[derive(Debug, thiserror::Error)]
pub enum CageError {
    #[error("set the rules of Landlock")]
    Landlock(#[from] RulesetError),
    #[error("give up capabilities")]
    Capabilities(#[source] io::Error),
}

/// Puts this process, and all that it starts from now on, where nothing in `hidden` can be read or written, but for `allowed`.
///
/// Landlock knows only permissions: every sibling along the way to `hidden` is allowed. What appears beside the way later is
/// not; builds have a home and a folder for temporary files of their own. Capabilities are gone with the next `exec`.
///
/// # Errors
/// When the kernel refuses rules that it says it knows.
pub fn enter(hidden: &Path, allowed: &[PathBuf]) -> Result<Caged, CageError> {
    give_up_capabilities().map_err(|e| CageError::Capabilities(io::Error::other(e)))?;
    let all = AccessFs::from_all(VERSION);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(VERSION))?
        .create()?
        // Names are no secret, and many tools list the folders above.
        .add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(beside(hidden), all))?
        .add_rules(path_beneath_rules(allowed, all))?
        .restrict_self()?;
    Ok(if status.ruleset == RulesetStatus::NotEnforced { Caged::No } else { Caged::Yes })
}

/// What root gets with an `exec` is limited by the bounding set.
fn give_up_capabilities() -> Result<(), caps::errors::CapsError> {
    if !caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        // Not root, or already without.
        return Ok(());
    }
    for capability in caps::runtime::thread_all_supported() {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    caps::clear(None, CapSet::Inheritable)
}

/// Everything but `hidden`: what lies beside it, beside its folder, and so on up to the root.
fn beside(hidden: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in hidden.ancestors().skip(1) {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        // A link's target counts by itself, wherever it is.
        let real = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_symlink());
        found.extend(
            entries.flatten().filter(real).map(|e| e.path()).filter(|path| !hidden.starts_with(path)),
        );
    }
    found
}
