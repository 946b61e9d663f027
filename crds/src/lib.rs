//! `Function`, `Trigger` and `FunctionJob` of `sless.kube5s.ru/v1alpha1`: the objects that `kubectl apply` and the API both write.
//!
//! Names, ranges and defaults of settings come from the one table of `sless-core`, in camel case; what a schema cannot say stands in
//! CEL rules (<https://kubernetes.io/docs/reference/using-api/cel/>), so that the API server itself refuses what can be wrong.
//! `cargo run -p sless-crds` prints the definitions; `crds/manifests` keeps them.

mod case;
mod definitions;
mod function;
pub mod hosts;
mod http;
mod job;
pub mod names;
mod number;
mod proxy;
mod revision;
mod rules;
mod status;
mod table;
mod trigger;

pub use definitions::{Definition, definitions};
pub use function::{BuildStatus, Function, FunctionSpec, FunctionStatus, RetrySpec, Source};
pub use job::{FunctionJob, FunctionJobSpec, FunctionJobStatus, JobPhase};
pub use proxy::proxy_token;
pub use revision::RevisionData;
pub use status::{ConditionType, Phase, condition};
pub use trigger::{
    CatchUp, ConnectionRef, Cors, Overlap, Runner, Trigger, TriggerSpec, TriggerStatus, TriggerType,
};

/// The API group of all three.
pub const GROUP: &str = "sless.kube5s.ru";
/// The one version there is.
pub const VERSION: &str = "v1alpha1";
/// Removed from an object only when nothing of it is left, in other namespaces too.
pub const FINALIZER: &str = "sless.kube5s.ru/cleanup";
/// The key in S3 of the code that was built last: the same one is not built again.
pub const LAST_BUILT_S3KEY: &str = "sless.kube5s.ru/last-built-s3key";
