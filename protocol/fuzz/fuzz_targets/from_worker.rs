//! A worker is untrusted: no bytes make the decoder panic or grow, and how they are cut changes nothing.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sless_protocol::frame::Decoder;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let step = usize::from(step) + 1;
    let (mut whole, mut decoder) = (BytesMut::from(bytes), Decoder::new(1 << 16));
    let wanted: Vec<_> = std::iter::from_fn(|| decoder.decode(&mut whole).transpose()).take_while(Result::is_ok).collect();
    let (mut cut, mut decoder, mut got) = (BytesMut::new(), Decoder::new(1 << 16), Vec::new());
    'pieces: for piece in bytes.chunks(step) {
        cut.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut cut) {
                Ok(Some(frame)) => got.push(Ok(frame)),
                Ok(None) => break,
                Err(_) => break 'pieces,
            }
        }
    }
    assert_eq!(got, wanted);
});
