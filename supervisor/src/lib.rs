//! The supervisor: the process that owns the workers of one function, and records what happened to each call.

pub mod console;
pub mod logs;
pub mod mask;
pub mod process;
pub mod report;
