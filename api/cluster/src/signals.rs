//! SIGTERM, and SIGINT for those who try things out.

use std::fmt;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    Term,
    Int,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Term => "SIGTERM",
            Self::Int => "SIGINT",
        })
    }
}

impl Which {
    /// As shells have it: 128 + signal.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Term => 143,
            Self::Int => 130,
        }
    }
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) -> Which {
        tokio::select! {
            _ = self.term.recv() => Which::Term,
            _ = self.int.recv() => Which::Int,
        }
    }
}
