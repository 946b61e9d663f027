//! Where functions run and what defines them, as the API sees it: the traits [`Backend`] and [`Definitions`], [`fake`]s [in memory](fake_definitions)
//! for tests, and the suites that everything must pass that implements one: [`suite`], [`definitions_suite`], [`code_suite`].
//!
//! The seam lies at *desired state*: the API says what should be true and hears what is. Processes, pods, images and ports stay behind it.

pub mod code_suite;
pub mod definitions_suite;
pub mod fake;
pub mod fake_definitions;
pub mod suite;

mod code;
mod definitions;
mod moment;
mod types;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;
use sless_core::Runtime;

pub use code::{CodeError, CodeStore};
pub use definitions::{
    DefinitionError, Definitions, FunctionChange, FunctionRow, Reachable, RevisionRow, SecretRow, TriggerRow,
    TriggerWish,
};
pub use moment::Moment;
pub use types::{
    BackendError, BuildStatus, CodeRef, Endpoint, FunctionRef, FunctionSpec, FunctionStatus, Generation,
    Identity, LogLine, Revision, Secret,
};

/// A stream that owns what it needs.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// Where functions run. Speaks of desired state, never of pods or processes.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The runtimes that there are.
    fn runtimes(&self) -> Vec<Runtime>;

    /// Asks for `spec`; returns as soon as the wish is known, not when it has come true.
    ///
    /// `generation` only grows for a function; a call with an older one than the last is ignored. The same revision again is
    /// not built or started again, unless it has failed (then it is tried once more), but its status then tells of `generation`.
    /// With other values in its secrets it is not built again, but gets new workers, as a new revision would.
    /// A revision that does not build or load never replaces one that answers.
    ///
    /// # Errors
    /// [`BackendError::Conflict`] if somebody else owns what would be changed; [`BackendError::Unavailable`] may be tried again.
    async fn apply_function(&self, spec: FunctionSpec, generation: Generation) -> Result<(), BackendError>;

    /// Removes it and all that it made; returns as soon as the wish is known. Gone already counts as success.
    ///
    /// Afterwards [`Backend::endpoints`] gives nothing for it, and once all of it is gone [`Backend::status`] is `None` and a
    /// status with `gone` has been sent to the watchers.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] may be tried again.
    async fn delete_function(&self, function: &FunctionRef) -> Result<(), BackendError>;

    /// What is known of a function now; `None` when there is nothing of it. Cheap.
    fn status(&self, function: &FunctionRef) -> Option<FunctionStatus>;

    /// The present state of every function first, then each change. Ends only on shutdown.
    fn watch_functions(&self) -> BoxStream<FunctionStatus>;

    /// Addresses that can take a call now, best first; empty while none is ready. Cheap: asked for each call.
    ///
    /// Who calls one of them keeps the list for as long as the call runs. A backend that replaces the list drains what is no
    /// longer in it only when nobody holds the old one (`Arc::strong_count`), so that a change fails no call.
    fn endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]>;

    /// Addresses of a supervisor of any revision that is kept, once it takes calls: that which answers anyway, else one that is
    /// started for it and ends a while after the last holder has let go of the list.
    ///
    /// # Errors
    /// [`BackendError::Conflict`] if its code is not built or does not load; [`BackendError::Unavailable`] may be tried again.
    async fn revision_endpoints(
        &self,
        function: &FunctionRef,
        revision: Revision,
    ) -> Result<Arc<[Endpoint]>, BackendError>;

    /// Every supervisor that may have calls of a function in hand: also those that drain, and those of earlier revisions.
    fn supervisors(&self, function: &FunctionRef) -> Vec<Endpoint>;

    /// Somebody calls a function that has no endpoint: if none need run at the moment, that changes. Whether one is to be expected,
    /// so that it is worth waiting for [`Backend::awake`]. Asked for each such call, and again while it waits.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] may be tried again.
    async fn wake(&self, _function: &FunctionRef) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Returns as soon as [`Backend::endpoints`] has something for the function.
    ///
    /// # Cancel safety
    /// It may be dropped and asked for again.
    async fn awake(&self, function: &FunctionRef);

    /// A function with endpoints is called, so that a backend that ends what nobody calls knows. Cheap: told for each call.
    fn called(&self, _function: &FunctionRef) {}

    /// What the proxy sends as `X-Sless-Proxy-Token` to a function's supervisors, so that they believe its headers. Cheap.
    fn proxy_token(&self, function: &FunctionRef) -> Secret;

    /// Whose token for the internal listener this is; `None` if nobody's.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] may be tried again.
    async fn platform_identity(&self, token: &str) -> Result<Option<Identity>, BackendError>;

    /// The last build of a function. `None` if there was none. Cheap.
    fn build(&self, function: &FunctionRef) -> Option<BuildStatus>;

    /// The log of a build so far, without its first `from` lines. `None` if the backend does not have it: it never had, or has it
    /// no longer.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] may be tried again.
    async fn build_log(
        &self,
        function: &FunctionRef,
        build: &str,
        from: usize,
    ) -> Result<Option<Vec<LogLine>>, BackendError>;

    /// Lets running calls finish, ends all that this process has started and the watchers' streams. What was asked for is not forgotten.
    async fn shutdown(&self);
}
