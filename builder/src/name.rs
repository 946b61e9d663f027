//! Names inside an archive: what is put right, what is left out, what is refused.

/// Deeper trees than this are refused: some file systems and most tools give up long before.
const MAX_DEPTH: usize = 300;
/// `PATH_MAX` of Linux.
const MAX_LENGTH: usize = 4096;
/// `NAME_MAX` of the usual file systems.
const MAX_COMPONENT: usize = 255;
/// Where installed dependencies go, beside the author's files.
pub(crate) const OWN_FOLDER: &str = ".sless";

/// Why a name cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    #[error("it is an absolute path")]
    Absolute,
    #[error("it begins with a drive letter")]
    Drive,
    #[error("it leads out of the archive")]
    Escapes,
    #[error("it holds a NUL character")]
    Nul,
    #[error("it is longer than {MAX_LENGTH} bytes")]
    Long,
    #[error("a part of it is longer than {MAX_COMPONENT} bytes")]
    LongComponent,
    #[error("it is more than {MAX_DEPTH} folders deep")]
    Deep,
    #[error("the folder .sless is where the platform puts dependencies")]
    Reserved,
}

/// What becomes of an entry, judged by its name alone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A clean relative path: parts joined by `/`, none of them empty, `.` or `..`.
    Path { path: String, folder: bool },
    /// What archivers and tools leave behind; not part of the function.
    Ignored,
}

/// Puts `name` right, as far as there is only one way to read it.
pub(crate) fn repair(name: &str) -> Result<Named, NameProblem> {
    if name.contains('\0') {
        return Err(NameProblem::Nul);
    }
    // Windows tools write back-slashes, which the format does not allow. A file that really has one in
    // its name does not come out of any archiver that people use for functions.
    let name = name.replace('\\', "/");
    if name.len() > MAX_LENGTH {
        return Err(NameProblem::Long);
    }
    if name.starts_with('/') {
        return Err(NameProblem::Absolute);
    }
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(NameProblem::Escapes),
            part if part.len() > MAX_COMPONENT => return Err(NameProblem::LongComponent),
            part => parts.push(part),
        }
    }
    let Some(first) = parts.first() else { return Ok(Named::Ignored) };
    if let [letter, b':', ..] = first.as_bytes()
        && letter.is_ascii_alphabetic()
    {
        return Err(NameProblem::Drive);
    }
    if parts.len() > MAX_DEPTH {
        return Err(NameProblem::Deep);
    }
    if *first == "__MACOSX" || parts.contains(&".git") || parts.last() == Some(&".DS_Store") {
        return Ok(Named::Ignored);
    }
    Ok(Named::Path { path: parts.join("/"), folder: name.ends_with('/') })
}

/// Whether `path` (a repaired one, top folder already stripped) lies where only the platform writes.
pub(crate) fn is_reserved(path: &str) -> bool {
    path.split('/').next() == Some(OWN_FOLDER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(path: &str, folder: bool) -> Result<Named, NameProblem> {
        Ok(Named::Path { path: path.into(), folder })
    }

    #[test]
    fn odd_names_are_put_right() {
        assert_eq!(repair("./handler.py"), path("handler.py", false));
        assert_eq!(repair("lib\\util.js"), path("lib/util.js", false));
        assert_eq!(repair("a//b/./c"), path("a/b/c", false));
        assert_eq!(repair("sub/"), path("sub", true));
        assert_eq!(repair("ünï/🦀.py"), path("ünï/🦀.py", false));
        assert_eq!(repair("..hidden/...x"), path("..hidden/...x", false));
    }

    #[test]
    fn leftovers_are_ignored() {
        for name in ["__MACOSX/project/._handler.py", "a/.DS_Store", ".git/config", "a/.git/x", "./", ""] {
            assert_eq!(repair(name), Ok(Named::Ignored), "{name}");
        }
        assert_eq!(repair(".gitignore"), path(".gitignore", false));
    }

    #[test]
    fn hostile_names_are_refused() {
        for (name, problem) in [
            ("../handler.py", NameProblem::Escapes),
            ("a\\..\\..\\up.py", NameProblem::Escapes),
            ("__MACOSX/../../x", NameProblem::Escapes),
            ("a/..", NameProblem::Escapes),
            ("/etc/x", NameProblem::Absolute),
            ("\\\\server\\share", NameProblem::Absolute),
            ("C:\\x.py", NameProblem::Drive),
            ("./c:x", NameProblem::Drive),
            ("a\0b", NameProblem::Nul),
        ] {
            assert_eq!(repair(name), Err(problem), "{name:?}");
        }
        assert_eq!(repair(&"a/".repeat(301)), Err(NameProblem::Deep));
        assert_eq!(repair(&"abcdefgh/".repeat(500)), Err(NameProblem::Long));
        assert_eq!(repair(&"x".repeat(256)), Err(NameProblem::LongComponent));
    }

    proptest! {
        #[test]
        fn a_repaired_name_stays_inside_and_repairs_to_itself(name in "([a-zA-Z.:/\\\\é\0]|\\.\\./){0,40}") {
            if let Ok(Named::Path { path, .. }) = repair(&name) {
                prop_assert!(!path.is_empty() && !path.starts_with('/') && !path.contains('\\'));
                prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
                prop_assert_eq!(repair(&path), Ok(Named::Path { path: path.clone(), folder: false }));
            }
        }
    }
}
