//! The helpers that the handlers of `/api/v1` share: the prefix, the names in an address, the filters of rejected reports, documents as
//! answers, and the problem of a deployment without a rollout. It asks no service.

use axum::extract::RawPathParams;
use axum::extract::rejection::RawPathParamsRejection;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use muster_client::quarantine::Selection;
use muster_contract::quarantine::RejectionCode;
use muster_contract::{DeploymentId, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::params::Values;
use crate::problem::Problem;

/// The prefix of all routes.
pub(crate) const PREFIX: &str = "/api/v1";

/// The parameters of an address, or why they cannot be read.
pub(super) type PathParams = Result<RawPathParams, RawPathParamsRejection>;

/// A document as an answer.
pub(crate) fn document<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The names in an address, by field of the question.
pub(super) fn path_names(path: PathParams) -> Result<Map<String, Value>, Problem> {
    let params = path.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(params.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

/// The deployment in an address.
pub(super) fn deployment(names: &Map<String, Value>) -> Result<DeploymentId, Problem> {
    let id = names.get("id").and_then(Value::as_str).unwrap_or_default();
    id.parse().map_err(|error: muster_contract::LabelError| Problem::field("id", error.to_string()))
}

/// The problem of a deployment without a rollout.
pub(crate) fn ungoverned(id: &DeploymentId) -> Problem {
    let detail =
        format!("no rollout.yaml governs a device that shall run '{id}': its changes go out at once");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// Reads the filters of rejected reports.
///
/// # Errors
/// A value is of no device, code or time.
pub(crate) fn selection(values: &Values, now: Timestamp) -> Result<Selection, Problem> {
    let device = values.get("device").map(|text| {
        text.parse().map_err(|_| Problem::field("device", format!("'{text}' must be SITE/DEVICE")))
    });
    let code = values.get("code").map(|text| {
        let known = RejectionCode::ALL.into_iter().find(|code| code.as_str() == text);
        let names = RejectionCode::ALL.map(RejectionCode::as_str);
        known.ok_or_else(|| Problem::field("code", format!("must be one of {}", names.join(", "))))
    });
    Ok(Selection {
        device: device.transpose()?,
        code: code.transpose()?,
        since: values.time("since", now)?,
        until: values.time("until", now)?,
    })
}
