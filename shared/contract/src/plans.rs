//! Documents of the stream PLANS and requests to the planner: plans with their revisions, instances with their operations, and
//! the inventory of nodes, clusters and capabilities. `muster-domain` decides what a request changes.
//!
//! Each document has a `version`, which rises by one with each change, and names its newest `change`. The history of its subject
//! in PLANS has the earlier ones. The planner alone writes PLANS.

mod answers;
mod instance;
mod inventory;
mod operation;
mod plan;
mod requests;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decode::Violation;
use crate::limits::PLANS_TEXT_BYTES_MAX;
use crate::requested_by::RequestedBy;

pub use self::answers::{
    Candidate, ExplainAnswer, InstanceStatus, InstancesAnswer, InventoryAnswer, NodeStatus, OperationCounts,
    OperationStatus, OperationsAnswer, PlacementStatus, PlanAnswer, PlanSummary, PlannerErrorBody,
    PlannerErrorReply, PlansAnswer, RejectedNode, RuntimeState,
};
pub use self::instance::{Instance, InstanceState, Placement};
pub use self::inventory::{
    Capability, Cluster, Disruption, DisruptionState, InventoryState, Node, NodeState, NodeVolume, Resources,
};
pub use self::operation::{Operation, OperationApproval, OperationState, OperationStep, OperationType};
pub use self::plan::{
    ApplicationPort, ApplicationVolume, CapabilityMatcher, Comparator, ComparatorError, Coordinates, Plan,
    PlanApplication, PlanRevision, PlanSpec, PlanState, RevisionState,
};
pub use self::requests::{
    CapabilitySpec, ClusterSpec, DisruptionRequest, DisruptionVerb, InstancesQuery, InventoryApplyRequest,
    InventoryDeleteRequest, InventoryItem, InventoryKind, InventoryName, InventoryQuery,
    InventoryStateRequest, NodeSpec, OperationRequest, OperationVerdictRequest, OperationsQuery,
    PlanApplyRequest, PlanDeleteRequest, PlanDeployRequest, PlanQuery, PlanStateRequest, PlansQuery,
    RevisionStateRequest, RevisionVerb,
};

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

/// Checks a text of a document: it is there, bounded, and has no control characters.
fn check_text(path: &str, text: &str) -> Result<(), Violation> {
    if text.trim().is_empty() {
        return Err(Violation::at(path, "is empty"));
    }
    if text.len() > PLANS_TEXT_BYTES_MAX {
        let rule = format!("has {} bytes; {PLANS_TEXT_BYTES_MAX} are allowed", text.len());
        return Err(Violation::at(path, rule));
    }
    if text.contains(char::is_control) {
        return Err(Violation::at(path, "has control characters"));
    }
    Ok(())
}

/// Checks the length of a list.
fn check_length(path: &str, length: usize, max: usize) -> Result<(), Violation> {
    if length <= max {
        return Ok(());
    }
    Err(Violation::at(path, format!("has {length} entries; {max} are allowed")))
}

#[cfg(test)]
mod tests;
