//! Which file of the archive an entrypoint means.

use sless_core::{Entrypoint, Runtime};

/// The files that may hold the handler, best first, as the language's shim looks for them.
///
/// Empty for a runtime whose file names are not known here: then nothing is checked at upload, and the
/// worker's own message says what is missing.
pub fn candidates(runtime: &Runtime, entrypoint: &Entrypoint) -> Vec<String> {
    let extensions: &[&str] = match runtime.as_str() {
        name if name.starts_with("python") => &[".py", "/__init__.py"],
        name if name.starts_with("nodejs") => &[".js", ".mjs", ".cjs"],
        _ => &[],
    };
    let stem = entrypoint.file_stem();
    extensions.iter().map(|end| format!("{stem}{end}")).collect()
}

/// Where the handler is, in an archive that has the files `paths`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Where it belongs.
    Top,
    /// Below the archive's only top folder, which is to be stripped.
    BelowSingleFolder(String),
    /// Nowhere that counts; the paths are where such files are.
    Elsewhere(Vec<String>),
}

/// Finds the handler. `paths` are all files and folders of the archive.
pub(crate) fn locate<'a>(paths: impl Iterator<Item = &'a str> + Clone, candidates: &[String]) -> Location {
    let wanted = |path: &str| candidates.iter().any(|c| c == path);
    let single = single_folder(paths.clone());
    if candidates.is_empty() {
        // Nothing to look for. A lone top folder is the archiver's doing all the same.
        return single.map_or(Location::Top, |folder| Location::BelowSingleFolder(folder.to_owned()));
    }
    if paths.clone().any(wanted) {
        return Location::Top;
    }
    let below = |folder: &str, path: &str| path.strip_prefix(folder)?.strip_prefix('/').map(wanted);
    if let Some(folder) = single
        && paths.clone().any(|path| below(folder, path) == Some(true))
    {
        return Location::BelowSingleFolder(folder.to_owned());
    }
    let similar = |path: &&str| {
        candidates.iter().any(|c| path.strip_suffix(c.as_str()).is_some_and(|p| p.ends_with('/')))
    };
    Location::Elsewhere(paths.filter(similar).take(5).map(str::to_owned).collect())
}

fn single_folder<'a>(mut paths: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let (folder, _) = paths.clone().find_map(|path| path.split_once('/'))?;
    paths
        .all(|path| path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
        .then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(runtime: &str, entrypoint: &str) -> Vec<String> {
        candidates(&runtime.parse().unwrap(), &entrypoint.parse().unwrap())
    }

    fn found(paths: &[&str]) -> Location {
        locate(paths.iter().copied(), &of("python3.11", "handler.handle"))
    }

    #[test]
    fn an_entrypoint_names_files() {
        assert_eq!(of("python3.11", "handler.handle"), ["handler.py", "handler/__init__.py"]);
        assert_eq!(of("nodejs20", "src/app.main"), ["src/app.js", "src/app.mjs", "src/app.cjs"]);
        assert_eq!(of("python3.11", "src.app.main"), ["src/app.py", "src/app/__init__.py"]);
        assert!(of("ruby3", "a.b").is_empty());
    }

    #[test]
    fn the_handler_is_found_at_the_top_or_in_the_single_folder() {
        assert_eq!(found(&["handler.py", "lib/a.py"]), Location::Top);
        assert_eq!(found(&["handler/__init__.py"]), Location::Top);
        assert_eq!(found(&["project", "project/handler.py"]), Location::BelowSingleFolder("project".into()));
    }

    #[test]
    fn elsewhere_names_what_looks_like_it() {
        let both = vec!["a/handler.py".to_owned(), "b/handler.py".to_owned()];
        assert_eq!(found(&["a/handler.py", "b/handler.py"]), Location::Elsewhere(both));
        assert_eq!(found(&["main.py"]), Location::Elsewhere(vec![]));
        assert_eq!(found(&["a/b/handler.py"]), Location::Elsewhere(vec!["a/b/handler.py".into()]));
        assert_eq!(
            found(&["project/handler.py", "README"]),
            Location::Elsewhere(vec!["project/handler.py".into()])
        );
    }
}
