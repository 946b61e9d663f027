//! Python's byte code, made once and for good: in a pod nobody could keep it, as all but `/tmp` is read-only.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiles what lies in `folder`, as it will be found at `place`.
///
/// The byte code is not compared with its source when it is loaded (PEP 552, `unchecked-hash`): times in an image are all the same.
/// A file that is no Python of this version is left as it is.
///
/// # Errors
/// When the interpreter can't be started.
pub fn python(interpreter: &str, folder: &Path, place: &str) -> io::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut command = Command::new(interpreter);
    command.args(["-S", "-P", "-m", "compileall", "-qqf", "--invalidation-mode", "unchecked-hash"]);
    command.arg("-s").arg(folder).arg("-p").arg(place).arg(folder);
    // A fixed seed: sets of constants are written in the order of their hashes, and equal input is to give equal bytes.
    command.env_clear().env("PATH", path).env("PYTHONHASHSEED", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Its exit code tells of files that do not compile.
    command.status().map(|_| ())
}
