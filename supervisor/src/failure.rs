//! How an invocation ends other than well. One variant is one row of the contract's table.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use sless_protocol::event::Status;

/// Why a call has no answer of the handler's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{message}")]
    Raised { kind: String, message: String },
    #[error("the handler's response is not valid: {reason}")]
    InvalidResponse { reason: String },
    #[error("the result has {size} bytes, the limit is {limit}")]
    ResponseTooLarge { size: u64, limit: u64 },
    #[error("the handler did not finish within {} s", seconds(.limit))]
    Timeout { limit: Duration },
    #[error("{how}")]
    WorkerExited { how: String },
    #[error("{how}")]
    OutOfMemory { how: String },
    #[error("{kind}: {message}")]
    InitFailed { kind: String, message: String },
    #[error("the invocation was cancelled")]
    Cancelled,
    #[error("no worker is free and {waiting} calls wait already; try again later")]
    Overloaded { waiting: usize },
    #[error("the request body is larger than {limit} bytes")]
    RequestTooLarge { limit: u64 },
    #[error("{reason}")]
    BadRequest { reason: String },
    #[error("no more of the request body came for {} s", .waited.as_secs())]
    RequestTimeout { waited: Duration },
    #[error("the body is not valid JSON: {reason}")]
    InvalidJson { reason: String },
    #[error("this supervisor is shutting down and takes no new calls")]
    Draining,
}

/// Seconds as a person writes them: `2`, `0.5`.
fn seconds(limit: &Duration) -> String {
    format!("{}", (limit.as_secs_f64() * 1000.0).round() / 1000.0)
}

impl Failure {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Raised { .. } | Self::InvalidResponse { .. } | Self::ResponseTooLarge { .. } => {
                Status::Error
            }
            Self::Timeout { .. } => Status::Timeout,
            Self::WorkerExited { .. } => Status::Crashed,
            Self::OutOfMemory { .. } => Status::OutOfMemory,
            Self::InitFailed { .. } => Status::InitFailed,
            Self::Cancelled => Status::Cancelled,
            Self::Overloaded { .. }
            | Self::RequestTooLarge { .. }
            | Self::BadRequest { .. }
            | Self::RequestTimeout { .. }
            | Self::InvalidJson { .. }
            | Self::Draining => Status::Rejected,
        }
    }

    pub(crate) fn http_status(&self) -> StatusCode {
        match self {
            Self::Raised { .. } | Self::InvalidResponse { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ResponseTooLarge { .. }
            | Self::WorkerExited { .. }
            | Self::OutOfMemory { .. }
            | Self::Cancelled => StatusCode::BAD_GATEWAY,
            Self::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::InitFailed { .. } | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::RequestTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RequestTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::BadRequest { .. } | Self::InvalidJson { .. } => StatusCode::BAD_REQUEST,
        }
    }

    /// The stable word for it, in answers and records.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Raised { kind, .. } => kind,
            Self::InvalidResponse { .. } => "InvalidResponse",
            Self::ResponseTooLarge { .. } => "ResponseTooLarge",
            Self::Timeout { .. } => "Timeout",
            Self::WorkerExited { .. } => "WorkerExited",
            Self::OutOfMemory { .. } => "OutOfMemory",
            Self::InitFailed { .. } => "InitFailed",
            Self::Cancelled => "Cancelled",
            Self::Overloaded { .. } => "Overloaded",
            Self::RequestTooLarge { .. } => "RequestTooLarge",
            Self::BadRequest { .. } | Self::RequestTimeout { .. } => "BadRequest",
            Self::InvalidJson { .. } => "InvalidJSON",
            Self::Draining => "Draining",
        }
    }

    /// What the caller is told: `{"error": {"type", "message", "invocation_id"}}`.
    pub(crate) fn to_json(&self, invocation_id: &str) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            r#type: &'a str,
            message: &'a str,
            invocation_id: &'a str,
        }
        let message = self.to_string();
        let error = Inner { r#type: self.kind(), message: &message, invocation_id };
        // Serializing strings into memory cannot fail.
        serde_json::to_vec(&Body { error }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_contract() {
        let how = || String::from("x");
        let rows: Vec<(Failure, u16, Status, &str)> = vec![
            (Failure::Raised { kind: "KeyError".into(), message: how() }, 500, Status::Error, "KeyError"),
            (Failure::InvalidResponse { reason: how() }, 500, Status::Error, "InvalidResponse"),
            (Failure::ResponseTooLarge { size: 2, limit: 1 }, 502, Status::Error, "ResponseTooLarge"),
            (Failure::Timeout { limit: Duration::from_secs(2) }, 504, Status::Timeout, "Timeout"),
            (Failure::WorkerExited { how: how() }, 502, Status::Crashed, "WorkerExited"),
            (Failure::OutOfMemory { how: how() }, 502, Status::OutOfMemory, "OutOfMemory"),
            (Failure::InitFailed { kind: how(), message: how() }, 503, Status::InitFailed, "InitFailed"),
            (Failure::Cancelled, 502, Status::Cancelled, "Cancelled"),
            (Failure::Overloaded { waiting: 1 }, 429, Status::Rejected, "Overloaded"),
            (Failure::RequestTooLarge { limit: 1 }, 413, Status::Rejected, "RequestTooLarge"),
            (Failure::BadRequest { reason: how() }, 400, Status::Rejected, "BadRequest"),
            (Failure::InvalidJson { reason: how() }, 400, Status::Rejected, "InvalidJSON"),
            (Failure::Draining, 503, Status::Rejected, "Draining"),
        ];
        for (failure, http, status, kind) in rows {
            assert_eq!(
                (failure.http_status().as_u16(), failure.status(), failure.kind()),
                (http, status, kind)
            );
        }
    }

    #[test]
    fn a_limit_is_written_as_a_person_would() {
        let message = |ms| Failure::Timeout { limit: Duration::from_millis(ms) }.to_string();
        assert_eq!(message(2000), "the handler did not finish within 2 s");
        assert_eq!(message(500), "the handler did not finish within 0.5 s");
    }
}
