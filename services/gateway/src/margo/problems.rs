//! The problems that devices get: Margo's registered types, and `about:blank` (RFC 9457) for all others. A device may retry after
//! 429, 500 and 503 alone.

use axum::http::StatusCode;
use muster_contract::decode::Violation;

use crate::problem::{FieldError, Problem};

/// Margo's namespace of problem types.
const TYPES: &str = "https://docs.margo.org/specification/problem-types#";
/// Seconds after which a device may retry.
const RETRY_AFTER_SECONDS: u32 = 5;

fn registered(status: StatusCode, kind: &str, title: &'static str, detail: impl Into<String>) -> Problem {
    Problem { kind: format!("{TYPES}{kind}"), title, ..Problem::new(status, detail) }
}

fn unregistered(status: StatusCode, detail: impl Into<String>) -> Problem {
    let title = status.canonical_reason().unwrap_or("Error");
    Problem { kind: "about:blank".to_owned(), title, ..Problem::new(status, detail) }
}

/// The body is no JSON, or the address is malformed.
pub(crate) fn invalid_request(detail: impl Into<String>) -> Problem {
    registered(StatusCode::BAD_REQUEST, "invalid-request", "Invalid request", detail)
}

/// The body has another format than a write request of Prometheus.
pub(crate) fn no_write_request() -> Problem {
    let detail = "only write requests of Prometheus' remote-write 1.0 are read: application/x-protobuf, packed by snappy";
    unregistered(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
}

/// A field breaks a rule.
pub(crate) fn semantic_error(field: impl Into<String>, message: impl Into<String>) -> Problem {
    let (field, message) = (field.into(), message.into());
    let problem = registered(
        StatusCode::UNPROCESSABLE_ENTITY,
        "semantic-error",
        "Semantic error",
        format!("{field}: {message}"),
    );
    Problem { errors: vec![FieldError { field, message }], ..problem }
}

/// A violation of the contract.
pub(crate) fn violation(violation: Violation) -> Problem {
    semantic_error(violation.path, violation.rule)
}

/// The certificate is not accepted.
pub(crate) fn not_authorized(detail: impl Into<String>) -> Problem {
    registered(StatusCode::FORBIDDEN, "not-authorized", "Not authorized", detail)
}

/// The client may not speak for a child device.
pub(crate) fn not_its_child() -> Problem {
    not_authorized(
        "this client may not speak for that device; `muster enroll --spiffe … --children` names those it may",
    )
}

/// There is no trust bundle.
pub(crate) fn no_bundle(detail: impl Into<String>) -> Problem {
    registered(StatusCode::NOT_FOUND, "spiffe-bundle-not-found", "Bundle not found", detail)
}

/// The gateway of a child device is unknown.
pub(crate) fn gateway_not_found() -> Problem {
    let detail = "the gateway of this child device has not reported its own capabilities";
    registered(StatusCode::NOT_FOUND, "gateway-not-found", "Gateway not found", detail)
}

/// The client has no such device.
pub(crate) fn device_not_found() -> Problem {
    let detail = "no device of this client has that id";
    registered(StatusCode::NOT_FOUND, "device-not-found", "Device not found", detail)
}

/// No bundle of the client has the digest.
pub(crate) fn invalid_bundle() -> Problem {
    let detail = "no bundle of this client has that digest";
    registered(StatusCode::NOT_FOUND, "invalid-bundle", "Bundle not found", detail)
}

/// No deployment of the client has the digest.
pub(crate) fn deployment_not_found() -> Problem {
    let detail = "no deployment of this client has that id and digest";
    registered(StatusCode::NOT_FOUND, "deployment-not-found", "Deployment not found", detail)
}

/// The client does not accept the only media type.
pub(crate) fn not_acceptable(media_type: &str) -> Problem {
    let kind = "server-cannot-generate-response";
    let detail = format!("{media_type} is the only media type here: accept it");
    registered(StatusCode::NOT_ACCEPTABLE, kind, "Not acceptable", detail)
}

/// There is no such address.
pub(crate) fn no_such_address() -> Problem {
    unregistered(StatusCode::NOT_FOUND, "there is no such address")
}

/// The address does not take the method.
pub(crate) fn no_such_method() -> Problem {
    unregistered(StatusCode::METHOD_NOT_ALLOWED, "the address does not take this method")
}

/// The body is too large.
pub(crate) fn too_large(limit: usize) -> Problem {
    unregistered(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have at most {limit} bytes"))
}

/// The body is about too many devices and times.
pub(crate) fn too_many_parts(parts: usize, limit: usize) -> Problem {
    let detail = format!(
        "the samples are of {parts} devices and times; {limit} are allowed: lower max_samples_per_send"
    );
    unregistered(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// The hub has something of a device that cannot be read: the same request again would not help.
pub(crate) fn not_stored(detail: &str) -> Problem {
    unregistered(StatusCode::CONFLICT, format!("samples of one device are not stored: {detail}"))
}

/// The body did not arrive in time.
pub(crate) fn too_slow() -> Problem {
    unregistered(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time; send it again")
}

/// The hub cannot be reached, or cannot take the request now.
pub(crate) fn unavailable(detail: impl Into<String>) -> Problem {
    retryable(unregistered(StatusCode::SERVICE_UNAVAILABLE, detail))
}

/// The device reports faster than the hub stores.
pub(crate) fn too_many(detail: impl Into<String>) -> Problem {
    retryable(unregistered(StatusCode::TOO_MANY_REQUESTS, detail))
}

/// The gateway or the hub has a fault.
pub(crate) fn internal(detail: impl Into<String>) -> Problem {
    retryable(unregistered(StatusCode::INTERNAL_SERVER_ERROR, detail))
}

fn retryable(problem: Problem) -> Problem {
    Problem {
        retryable: true,
        retry_after_seconds: Some(RETRY_AFTER_SECONDS),
        backoff_strategy: "exponential",
        ..problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_retryable() {
        for problem in [unavailable(""), too_many(""), internal("")] {
            let retry = (problem.retryable, problem.retry_after_seconds, problem.backoff_strategy);
            assert_eq!(retry, (true, Some(RETRY_AFTER_SECONDS), "exponential"), "{problem:?}");
            assert_eq!(problem.kind, "about:blank");
        }
        for problem in [
            invalid_request(""),
            semantic_error("a", "b"),
            not_authorized(""),
            gateway_not_found(),
            device_not_found(),
            invalid_bundle(),
            deployment_not_found(),
            not_acceptable("a/b"),
            no_such_address(),
            no_such_method(),
            too_large(1),
            too_slow(),
        ] {
            let retry = (problem.retryable, problem.retry_after_seconds, problem.backoff_strategy);
            assert_eq!(retry, (false, None, "none"), "{problem:?}");
        }
    }
}
