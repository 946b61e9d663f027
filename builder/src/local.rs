//! Whether an install needs more of the function's folder than its manifest and lock file.

use serde_json::Value;

/// Whether a `requirements.txt` names files or folders that lie beside it.
pub(crate) fn requirements(text: &str) -> bool {
    const OPTIONS: [&str; 6] = ["-r", "-c", "-e", "--requirement", "--constraint", "--editable"];
    const ARCHIVES: [&str; 6] = [".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar"];
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
    let mut words = lines
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.split([' ', '\t', '=', ',', ';']))
        .filter(|word| !word.is_empty());
    words.any(|word| {
        let lower = word.to_ascii_lowercase();
        let remote = word.contains("://") && !lower.contains("file:");
        OPTIONS.iter().any(|option| word == *option || (option.len() == 2 && word.starts_with(option)))
            || lower.contains("file:")
            || word.starts_with('.')
            || (!remote && (word.contains('/') || ARCHIVES.iter().any(|end| lower.ends_with(end))))
    })
}

/// Whether npm needs more for this `package.json` and the text of its lock file.
pub(crate) fn package(manifest: &Value, lock: &str) -> bool {
    const SCRIPTS: [&str; 8] = [
        "preinstall",
        "install",
        "postinstall",
        "prepublish",
        "preprepare",
        "prepare",
        "postprepare",
        "dependencies",
    ];
    const LISTS: [&str; 5] =
        ["dependencies", "optionalDependencies", "devDependencies", "peerDependencies", "overrides"];
    let scripts = manifest.get("scripts").and_then(Value::as_object);
    scripts.is_some_and(|scripts| SCRIPTS.iter().any(|name| scripts.contains_key(*name)))
        || manifest.get("workspaces").is_some()
        || LISTS.iter().filter_map(|list| manifest.get(*list)).any(names_a_path)
        || ["\"file:", "\"link:", "\"link\": true"].iter().any(|mark| lock.contains(mark))
}

/// In `overrides` objects lie in objects.
fn names_a_path(list: &Value) -> bool {
    match list {
        Value::String(text) => {
            ["file:", "link:", ".", "/", "~/"].iter().any(|start| text.starts_with(start))
                || text.ends_with(".tgz") && !text.contains("://")
        }
        Value::Object(object) => object.values().any(names_a_path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_in_requirements_are_found() {
        for plain in [
            "six==1.16.0\nrequests[socks] >= 2, < 3 ; python_version > '3' # see ./docs",
            "# -r other.txt\n--index-url https://me:x@i.example/simple\nthing @ https://e.example/t-1.whl",
            "six==1.16.0 --hash=sha256:00aa\n--extra-index-url=https://e.example/a\npkg @ git+https://e.example/r.git@main",
        ] {
            assert!(!requirements(plain), "{plain}");
        }
        for local in [
            "-r more.txt",
            "-rmore.txt",
            "--constraint=c.txt",
            "-e .",
            "./dep",
            "dep/",
            "dep-1.0.whl",
            "vendor/a.tar.gz",
            "thing @ file:///x",
            "--find-links wheels/",
            "six\n  ..",
        ] {
            assert!(requirements(local), "{local}");
        }
    }

    #[test]
    fn paths_and_scripts_in_packages_are_found() {
        let plain = json!({"scripts": {"test": "x"}, "dependencies": {"a": "^1.0.0", "b": "https://e.example/b.tgz", "c": "npm:d@~1"}});
        assert!(!package(&plain, r#"{"resolved": "https://r/a.tgz"}"#));
        assert!(package(&plain, r#"{"resolved": "file:dep"}"#));
        for local in [
            json!({"scripts": {"postinstall": "x"}}),
            json!({"dependencies": {"a": "file:./a"}}),
            json!({"dependencies": {"a": "../a"}}),
            json!({"dependencies": {"a": "a.tgz"}}),
            json!({"overrides": {"a": {"b": "file:b"}}}),
            json!({"workspaces": ["a"]}),
        ] {
            assert!(package(&local, ""), "{local}");
        }
    }
}
