//! The processes of a pod: how workers are started, watched, ended and buried.
//!
//! ```text
//! supervisor ──▶ keeper ──▶ worker ──▶ whatever the handler starts
//!     │            │ subreaper: whatever loses its parent below becomes its child
//!     │            └ one per worker, so "all descendants of this worker" is exact
//!     └ subreaper too: if a keeper is killed its orphans come here and are killed
//! ```
//!
//! [`Reaper`] is the one place that waits for children. [`Family`] is a worker with all that descends
//! from it, [`Cage`] what keeps it from the supervisor's secrets. Everything here belongs to one thread.

mod cage;
mod family;
pub mod memory;
mod pipes;
mod reaper;
mod signals;
mod sys;
mod tree;

pub use cage::{Cage, CageError, CageMode, Warning};
pub use family::{Ending, Exit, Family};
pub use pipes::{SharedPage, pipe_pair, readiness, socket_pair};
pub use reaper::{Launch, Reaper};
pub use signals::{Caught, Signals};

/// Gives memory that is free back to the system: after large bodies the C library keeps it, and a supervisor shares its
/// memory limit with its workers.
pub fn give_back_memory() {
    sys::trim();
}
