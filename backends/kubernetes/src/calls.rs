//! Tells the controller that somebody calls a function, so that what nobody calls can end and what is called stays or begins.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use sless_backend::{BackendError, FunctionRef, Moment};
use sless_crds::Function;
use sless_crds::names::LAST_CALL;
use tokio::time::Instant;

use crate::error::{is_not_found, within};

/// Field manager of annotations that tell of calls: no write of somebody.
pub(crate) const CALLS: &str = "sless-api-calls";
/// At most so often for one function.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// As many functions as are remembered before the old ones are forgotten.
const MANY: usize = 10_000;

/// Who has been told of, and when to tell again.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    next: Mutex<HashMap<FunctionRef, Instant>>,
}

impl Calls {
    fn next(&self) -> MutexGuard<'_, HashMap<FunctionRef, Instant>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to look after the function again; if so, not again within [`EVERY`].
    pub(crate) fn due(&self, function: &FunctionRef, now: Instant) -> bool {
        let mut next = self.next();
        if next.get(function).is_some_and(|next| *next > now) {
            return false;
        }
        if next.len() >= MANY {
            next.retain(|_, next| *next > now);
        }
        next.insert(function.clone(), now + EVERY);
        true
    }

    /// It is to be looked after again from `then` on.
    pub(crate) fn again_at(&self, function: &FunctionRef, then: Instant) {
        if let Some(next) = self.next().get_mut(function) {
            *next = then;
        }
    }
}

/// Writes that a function is called now.
///
/// # Errors
/// [`BackendError::Unavailable`] may be tried again.
pub(crate) async fn tell(client: &Client, function: &FunctionRef) -> Result<(), BackendError> {
    annotate(client, function, LAST_CALL, &Moment::now().rfc3339()).await
}

/// Sets one annotation of a Function. One that is gone is nobody's fault.
///
/// # Errors
/// [`BackendError::Unavailable`] may be tried again.
pub(crate) async fn annotate(
    client: &Client,
    function: &FunctionRef,
    name: &str,
    value: &str,
) -> Result<(), BackendError> {
    let functions = Api::<Function>::namespaced(client.clone(), function.namespace.as_str());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {name: value}}}));
    let params = PatchParams { field_manager: Some(CALLS.to_owned()), ..PatchParams::default() };
    let patched = async {
        match functions.patch_metadata(function.name.as_str(), &params, &patch).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    };
    within(&format!("annotate Function {function}"), patched).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_called_all_the_time_is_looked_after_every_now_and_then() {
        let (calls, now) = (Calls::default(), Instant::now());
        let f = FunctionRef { namespace: "team".parse().unwrap(), name: "f".parse().unwrap() };
        let due = |after: u64| calls.due(&f, now + Duration::from_secs(after));
        assert!(due(0) && !due(4) && due(5) && !due(6) && due(10));
        calls.again_at(&f, now + Duration::from_secs(100));
        assert!(!due(99) && due(100));
        calls.again_at(&f, now + Duration::from_secs(101));
        assert!(due(101));
    }
}
