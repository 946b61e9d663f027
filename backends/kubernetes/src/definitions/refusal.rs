//! What the API server's refusals mean to who defines something.

use std::time::Duration;

use kube::Error;
use kube::core::Status;
use sless_backend::DefinitionError;
use sless_core::FieldError;

use crate::error::answer;

/// Longest wait for one answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for an answer, but not for ever; `action` is a verb in the present, with its object.
pub(super) async fn asked<T>(
    action: &'static str,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, DefinitionError> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(refused(action)),
        Err(late) => Err(DefinitionError::Away { action, source: Box::new(late) }),
    }
}

pub(super) fn refused(action: &'static str) -> impl FnOnce(Error) -> DefinitionError {
    move |error| {
        let Some(status) = answer(&error) else {
            return match error {
                Error::SerdeError(_) | Error::BuildRequest(_) | Error::HttpError(_) => failed(action, error),
                other => DefinitionError::Away { action, source: Box::new(other) },
            };
        };
        let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
        if causes.iter().any(|cause| cause.reason == "NamespaceTerminating") {
            return DefinitionError::NamespaceRefused("the namespace is being deleted".to_owned());
        }
        if status.is_already_exists() {
            return DefinitionError::Exists;
        }
        if status.is_conflict() {
            return DefinitionError::Stale;
        }
        if status.is_not_found() {
            return DefinitionError::Gone;
        }
        if status.is_invalid() {
            return DefinitionError::Invalid(field(status));
        }
        match status.code {
            429 | 500..=599 => DefinitionError::Away { action, source: Box::new(error) },
            _ => failed(action, error),
        }
    }
}

/// What is wrong with what was written, in the API's words as far as they are the same ones.
fn field(status: &Status) -> FieldError {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let named = causes.iter().find(|cause| !matches!(cause.field.as_str(), "" | "<nil>"));
    let Some(cause) = named else { return FieldError::new("spec", status.message.clone()) };
    let mut snake = String::with_capacity(cause.field.len());
    for c in cause.field.strip_prefix("spec.").unwrap_or(&cause.field).chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    FieldError::new(snake, cause.message.clone())
}

/// A fault of ours, or of who has changed an object.
pub(super) fn failed(
    action: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> DefinitionError {
    DefinitionError::Failed { action, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answered(value: Value) -> DefinitionError {
        refused("test")(Error::Api(Box::new(serde_json::from_value(value).unwrap())))
    }

    #[test]
    fn each_answer_has_its_meaning() {
        assert!(matches!(answered(json!({"reason": "AlreadyExists", "code": 409})), DefinitionError::Exists));
        assert!(matches!(answered(json!({"reason": "Conflict", "code": 409})), DefinitionError::Stale));
        assert!(matches!(answered(json!({"reason": "NotFound", "code": 404})), DefinitionError::Gone));
        for code in [429, 500, 503, 504] {
            assert!(
                matches!(answered(json!({"reason": "x", "code": code})), DefinitionError::Away { .. }),
                "{code}"
            );
        }
        assert!(matches!(
            answered(json!({"reason": "Forbidden", "code": 403})),
            DefinitionError::Failed { .. }
        ));
        let ending = json!({"reason": "Forbidden", "code": 403, "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}});
        assert!(matches!(answered(ending), DefinitionError::NamespaceRefused(_)));
    }

    #[test]
    fn what_is_wrong_is_named_as_the_api_names_it() {
        let with = |causes: Value| json!({"reason": "Invalid", "code": 422, "message": "all of it", "details": {"causes": causes}});
        let causes = json!([{"field": "<nil>", "message": "not checked"}, {"field": "spec.retry.maxAttempts", "message": "too many"}]);
        let DefinitionError::Invalid(error) = answered(with(causes)) else { panic!("it is invalid") };
        assert_eq!((error.field.as_str(), error.message.as_str()), ("retry.max_attempts", "too many"));
        let DefinitionError::Invalid(error) = answered(with(json!([]))) else { panic!("it is invalid") };
        assert_eq!(error.message, "all of it");
    }
}
