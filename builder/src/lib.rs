//! From an uploaded zip to a folder that a worker can run.
//!
//! [`inspect`] reads an archive as a hostile thing and says what it holds or why it is not taken;
//! [`unpack`] puts it into a fresh folder under the same rules; [`build`] does that and installs the
//! dependencies that `requirements.txt` or `package.json` name. Nothing of the author's is run in this
//! process, and what installers run sees nothing of this process's environment.

mod access;
mod build;
mod cage;
mod entry;
mod family;
mod install;
mod intake;
mod local;
mod log;
mod masks;
mod name;
mod platform;
mod reason;
mod shared;
mod step;
mod unpack;

pub use access::IndexAccess;
pub use build::{BuildError, BuildJob, Built, Placing, build};
pub use cage::{CageError, Caged, enter as enter_cage};
pub use entry::candidates;
pub use intake::{Contents, IntakeError, Limits, inspect};
pub use log::{LogLine, read_log};
pub use name::NameProblem;
pub use step::{HostEnvironment, Memory};
pub use unpack::unpack;
