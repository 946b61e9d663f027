//! Objects for tests.

use serde_json::json;
use sless_crds::Function;

/// A function of `python3.11` with code, whose digest is `code` over and over.
pub(crate) fn function(namespace: &str, name: &str, code: u8) -> Function {
    let sha256 = format!("{code:02x}").repeat(32);
    serde_json::from_value(json!({
        "apiVersion": "sless.kube5s.ru/v1alpha1",
        "kind": "Function",
        "metadata": { "name": name, "namespace": namespace, "uid": "u", "generation": 1 },
        "spec": { "runtime": "python3.11", "source": { "key": format!("{namespace}/{name}/{sha256}.zip"), "sha256": sha256 } },
    }))
    .unwrap()
}
