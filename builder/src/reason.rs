//! Finds in what an installer printed the lines that say why it failed.

/// Lines of the reason at most, and characters of each.
const LINES: usize = 6;
const CHARACTERS: usize = 300;

/// How pip begins, in its own log, to tell of an address that it could not read.
pub(crate) const OF_PIP: &str = "Could not fetch URL ";

/// What npm adds to every error, and what only shows where in npm or Node.js it happened.
const NOISE: [&str; 12] = [
    "A complete log of this run",
    "If you were ",
    "If you forgot",
    "To correct this",
    "To create a new account",
    "Or to create",
    "npm login",
    "Note that you can also install",
    "tarball, folder, http url",
    "path /",
    "command failed",
    "at ",
];

/// The reason in one line; `lines` are the last ones, without space around them.
pub(crate) fn reason(lines: &[&str]) -> String {
    let mut found: Vec<&str> = Vec::new();
    // An index that refuses or is away, which the error itself does not tell: it calls the package missing.
    found.extend(lines.iter().rev().find(|line| is_of_index(line)).copied());
    let npm = errors_of_npm(lines);
    if npm.iter().any(|error| error.starts_with("command ")) {
        found.extend(words_of_script(lines));
    }
    if npm.is_empty() {
        found.extend(errors_of_pip(lines));
    } else {
        found.extend(npm);
    }
    if found.is_empty() {
        let last = lines.iter().filter(|line| !line.is_empty()).rev().take(LINES);
        found = last.copied().collect::<Vec<_>>().into_iter().rev().collect();
    }
    found.dedup();
    let cut = |line: &&str| line.chars().take(CHARACTERS).collect::<String>();
    found.iter().take(LINES).map(cut).collect::<Vec<_>>().join("; ")
}

fn is_of_index(line: &str) -> bool {
    if let Some(fetch) = line.strip_prefix("npm http fetch ") {
        // `GET 401 URL …`
        let status = fetch.split(' ').nth(1).unwrap_or_default();
        return matches!(status, "401" | "403" | "407") || (status.len() == 3 && status.starts_with('5'));
    }
    line.starts_with(OF_PIP)
        || line
            .strip_prefix("WARNING: ")
            .is_some_and(|warning| warning.contains(" Error, ") || warning.starts_with("Retrying"))
}

fn errors_of_npm<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut errors = Vec::new();
    for line in lines {
        let Some(text) = line.strip_prefix("npm error").or_else(|| line.strip_prefix("npm ERR!")) else {
            continue;
        };
        let text = text.trim();
        let words = text.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
        if !words.is_empty() && !NOISE.iter().any(|noise| words.starts_with(noise)) {
            errors.push(text);
        }
    }
    errors
}

/// What a script of the function's own has printed, which npm passes on and does not repeat: its error, or its last words.
fn words_of_script<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let end = lines.iter().position(|line| line.starts_with("npm error") || line.starts_with("npm ERR!"));
    let before = lines.get(..end.unwrap_or(lines.len())).unwrap_or_default();
    let begin = before.iter().rposition(|line| line.starts_with("> ")).map_or(0, |at| at + 1);
    let said = before.get(begin..).unwrap_or_default();
    let mut said = said.iter().filter(|line| {
        !line.is_empty()
            && !line.starts_with("at ")
            && !line.starts_with("npm ")
            && !line.starts_with("Node.js v")
    });
    let error =
        said.clone().find(|line| ["Error", "error:", "fatal:"].iter().any(|word| line.contains(word)));
    match error {
        Some(error) => vec![*error],
        None => said.next_back().into_iter().copied().collect(),
    }
}

fn errors_of_pip<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut errors = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("ERROR:") {
            errors.push(*line);
        } else if *line == "[end of output]" {
            // The last words of what failed to build.
            errors.extend(lines.get(..at).unwrap_or_default().iter().rev().find(|line| !line.is_empty()));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        reason(&text.lines().map(str::trim).collect::<Vec<_>>())
    }

    #[test]
    fn pip_says_it_after_error() {
        let text = "Looking in links\nERROR: No matching distribution found for six==99\n[notice] a new pip";
        assert_eq!(of(text), "ERROR: No matching distribution found for six==99");
        let refused = "WARNING: 401 Error, Credentials not correct for http://i.example/simple/x/\nERROR: Could not find a version that satisfies x (from versions: none)";
        assert!(
            of(refused).starts_with("WARNING: 401 Error, Credentials not correct for http://i.example"),
            "{}",
            of(refused)
        );
        let silent = "ERROR: No matching distribution found for x\nCould not fetch URL http://i.example/simple/x/: 401 Client Error: Unauthorized";
        assert!(
            of(silent).starts_with("Could not fetch URL http://i.example/simple/x/: 401"),
            "{}",
            of(silent)
        );
        let compiled = "error: subprocess-exited-with-error\n× Getting requirements did not run\n╰─> [2 lines of output]\nTraceback\nRuntimeError: libfoo is missing\n[end of output]\nERROR: Failed to build x";
        assert_eq!(of(compiled), "RuntimeError: libfoo is missing; ERROR: Failed to build x");
    }

    #[test]
    fn npm_says_it_first_and_then_much_else() {
        let missing = "npm error code E404\nnpm error 404 Not Found - GET https://r.example/x - Not found\nnpm error 404\nnpm error 404  'x@1' is not in this registry.\nnpm error 404\nnpm error 404 Note that you can also install from a\nnpm error 404 tarball, folder, http url, or git folder.\nnpm error A complete log of this run can be found in: /x";
        assert_eq!(
            of(missing),
            "code E404; 404 Not Found - GET https://r.example/x - Not found; 404  'x@1' is not in this registry."
        );
        let refused = "npm http fetch GET 401 http://r.example/x 9ms\nnpm error code E401\nnpm error Incorrect or missing password.\nnpm error If you were trying to login, change your password";
        assert_eq!(
            of(refused),
            "npm http fetch GET 401 http://r.example/x 9ms; code E401; Incorrect or missing password."
        );
        let script = "npm error code 3\nnpm error path /a/b\nnpm error command failed\nnpm error command sh -c node x.js\nnpm error Error: no cheese\nnpm error     at x.js:1";
        assert_eq!(of(script), "code 3; command sh -c node x.js; Error: no cheese");
        let own = "> f@1.0.0 preinstall\n> node x.js\n\nx.js:1\nthrow\n^\nRangeError: too large\nat x.js:1\nNode.js v20\nnpm error code 1\nnpm error command failed\nnpm error command sh -c node x.js";
        assert_eq!(of(own), "RangeError: too large; code 1; command sh -c node x.js");
    }

    #[test]
    fn without_any_error_the_last_lines_have_to_do() {
        assert_eq!(of("one\n\ntwo"), "one; two");
        assert_eq!(of(""), "");
    }
}
