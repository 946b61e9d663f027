//! What the client's errors mean.

use std::time::Duration;

use kube::Error;
use kube::core::Status;
use sless_backend::BackendError;

/// What the API server answered, if it did.
pub(crate) fn answer(error: &Error) -> Option<&Status> {
    match error {
        Error::Api(status) => Some(status),
        _ => None,
    }
}

pub(crate) fn is_not_found(error: &Error) -> bool {
    answer(error).is_some_and(Status::is_not_found)
}

pub(crate) fn is_already_there(error: &Error) -> bool {
    answer(error).is_some_and(Status::is_already_exists)
}

/// What did not work now and may later.
pub(crate) fn unavailable(action: impl Into<String>) -> impl FnOnce(Error) -> BackendError {
    move |source| BackendError::Unavailable { action: action.into(), source: Box::new(source) }
}

/// Longest wait for one answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer didn't come in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {PATIENCE:?}")]
pub(crate) struct Late;

/// Waits for an answer, but not for ever.
///
/// # Errors
/// [`BackendError::Unavailable`]; `action` is a verb in the present, with its object.
pub(crate) async fn within<T>(
    action: &str,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, BackendError> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(unavailable(action)),
        Err(_) => Err(BackendError::Unavailable { action: action.to_owned(), source: Box::new(Late) }),
    }
}
