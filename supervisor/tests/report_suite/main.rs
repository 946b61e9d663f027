//! Records from the outside: a reporter and an API in trouble.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod delivery;
mod recovery;
mod sink;
