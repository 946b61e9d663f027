//! Bytes on wires: the frames between supervisor and worker (`docs/protocol.md`), and the report events
//! that go from the supervisor to the API. No I/O here.

pub mod event;
pub mod frame;
pub mod handshake;
pub mod page;
