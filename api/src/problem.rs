//! What a caller is told when it does not get what it asked for: RFC 9457, with a stable `code`.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use sless_backend::{BackendError, CodeError};
use sless_core::FieldError;

use crate::store::StoreError;

/// The codes that leave this process. Each stands in `docs/errors.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum Code {
    AlreadyExists,
    BadGateway,
    Conflict,
    Forbidden,
    Internal,
    Invalid,
    MethodNotAllowed,
    NotFound,
    NotReady,
    TooLarge,
    Unauthorized,
    Unavailable,
}

impl Code {
    pub(crate) const ALL: [Self; 12] = [
        Self::AlreadyExists,
        Self::BadGateway,
        Self::Conflict,
        Self::Forbidden,
        Self::Internal,
        Self::Invalid,
        Self::MethodNotAllowed,
        Self::NotFound,
        Self::NotReady,
        Self::TooLarge,
        Self::Unauthorized,
        Self::Unavailable,
    ];

    /// The usual status, and the title.
    #[must_use]
    pub(crate) fn status_and_title(self) -> (StatusCode, &'static str) {
        match self {
            Self::AlreadyExists => (StatusCode::CONFLICT, "It exists already"),
            Self::BadGateway => (StatusCode::BAD_GATEWAY, "The function's supervisor did not answer"),
            Self::Conflict => (StatusCode::CONFLICT, "Not possible in its present state"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "The token's role does not allow this"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong here"),
            Self::Invalid => (StatusCode::BAD_REQUEST, "The request is not valid"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "This method is not allowed here"),
            Self::NotFound => (StatusCode::NOT_FOUND, "Not found"),
            Self::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "Not ready yet"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Too large"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "A valid token is needed"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "Not possible now, try again"),
        }
    }
}

/// An answer that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    pub(crate) field: Option<String>,
    pub(crate) headers: Vec<(http::HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Body<'a> {
    status: u16,
    title: &'a str,
    detail: &'a str,
    code: Code,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.status_and_title().0,
            detail: detail.into(),
            field: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {what}"))
    }

    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Code::Invalid, detail) }
    }

    #[must_use]
    pub(crate) fn unauthorized() -> Self {
        let mut problem =
            Self::new(Code::Unauthorized, "send a valid token as 'Authorization: Bearer TOKEN'");
        problem.headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"sless\"")));
        problem
    }

    /// No revision can answer; asking again soon makes sense.
    pub(crate) fn not_ready(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(Code::NotReady, detail);
        problem.headers.push((RETRY_AFTER, HeaderValue::from_static("1")));
        problem
    }

    /// Something that the API needs is away; what was asked for has not been done, and may be asked for again.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(Code::Unavailable, detail);
        problem.headers.push((RETRY_AFTER, HeaderValue::from_static("1")));
        problem
    }

    /// An `If-Match` that no longer matches.
    #[must_use]
    pub(crate) fn stale() -> Self {
        let detail = "it has changed since: read it again and apply the change to what it is now";
        Self { status: StatusCode::PRECONDITION_FAILED, ..Self::new(Code::Conflict, detail) }
    }

    /// The cause goes to the log, the caller hears only that it was not its fault.
    pub(crate) fn internal(action: &str, cause: &dyn std::error::Error) -> Self {
        tracing::error!(error = %chain(cause), "failed to {action}");
        Self::new(Code::Internal, format!("failed to {action}; the log of the API says why"))
    }

    /// As a response of whatever body type `from` makes out of bytes.
    pub(crate) fn response<B>(&self, from: impl FnOnce(Bytes) -> B) -> http::Response<B> {
        let body = Body {
            status: self.status.as_u16(),
            title: self.code.status_and_title().1,
            detail: &self.detail,
            code: self.code,
            field: self.field.as_deref(),
        };
        let mut response = http::Response::new(from(serde_json::to_vec(&body).unwrap_or_default().into()));
        *response.status_mut() = self.status;
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.extend(self.headers.iter().cloned());
        response
    }
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// As an error, for what goes on without a caller.
impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response(|bytes| axum::body::Body::new(Full::new(bytes)))
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        let detail = error.to_string();
        Self::invalid(error.field, detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Exists => Self::new(Code::AlreadyExists, "something of this name exists already"),
            StoreError::HostTaken => Self {
                field: Some("host".to_owned()),
                ..Self::new(Code::Conflict, "host: another trigger has it, here or in another namespace")
            },
            StoreError::HostRefused(why) => Self::invalid("host", format!("host: {why}")),
            StoreError::NamespaceRefused(why) => Self::new(Code::Conflict, why),
            StoreError::Invalid(error) => error.into(),
            StoreError::Stale => Self::stale(),
            StoreError::NoSecret(name) => {
                Self::invalid("secrets", format!("secrets: there is no secret {name:?} in this namespace"))
            }
            StoreError::Gone => Self::new(Code::NotFound, "it is not there any more"),
            StoreError::Away { .. } => {
                tracing::warn!(error = %chain(&error), "what keeps functions and records can't be used now");
                Self::unavailable(
                    "what keeps functions and records (the database; on a cluster also its API server) can't be used now, try again",
                )
            }
            StoreError::Failed { .. } => Self::internal("read or write what is kept", &error),
        }
    }
}

impl From<BackendError> for Problem {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Conflict(detail) => Self::new(Code::Conflict, detail),
            BackendError::Unavailable { .. } => {
                tracing::warn!(error = %chain(&error), "the backend is not available");
                Self::unavailable("the backend that runs functions is not available now")
            }
        }
    }
}

impl From<CodeError> for Problem {
    fn from(error: CodeError) -> Self {
        match error {
            CodeError::NotFound(_) => Self::internal("find the uploaded code", &error),
            CodeError::Failed { .. } => {
                tracing::warn!(error = %chain(&error), "the store of uploaded code can't be used now");
                Self::unavailable("the store of uploaded code can't be used now, try again")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_fields_of_rfc_9457_and_its_code() {
        let response = Problem::invalid("timeout_sec", "timeout_sec: too long").response(|b| b);
        assert_eq!(
            (response.status().as_u16(), response.headers()[CONTENT_TYPE].as_bytes()),
            (400, &b"application/problem+json"[..])
        );
        let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(
            (&json["status"], &json["code"], &json["field"]),
            (&400.into(), &"Invalid".into(), &"timeout_sec".into())
        );
        assert_eq!(Problem::stale().response(|b| b).status().as_u16(), 412);
        assert!(Problem::unauthorized().response(|b| b).headers().contains_key(WWW_AUTHENTICATE));
    }

    #[test]
    fn every_code_is_explained_in_the_docs_and_no_other() {
        let page = include_str!("../../docs/errors.md");
        let section = page.split("## Codes of the API").nth(1).unwrap().split("\n## ").next().unwrap();
        let mut written: Vec<_> =
            section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
        let mut codes: Vec<_> = Code::ALL.iter().map(|c| format!("{c:?}")).collect();
        written.sort_unstable();
        codes.sort_unstable();
        assert_eq!(written, codes);
    }
}
