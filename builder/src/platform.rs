//! Finds what was built for another machine: extension modules and addons that a handler could not load, wheels that pip could not install.
//!
//! Packages that bring one file for each platform are right as they are, so files of one name are looked at together: one that
//! fits is enough.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Beginnings of what follows a module's name where its file says for which platform it is.
const PLATFORMS: [&str; 6] = ["-darwin", "-linux", "-win32", "-freebsd", "-android", "."];

/// A file that nothing here can use, and no other file of its name can stand in for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// Relative to the function's folder.
    pub(crate) path: String,
    /// For what it is.
    pub(crate) built_for: String,
}

/// Looks through the function in `folder`, but for its folder `except`, which an installer will make anew.
pub(crate) fn misfit(folder: &Path, except: Option<&Path>) -> io::Result<Option<Misfit>> {
    let mut groups = BTreeMap::new();
    look(folder, folder, except, &mut groups)?;
    Ok(groups.into_values().flatten().next())
}

/// By name; `None` as soon as one of the name fits.
type Groups = BTreeMap<String, Option<Misfit>>;

fn look(folder: &Path, root: &Path, except: Option<&Path>, groups: &mut Groups) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let relative = path.strip_prefix(root).unwrap_or(&path);
        if entry.file_type()?.is_dir() {
            if Some(relative) != except {
                look(&path, root, except, groups)?;
            }
            continue;
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some((group, built_for)) = judge(name, || beginning(&path))? else { continue };
        let fits = built_for.is_none();
        let place = relative.to_string_lossy().into_owned();
        let known = groups
            .entry(group)
            .or_insert_with(|| built_for.map(|built_for| Misfit { path: place, built_for }));
        if fits {
            *known = None;
        }
    }
    Ok(())
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a file is a variant of, and for which other machine it is; `None` if it is nothing of that kind.
fn judge(
    name: &str,
    bytes: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<Option<(String, Option<String>)>> {
    let lower = name.to_ascii_lowercase();
    if let Some(wheel) = lower.strip_suffix(".whl") {
        return Ok(wheel_platform(wheel));
    }
    if !(lower.ends_with(".so") || lower.ends_with(".node") || lower.ends_with(".pyd")) {
        return Ok(None);
    }
    let end = PLATFORMS.iter().filter_map(|mark| lower.find(mark)).min().unwrap_or(lower.len());
    let group = lower.get(..end).unwrap_or_default().to_owned();
    Ok(Some((group, other_machine(&bytes()?))))
}

/// What the first bytes of a program say; `None` if it is for this machine, or nothing that is known.
fn other_machine(bytes: &[u8]) -> Option<String> {
    match bytes {
        [0x7f, b'E', b'L', b'F', ..] => {
            // `e_machine`, little-endian on all that is told apart here (elf(5)).
            let machine = u16::from_le_bytes([*bytes.get(18)?, *bytes.get(19)?]);
            let known = [(62, "x86_64"), (183, "aarch64"), (40, "arm"), (3, "x86"), (243, "riscv64")];
            let (_, name) = known.iter().find(|(number, _)| *number == machine)?;
            (*name != std::env::consts::ARCH).then(|| format!("Linux on {name}"))
        }
        [b'M', b'Z', ..] => Some("Windows".to_owned()),
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => Some("macOS".to_owned()),
        _ => None,
    }
}

/// Of `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM` (the binary distribution format of Python packages).
fn wheel_platform(wheel: &str) -> Option<(String, Option<String>)> {
    let parts: Vec<_> = wheel.split('-').collect();
    let (name, platform) = (*parts.first()?, *parts.last().filter(|_| parts.len() >= 5)?);
    let arch = std::env::consts::ARCH;
    // Several are joined by dots; one that fits is enough.
    let fits = platform.split('.').any(|one| one == "any" || (one.contains("linux") && one.ends_with(arch)));
    Some((format!("{name}.whl"), (!fits).then(|| platform.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(machine: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend(machine.to_le_bytes());
        bytes
    }

    fn own() -> Vec<u8> {
        elf(if cfg!(target_arch = "x86_64") { 62 } else { 183 })
    }

    fn found(files: &[(&str, &[u8])], except: Option<&str>) -> Option<(String, String)> {
        let root = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        misfit(root.path(), except.map(Path::new)).unwrap().map(|m| (m.path, m.built_for))
    }

    #[test]
    fn what_no_file_of_this_machine_stands_in_for_is_found() {
        let mac = [0xcf, 0xfa, 0xed, 0xfe, 7, 0, 0, 1];
        assert_eq!(
            found(&[("lib/a.cpython-311-darwin.so", &mac)], None),
            Some(("lib/a.cpython-311-darwin.so".into(), "macOS".into()))
        );
        assert_eq!(found(&[("lib/a.cp311-win_amd64.pyd", b"MZ")], None).unwrap().1, "Windows");
        assert_eq!(found(&[("build/Release/a.node", &elf(40))], None).unwrap().1, "Linux on arm");
        assert_eq!(
            found(&[("w/numpy-2.0-cp311-cp311-macosx_14_0_arm64.whl", b"")], None).unwrap().1,
            "macosx_14_0_arm64"
        );
    }

    #[test]
    fn what_fits_or_has_a_variant_that_fits_is_left_alone() {
        let mac = [0xcf, 0xfa, 0xed, 0xfe, 7, 0, 0, 1];
        assert_eq!(
            found(&[("a.node", &own()), ("b.so", b"no program at all"), ("c.txt", b"MZ")], None),
            None
        );
        let prebuilt: [(&str, &[u8]); 2] =
            [("prebuilds/darwin-arm64/node.napi.node", &mac), ("prebuilds/linux-x64/node.napi.node", &own())];
        assert_eq!(found(&prebuilt, None), None);
        let packages: [(&str, &[u8]); 2] =
            [("a/swc.darwin-arm64.node", &mac), ("b/swc.linux-x64-gnu.node", &own())];
        assert_eq!(found(&packages, None), None);
        let arch = std::env::consts::ARCH;
        let fits = format!("w/numpy-2.0-cp311-cp311-manylinux_2_17_{arch}.manylinux2014_{arch}.whl");
        assert_eq!(
            found(
                &[
                    ("w/numpy-2.0-cp311-cp311-win_amd64.whl", b""),
                    (&fits, b""),
                    ("six-1.16.0-py2.py3-none-any.whl", b"")
                ],
                None
            ),
            None
        );
        assert_eq!(found(&[("node_modules/a/a.node", &mac)], Some("node_modules")), None);
    }
}
