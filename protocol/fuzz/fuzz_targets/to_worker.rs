//! What is decoded is encoded to the same again.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sless_protocol::frame::ToWorker;

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = ToWorker::decode(&mut buffer) {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        assert_eq!(ToWorker::decode(&mut out), Ok(Some(frame)));
        assert!(out.is_empty());
    }
});
