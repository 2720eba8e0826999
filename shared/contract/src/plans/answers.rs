//! Answers of `muster.planner.*`. A change is answered with the stored document: Plan, Instance, Node, Cluster or Capability.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::instance::Instance;
use super::inventory::{Capability, Cluster, Node, Resources};
use super::operation::{Operation, OperationType};
use super::plan::Plan;
use crate::ids::{ComponentName, DeviceKey, InstanceName, PlanName};
use crate::query::{ErrorBody, ErrorCode};

/// A refusal of the planner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannerErrorReply {
    /// The reason.
    pub error: PlannerErrorBody,
}

/// The reason of a refusal of the planner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannerErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what, where and what to do.
    pub message: String,
    /// The field of the request, if one is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// With `conflict`: the document's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<u64>,
}

/// Answer of `muster.planner.plan-get`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAnswer {
    /// The plan.
    pub plan: Plan,
    /// Counts of its instances and operations.
    pub summary: PlanSummary,
}

/// Answer of `muster.planner.plan-list`: ordered by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlansAnswer {
    /// The plans, each with its counts.
    pub plans: Vec<PlanAnswer>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Counts of a plan's instances and operations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanSummary {
    /// Instances that are not deleted.
    pub instances: u64,
    /// Placements by state.
    pub runtime: BTreeMap<RuntimeState, u64>,
    /// Operations by type and state, as far as instances keep them.
    pub operations: Vec<OperationCounts>,
    /// The same of instances that are deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<OperationCounts>,
    /// Instances of each revision.
    pub revisions: BTreeMap<String, u64>,
}

/// Operations of one type by state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationCounts {
    /// The type.
    #[serde(rename = "type")]
    pub operation_type: OperationType,
    /// Those that wait for approval.
    pub pending_approval: u64,
    /// Those that are approved or running.
    pub approved: u64,
    /// Those that failed, expired, or were rejected or cancelled.
    pub failed: u64,
    /// Those that succeeded.
    pub succeeded: u64,
}

/// States of a placement. They follow from LEDGER and are stored nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RuntimeState {
    /// The node has no order to run it.
    Pending,
    /// The node has the order, and has not confirmed it.
    Starting,
    /// The node runs it.
    Running,
    /// The node has the order to stop it, and has not confirmed that.
    Terminating,
    /// The node has stopped it.
    Terminated,
    /// The node could not run it.
    Failed,
    /// The node is stale or retired, so LEDGER does not say whether it runs it.
    Unknown,
}

/// Answer of `muster.planner.instance-list`: ordered by plan and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstancesAnswer {
    /// The instances.
    pub instances: Vec<InstanceStatus>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An instance, with what its nodes report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceStatus {
    /// The document.
    pub instance: Instance,
    /// The state of each placement, in the same order.
    pub placements: Vec<PlacementStatus>,
}

/// The state of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementStatus {
    /// The state.
    pub state: RuntimeState,
    /// The state in one sentence.
    pub message: String,
}

/// Answer of `muster.planner.operation-list`: ordered by plan, instance and age.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationsAnswer {
    /// The operations.
    pub operations: Vec<OperationStatus>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An operation, with its instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// The plan.
    pub plan: PlanName,
    /// The instance.
    pub instance: InstanceName,
    /// The instance's name for people.
    pub display_name: String,
    /// The instance's version: `expectedVersion` of an approval.
    pub version: u64,
    /// The operation.
    pub operation: Operation,
}

/// Answer of `muster.planner.change-list`: ordered by sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlansChangesAnswer {
    /// The changes that PLANS still has: the newest 64 of each document. `version` shows which are missing.
    pub changes: Vec<StoredPlansChange>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The sequence up to which PLANS was read. A later question for what is new has it as `after`.
    pub read_to: u64,
}

/// A message of PLANS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoredPlansChange {
    /// Its sequence.
    pub seq: u64,
    /// The document after the change: a Plan, Instance, Node, Cluster or Capability, by its `kind`. Its `change` says what was
    /// changed, when and by whom.
    pub document: serde_json::Map<String, serde_json::Value>,
}

/// Answer of `muster.planner.inventory-list`: the entries of one kind, ordered by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryAnswer {
    /// Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeStatus>,
    /// Clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<Cluster>,
    /// Capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<Capability>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A node, with what is placed on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The document.
    pub node: Node,
    /// Total without the reserved resources and those of placements.
    pub remaining_resources: Resources,
    /// Payloads of the placements.
    pub payloads: Vec<ComponentName>,
}

/// Answer of `muster.planner.plan-explain`: the node that another instance would get, and why the others are rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainAnswer {
    /// The plan.
    pub plan: PlanName,
    /// Time of the answer, by which disruptions are judged.
    pub at: Timestamp,
    /// The first candidates, the chosen one first.
    pub candidates: Vec<Candidate>,
    /// All candidates.
    pub candidates_count: u64,
    /// The first rejected nodes.
    pub rejected: Vec<RejectedNode>,
    /// All rejected nodes.
    pub rejected_count: u64,
}

/// A node that an instance may be placed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The node.
    pub node: DeviceKey,
    /// The reason for its place, in one sentence.
    pub reason: String,
    /// The free part of its scarcer resource, in thousandths: more is better. Nodes without a disruption are before others, and
    /// those of an update domain with fewer instances of the plan before those of one with more, whatever their scores.
    #[serde(default)]
    pub score: u64,
    /// Instances of the plan in its update domain: fewer is better.
    pub domain_instances: u64,
    /// Its free resources: more is better.
    pub free: Resources,
}

/// A node that no instance of the plan may be placed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedNode {
    /// The node.
    pub node: DeviceKey,
    /// Each reason, in one sentence.
    pub reasons: Vec<String>,
}

impl From<ErrorBody> for PlannerErrorBody {
    fn from(error: ErrorBody) -> Self {
        let ErrorBody { code, message } = error;
        Self { code, message, field: None, current_version: None }
    }
}
