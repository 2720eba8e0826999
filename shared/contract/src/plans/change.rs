//! The newest change of a document of PLANS.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::requested_by::RequestedBy;

/// The newest change of a document of PLANS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlansChange {
    /// Time by the planner's clock.
    pub at: Timestamp,
    /// The change, in one sentence.
    pub message: String,
    /// The requester; absent if the planner made the change by itself, or if the server vouches for nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<RequestedBy>,
    /// The id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Digest of the request with that id: the same id with another request is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
}
