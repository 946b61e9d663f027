//! An entrypoint of any text is either refused or names files below the function's folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sless_builder::candidates;
use sless_core::Entrypoint;

fuzz_target!(|text: &str| {
    let Ok(entrypoint) = text.parse::<Entrypoint>() else { return };
    assert_eq!(entrypoint.as_str(), text);
    for runtime in ["python3.11", "nodejs20"] {
        let Ok(runtime) = runtime.parse() else { continue };
        for path in candidates(&runtime, &entrypoint) {
            assert!(!path.starts_with('/') && !path.contains('\0') && !path.contains('\\'));
            assert!(path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }
    }
});
