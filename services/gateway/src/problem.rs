//! Errors of HTTP answers as `application/problem+json` (RFC 9457): what failed, on what, and whether to try again.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use muster_client::ask::AskError;
use muster_contract::near::did_you_mean;
use muster_contract::plans::PlannerErrorBody;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_service::error::chain;
use serde::Serialize;

/// The media type.
pub(crate) const PROBLEM_TYPE: &str = "application/problem+json";
/// Seconds after which a request that found no service may be repeated.
pub(crate) const RETRY_AFTER_SECONDS: u32 = 2;

/// An error as a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Problem {
    /// The kind, as a URN.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The failure, its object, and a remedy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Seconds until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// `exponential` if it is retryable, else `none`.
    pub backoff_strategy: &'static str,
    /// The wrong fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One wrong field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FieldError {
    /// Its name.
    pub field: String,
    /// The rule and how it is broken.
    pub message: String,
}

impl Problem {
    /// A problem that the same request will meet again.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let (kind, title) = describe(status);
        Self {
            kind: format!("urn:muster:problem:{kind}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            retryable: false,
            retry_after_seconds: None,
            backoff_strategy: "none",
            errors: Vec::new(),
        }
    }

    /// A problem that may pass: nobody answers, or has no room for the request.
    pub(crate) fn passing(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            retryable: true,
            retry_after_seconds: Some(RETRY_AFTER_SECONDS),
            backoff_strategy: "exponential",
            ..Self::new(status, detail)
        }
    }

    /// A request with a wrong field.
    pub(crate) fn field(field: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let detail = format!("{field}: {message}");
        let errors = vec![FieldError { field: field.to_owned(), message }];
        Self { errors, ..Self::new(StatusCode::BAD_REQUEST, detail) }
    }

    /// The same with known names that are similar to the unknown one.
    #[must_use]
    pub(crate) fn with_near(mut self, near: &[&str]) -> Self {
        self.detail += &did_you_mean(near);
        self
    }
}

/// The kind of a problem: a word for programs, and its title.
const fn describe(status: StatusCode) -> (&'static str, &'static str) {
    match status.as_u16() {
        400 => ("bad-request", "The request cannot be understood"),
        401 => ("not-logged-in", "A login is needed"),
        403 => ("forbidden", "The request is not permitted"),
        404 => ("not-found", "There is no such thing"),
        405 => ("method-not-allowed", "The address does not take this method"),
        409 => ("conflict", "The request contradicts the present state"),
        410 => ("gone", "It is not there any more"),
        412 => ("precondition-failed", "It has changed meanwhile"),
        413 => ("too-large", "The request is too large"),
        415 => ("unsupported-media-type", "The request has a wrong media type"),
        422 => ("unprocessable", "The request cannot be carried out"),
        429 => ("too-many-requests", "Too many requests are under way"),
        502 => ("bad-answer", "A service gave an answer of another version"),
        503 => ("unavailable", "A service does not answer"),
        _ => ("internal", "The gateway failed"),
    }
}

impl From<ErrorBody> for Problem {
    fn from(body: ErrorBody) -> Self {
        let status = match body.code {
            // The present state forbids it; 412 is for `If-Match` alone.
            ErrorCode::Precondition | ErrorCode::NoCapacity => StatusCode::CONFLICT,
            code => StatusCode::from_u16(code.number()).unwrap_or(StatusCode::BAD_GATEWAY),
        };
        match body.code {
            ErrorCode::NotReady | ErrorCode::TooManyRequests => Self::passing(status, body.message),
            ErrorCode::Internal => Self::new(StatusCode::BAD_GATEWAY, body.message),
            ErrorCode::BadRequest => match body.message.split_once(": ") {
                Some((field, message)) if is_name(field) => Self::field(field, message),
                _ => Self::new(status, body.message),
            },
            _ => Self::new(status, body.message),
        }
    }
}

impl From<PlannerErrorBody> for Problem {
    fn from(body: PlannerErrorBody) -> Self {
        let PlannerErrorBody { code, message, field, .. } = body;
        match field {
            Some(field) => {
                let rule = message.strip_prefix(&format!("{field}: ")).unwrap_or(&message).to_owned();
                let errors = vec![FieldError { field: field.clone(), message: rule.clone() }];
                let problem = Self::from(ErrorBody { code, message: format!("{field}: {rule}") });
                Self { errors, ..problem }
            }
            None => Self::from(ErrorBody { code, message }),
        }
    }
}

/// Whether a text may be the name of a field.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|sign| sign.is_ascii_alphanumeric() || "._[]".contains(sign))
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        Self::from(&error)
    }
}

impl From<&AskError> for Problem {
    fn from(error: &AskError) -> Self {
        let words = chain(error);
        match error {
            AskError::Refused(body) => Self::from(body.clone()),
            AskError::RefusedByPlanner(body) => Self::from(body.clone()),
            AskError::VersionChanged(_) => Self::new(StatusCode::PRECONDITION_FAILED, words),
            AskError::Forbidden { .. } => Self::new(StatusCode::FORBIDDEN, words),
            error if error.may_pass() => Self::passing(StatusCode::SERVICE_UNAVAILABLE, words),
            _ => Self::new(StatusCode::BAD_GATEWAY, words),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Cannot fail: an object of texts and numbers.
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut response = (status, [(CONTENT_TYPE, PROBLEM_TYPE)], body).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_retryable_and_says_when() {
        let refused = |code| Problem::from(ErrorBody { code, message: "limit: too large".to_owned() });
        for (code, status, retryable) in [
            (ErrorCode::BadRequest, 400, false),
            (ErrorCode::NotFound, 404, false),
            (ErrorCode::Conflict, 409, false),
            (ErrorCode::Precondition, 409, false),
            (ErrorCode::NoCapacity, 409, false),
            (ErrorCode::TooManyRequests, 429, true),
            (ErrorCode::NotReady, 503, true),
            (ErrorCode::Internal, 502, false),
        ] {
            let problem = refused(code);
            assert_eq!((problem.status, problem.retryable), (status, retryable), "{code:?}");
            let response = problem.into_response();
            assert_eq!(response.headers().contains_key(RETRY_AFTER), retryable, "{code:?}");
            assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_TYPE);
        }
        let body = PlannerErrorBody {
            code: ErrorCode::Precondition,
            message: "the plan has instances".to_owned(),
            field: Some("plan".to_owned()),
            current_version: None,
        };
        let of_planner = Problem::from(body);
        assert_eq!((of_planner.status, &*of_planner.errors[0].field), (409, "plan"));
        assert_eq!(of_planner.detail, "plan: the plan has instances");
        let field = refused(ErrorCode::BadRequest);
        assert_eq!(
            field.errors[0],
            FieldError { field: "limit".to_owned(), message: "too large".to_owned() }
        );
    }
}
