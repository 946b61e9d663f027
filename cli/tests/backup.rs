//! A host that goes on from its backup.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]
#![allow(dead_code, reason = "of the support, this file uses a part")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use support::Host;

#[test]
fn a_host_goes_on_from_its_backup() {
    let mut host = Host::start();
    let handler = "import os\ndef handle(event, context):\n    print('said', event['n'])\n    return os.environ.get('BUILT', 'none')\n";
    let folder = host.folder("f", &[("handler.py", handler)]);
    host.good(&["deploy", &folder, "--env", "BUILT=once"]);
    assert_eq!(host.good(&["invoke", "f", "-d", r#"{"n": 1}"#]), "once");
    host.until(|| host.good(&["invocations", "f"]).contains("success"));
    let history = host.good(&["invocations", "f", "-o", "json"]);
    let token = fs::read_to_string(host.data().join("private/token")).unwrap();

    // While it runs.
    let file = host.folder.path().join("backup.tar.gz");
    let file = file.to_str().unwrap();
    let said = host.good(&["backup", file]);
    assert!(said.contains(file), "{said}");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "it holds keys");
    let beside: Vec<_> = fs::read_dir(host.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(
        beside.iter().filter(|name| name.to_string_lossy().contains("backup")).count(),
        1,
        "{beside:?}"
    );

    let refused = host.cli(&["restore", file]);
    assert!(refused.code == 6 && refused.err.contains("not empty"), "{refused:?}");

    host.stop(Signal::SIGKILL);
    let builds = |host: &Host| {
        let mut names: Vec<_> = fs::read_dir(host.data().join("functions/default/f"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let built = builds(&host);
    fs::remove_dir_all(host.data()).unwrap();
    host.good(&["restore", file]);
    host.start_again();
    assert_eq!(host.good(&["invocations", "f", "-o", "json"]), history);
    assert_eq!(fs::read_to_string(host.data().join("private/token")).unwrap(), token);
    host.until(|| host.cli(&["invoke", "f", "-d", r#"{"n": 2}"#]).out == "once");
    assert_eq!(builds(&host), built, "nothing is built again");
    assert_eq!(fs::metadata(host.data().join("private")).unwrap().permissions().mode() & 0o777, 0o700);
    let url = "/fn/default/f?n=3";
    assert!(host.http("GET", url, "").unwrap().starts_with("HTTP/1.1 200"), "its trigger is there again");
}

#[test]
fn half_a_backup_is_not_restored() {
    let mut host = Host::start();
    let file = host.folder.path().join("b.tar.gz");
    let name = file.to_str().unwrap();
    host.good(&["backup", name]);
    host.stop(Signal::SIGTERM);
    let whole = fs::read(&file).unwrap();
    fs::rename(host.data(), host.folder.path().join("old")).unwrap();
    for part in [&whole[..whole.len() / 2], &whole[..whole.len() - 4], b"junk"] {
        fs::write(&file, part).unwrap();
        let refused = host.cli(&["restore", name]);
        assert!(refused.code == 6 && refused.err.contains("restore from"), "{refused:?}");
        assert!(!host.data().exists(), "nothing is left of it");
    }
    fs::write(&file, &whole).unwrap();
    host.good(&["restore", name]);
    assert!(host.data().join("private/sless.db").is_file());
    let nowhere = host.cli(&["backup", name, "--data-dir", "/nowhere"]);
    assert!(nowhere.code == 6 && nowhere.err.contains("no data folder"), "{nowhere:?}");
}
