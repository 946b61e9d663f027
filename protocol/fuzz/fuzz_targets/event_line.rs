//! A supervisor's line is only believed as far as it can be read; what is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sless_protocol::event::Event;

fuzz_target!(|line: &[u8]| {
    if let Ok(event) = serde_json::from_slice::<Event>(line) {
        let again = serde_json::to_vec(&event).expect("an event has a JSON form");
        let back: Event = serde_json::from_slice(&again).expect("what was written is read");
        assert_eq!((back.seq, back.attempt, back.invocation_id), (event.seq, event.attempt, event.invocation_id));
    }
});
