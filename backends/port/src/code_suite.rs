//! What every code store must do, as one test: `code_suite::run(&store, folder).await` panics where it does not.

use std::fs;
use std::io::Read;
use std::path::Path;

use sless_core::Digest;

use crate::{CodeError, CodeStore, FunctionRef};

fn function(name: &str) -> FunctionRef {
    let namespace = "default".parse().expect("it is a name");
    FunctionRef { namespace, name: name.parse().expect("it is a name") }
}

#[expect(clippy::panic, reason = "tests panic")]
async fn kept(store: &dyn CodeStore, function: &FunctionRef, digest: &Digest) -> Option<Vec<u8>> {
    match store.get(function, digest).await {
        Ok(mut file) => {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("what is kept can be read");
            Some(bytes)
        }
        Err(CodeError::NotFound(missing)) => {
            assert_eq!(missing, *digest);
            None
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

async fn listed(store: &dyn CodeStore, function: &FunctionRef) -> Vec<Digest> {
    let mut all = store.list(function).await.expect("can be listed");
    all.sort_by_key(|digest| digest.to_string());
    all
}

/// Runs all cases on an empty store; `folder` is for the files that are put.
///
/// # Panics
/// Where the store breaks a promise of the trait.
pub async fn run(store: &dyn CodeStore, folder: &Path) {
    // One name is the beginning of another: they must not see each other's.
    let (f, f2) = (function("f"), function("f2"));
    let (one, other) = (Digest::new([1; 32]), Digest::new([2; 32]));
    assert_eq!(kept(store, &f, &one).await, None);
    assert_eq!(listed(store, &f).await, []);
    store.delete(&f, &one).await.expect("gone already is success");

    // Larger than what a client sends or takes at once, and nothing at all.
    let large: Vec<u8> = (0_u32..3_000_000).flat_map(u32::to_le_bytes).collect();
    let upload = folder.join("upload");
    for (function, digest, bytes) in [(&f, &one, large.as_slice()), (&f, &other, b""), (&f2, &other, b"zip")]
    {
        fs::write(&upload, bytes).expect("the folder can be written");
        store.put_if_absent(function, digest, &upload).await.expect("is kept");
        assert!(kept(store, function, digest).await.is_some_and(|kept| kept == bytes));
    }
    assert_eq!((listed(store, &f).await, listed(store, &f2).await), (vec![one, other], vec![other]));

    fs::write(&upload, b"another").expect("the folder can be written");
    store.put_if_absent(&f2, &other, &upload).await.expect("is there");
    assert_eq!(kept(store, &f2, &other).await.as_deref(), Some(&b"zip"[..]), "what is there stays");
    let missing = store.put_if_absent(&f2, &one, &folder.join("nothing")).await;
    assert!(matches!(missing, Err(CodeError::Failed { .. })), "{missing:?}");
    assert_eq!(listed(store, &f2).await, [other], "what failed leaves nothing");

    for _ in 0..2 {
        store.delete(&f, &other).await.expect("is removed");
        assert_eq!((listed(store, &f).await, kept(store, &f, &other).await), (vec![one], None));
    }
    assert!(kept(store, &f2, &other).await.is_some(), "others keep theirs");
    store.delete(&f, &one).await.expect("is removed");
    store.delete(&f2, &other).await.expect("is removed");
    assert_eq!((listed(store, &f).await, listed(store, &f2).await), (vec![], vec![]));
}
