//! Documents of the stream PLANS and requests to the planner: plans with their revisions, instances with their operations, and
//! the inventory of nodes, clusters and capabilities. `muster-domain` decides what a request changes.
//!
//! Each document has a `version`, which rises by one with each change, and names its newest `change`. The history of its subject
//! in PLANS has the earlier ones. The planner alone writes PLANS.

mod answers;
mod change;
mod checks;
mod instance;
mod inventory;
mod operation;
mod plan;
mod requests;

pub use self::answers::{
    Candidate, ExplainAnswer, InstanceStatus, InstancesAnswer, InventoryAnswer, NodeStatus, OperationCounts,
    OperationStatus, OperationsAnswer, PlacementStatus, PlanAnswer, PlanSummary, PlannerErrorBody,
    PlannerErrorReply, PlansAnswer, PlansChangesAnswer, RejectedNode, RuntimeState, StoredPlansChange,
};
pub use self::change::PlansChange;
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
    PlanApplyRequest, PlanDeleteRequest, PlanDeployRequest, PlanQuery, PlanRollbackRequest, PlanStateRequest,
    PlansChangesQuery, PlansQuery, RevisionStateRequest, RevisionVerb,
};

#[cfg(test)]
mod tests;
