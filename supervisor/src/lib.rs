//! The supervisor: the process that owns the workers of one function.

pub mod process;
