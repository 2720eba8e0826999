//! Documents of the stream PLANS and requests to the planner: plans with their revisions, instances with their operations, and
//! the inventory of nodes, clusters and capabilities. `muster-domain` decides what a request changes.
//!
//! Each document has a `version`, which rises by one with each change, and names its newest `change`. The history of its subject
//! in PLANS has the earlier ones. The planner alone writes PLANS.

mod answers;
mod change;
mod checks;
mod hook;
mod hook_question;
mod instance;
mod inventory;
mod operation;
mod plan;
mod queries;
mod requests;

pub use self::answers::{
    Candidate, ExplainAnswer, InstanceStatus, InstancesAnswer, InventoryAnswer, NodeStatus, OperationCounts,
    OperationStatus, OperationsAnswer, PlacementStatus, PlanAnswer, PlanSummary, PlannerErrorBody,
    PlannerErrorReply, PlansAnswer, PlansChangesAnswer, RejectedNode, RuntimeState, StoredPlansChange,
};
pub use self::change::PlansChange;
pub use self::hook::{AnsweredHook, HookAnswers, HookStep, PlanHook};
pub use self::hook_question::{HookAnswer, HookRequest};
pub use self::instance::{Instance, InstanceState, Placement};
pub use self::inventory::{
    Capability, Cluster, Disruption, DisruptionState, InventoryState, Node, NodeState, NodeVolume, Resources,
};
pub use self::operation::{
    ManualCompletion, Operation, OperationApproval, OperationState, OperationStep, OperationType,
};
pub use self::plan::{
    ApplicationPort, ApplicationVolume, CapabilityMatcher, Comparator, ComparatorError, CompositeApp,
    Coordinates, Dependency, Plan, PlanApplication, PlanMigration, PlanRevision, PlanSpec, PlanState,
    RevisionState, check_emco_name,
};
pub use self::queries::{
    InstancesQuery, InventoryKind, InventoryQuery, OperationsQuery, PlanQuery, PlansChangesQuery, PlansQuery,
};
pub use self::requests::{
    CapabilitySpec, ClusterSpec, DisruptionRequest, DisruptionVerb, InstanceCreateRequest,
    InventoryApplyRequest, InventoryDeleteRequest, InventoryItem, InventoryName, InventoryStateRequest,
    NodeSpec, OperationRequest, OperationVerdictRequest, PlanApplyRequest, PlanApproveRequest,
    PlanDeleteRequest, PlanDeployRequest, PlanMigrateRequest, PlanRollbackRequest, PlanStateRequest,
    RevisionStateRequest, RevisionVerb,
};

#[cfg(test)]
mod tests;
