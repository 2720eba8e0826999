//! Status codes of refused calls. The trailer `muster-code` has the planner's own code, which tells apart what one status code
//! unites; `muster-field` has the wrong field, `muster-current-version` the version with a conflict.

use axum::http::StatusCode;
use muster_client::ask::AskError;
use muster_contract::plans::PlannerErrorBody;
use muster_contract::query::ErrorCode;
use muster_service::error::chain;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::{Code, Status};

use crate::problem::Problem;

/// The status of a failed request to a service.
pub(super) fn refused(error: AskError) -> Status {
    let words = chain(&error);
    match error {
        AskError::RefusedByPlanner(body) => Status::with_metadata(code_of(body.code), words, details(&body)),
        AskError::Refused(body) => Status::new(code_of(body.code), body.message),
        AskError::Forbidden { .. } => Status::permission_denied(words),
        error if error.may_pass() => Status::unavailable(words),
        _ => Status::internal(words),
    }
}

/// The status of a request that makes a record: a conflict means that one of its name exists.
pub(super) fn not_made(error: AskError) -> Status {
    let status = refused(error);
    if status.code() != Code::Aborted {
        return status;
    }
    Status::with_metadata(Code::AlreadyExists, status.message(), status.metadata().clone())
}

/// The status of a question that people's side refuses.
pub(super) fn of_problem(problem: Problem) -> Status {
    let code = match StatusCode::from_u16(problem.status) {
        Ok(StatusCode::BAD_REQUEST) => Code::InvalidArgument,
        Ok(StatusCode::FORBIDDEN) => Code::PermissionDenied,
        Ok(StatusCode::NOT_FOUND) => Code::NotFound,
        Ok(StatusCode::CONFLICT) => Code::FailedPrecondition,
        Ok(StatusCode::TOO_MANY_REQUESTS) => Code::ResourceExhausted,
        Ok(StatusCode::SERVICE_UNAVAILABLE) => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, problem.detail)
}

/// A wrong field of a message.
pub(super) fn invalid(field: &str, rule: impl std::fmt::Display) -> Status {
    let mut metadata = MetadataMap::new();
    insert(&mut metadata, "muster-field", field);
    Status::with_metadata(Code::InvalidArgument, format!("{field}: {rule}"), metadata)
}

/// A record that does not exist.
pub(super) fn not_found(kind: &str, name: &str) -> Status {
    Status::not_found(format!("there is no {kind} {name}"))
}

fn details(body: &PlannerErrorBody) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    if let Ok(serde_json::Value::String(code)) = serde_json::to_value(body.code) {
        insert(&mut metadata, "muster-code", &code);
    }
    if let Some(field) = &body.field {
        insert(&mut metadata, "muster-field", field);
    }
    if let Some(version) = body.current_version {
        insert(&mut metadata, "muster-current-version", &version.to_string());
    }
    metadata
}

/// Adds a trailer, unless its text cannot be one.
fn insert(metadata: &mut MetadataMap, name: &'static str, text: &str) {
    if let Ok(value) = AsciiMetadataValue::try_from(text) {
        metadata.insert(name, value);
    }
}

const fn code_of(code: ErrorCode) -> Code {
    match code {
        ErrorCode::BadRequest => Code::InvalidArgument,
        ErrorCode::NotFound => Code::NotFound,
        ErrorCode::Conflict => Code::Aborted,
        ErrorCode::Precondition => Code::FailedPrecondition,
        ErrorCode::NoCapacity | ErrorCode::TooManyRequests => Code::ResourceExhausted,
        ErrorCode::Forbidden => Code::PermissionDenied,
        ErrorCode::NotReady => Code::Unavailable,
        ErrorCode::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: ErrorCode) -> AskError {
        let (message, field) = ("plan web has version 3".to_owned(), Some("plan".to_owned()));
        AskError::RefusedByPlanner(PlannerErrorBody { code, message, field, current_version: Some(3) })
    }

    #[test]
    fn each_refusal_has_a_code_of_its_own_on_the_wire() {
        for (code, status) in [
            (ErrorCode::BadRequest, Code::InvalidArgument),
            (ErrorCode::NotFound, Code::NotFound),
            (ErrorCode::Conflict, Code::Aborted),
            (ErrorCode::Precondition, Code::FailedPrecondition),
            (ErrorCode::NoCapacity, Code::ResourceExhausted),
            (ErrorCode::TooManyRequests, Code::ResourceExhausted),
            (ErrorCode::Forbidden, Code::PermissionDenied),
            (ErrorCode::NotReady, Code::Unavailable),
            (ErrorCode::Internal, Code::Internal),
        ] {
            let refused = refused(refusal(code));
            assert_eq!(refused.code(), status, "{code:?}");
            let trailer = |name| refused.metadata().get(name).unwrap().to_str().unwrap();
            assert_eq!(serde_json::json!(trailer("muster-code")), serde_json::to_value(code).unwrap());
            assert_eq!((trailer("muster-field"), trailer("muster-current-version")), ("plan", "3"));
        }
        let (made, conflict) =
            (not_made(refusal(ErrorCode::Conflict)), refused(refusal(ErrorCode::Conflict)));
        assert_eq!((made.code(), made.message()), (Code::AlreadyExists, conflict.message()));
        assert_eq!(made.metadata().get("muster-code").unwrap(), "conflict");
        assert_eq!(not_made(refusal(ErrorCode::BadRequest)).code(), Code::InvalidArgument);
        let silent =
            AskError::NoService { service: "muster-planner", subject: "muster.planner.x".to_owned() };
        assert_eq!(refused(silent).code(), Code::Unavailable);
    }
}
