//! Refusals of requests about plans.

use muster_contract::plans::PlannerErrorBody;
use muster_contract::query::ErrorCode;

pub(super) fn refusal(code: ErrorCode, message: String) -> PlannerErrorBody {
    PlannerErrorBody { code, message, field: None, current_version: None }
}

pub(super) fn not_ready(message: &str) -> PlannerErrorBody {
    refusal(ErrorCode::NotReady, message.to_owned())
}
