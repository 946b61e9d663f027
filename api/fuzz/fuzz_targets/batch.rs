//! A batch of records: every line is either taken or refused, and what a line holds is nobody else's trouble.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let lines = body.split(|b| *b == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace)).count();
    let (taken, refused) = sless_api::fuzz_batch(body);
    assert_eq!(taken + refused, lines as u64);
});
