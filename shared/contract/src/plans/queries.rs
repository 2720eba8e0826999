//! Requests to `muster.planner.*` that change nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::NodeState;
use super::operation::{OperationState, OperationType};
use super::plan::PlanState;
use crate::ids::{ClusterName, ComponentName, DeviceKey, PlanName, RevisionId};
use crate::limits::PLANS_SUBJECTS_MAX;

/// Request of `muster.planner.plan-get` and `plan-explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanQuery {
    /// The plan.
    pub plan: PlanName,
}

/// Request of `muster.planner.plan-list`. Filters of different fields must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlansQuery {
    /// One of these names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<PlanName>,
    /// One of these services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_name: Vec<String>,
    /// One of these payloads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub payload_name: Vec<ComponentName>,
    /// One of these states. Absent: not deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<PlanState>,
    /// Most plans wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Plans after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Request of `muster.planner.instance-list`. Filters of different fields must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstancesQuery {
    /// One of these plans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlanName>,
    /// One of these names, or names for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<String>,
    /// One of these revisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub revision: Vec<RevisionId>,
    /// A placement on one of these nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<DeviceKey>,
    /// Deleted instances as well: the newest 256 of each plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_deleted: bool,
    /// Most instances wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Instances after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Request of `muster.planner.operation-list`. Filters of different fields must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationsQuery {
    /// One of these plans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlanName>,
    /// One of these instances, or names for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instance: Vec<String>,
    /// One of these types.
    #[serde(rename = "type", skip_serializing_if = "Vec::is_empty")]
    pub operation_type: Vec<OperationType>,
    /// One of these states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<OperationState>,
    /// Most operations wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Operations after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Request of `muster.planner.change-list`. Asking again with `after` follows PLANS: every change comes once, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlansChangesQuery {
    /// Subjects of PLANS, also with the wildcards `*` and `>`. No two may overlap. Absent: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PLANS_SUBJECTS_MAX))]
    pub subject: Vec<String>,
    /// Most changes wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Changes after this sequence of PLANS: `next` of the page before, or `readTo` of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// Request of `muster.planner.inventory-list`. Filters of different fields must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryQuery {
    /// The kind of entries.
    pub kind: InventoryKind,
    /// One of these names; nodes as SITE/DEVICE.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<String>,
    /// Nodes of one of these clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster: Vec<ClusterName>,
    /// Nodes of one of these update domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_domain: Vec<String>,
    /// Nodes in one of these states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_state: Vec<NodeState>,
    /// Nodes with at least so many free cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_cores_gte: Option<u64>,
    /// Nodes with at least so much free memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_memory_gte: Option<u64>,
    /// Nodes that run one of these payloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub payload_name: Vec<ComponentName>,
    /// Nodes that run none of these payloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub payload_name_not_in: Vec<ComponentName>,
    /// Capabilities of one of these types.
    #[serde(default, rename = "type", skip_serializing_if = "Vec::is_empty")]
    pub capability_type: Vec<String>,
    /// Deleted entries as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_deleted: bool,
    /// Most entries wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Entries after this one: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl InventoryQuery {
    /// The question for all entries of a kind but the deleted ones.
    pub const fn of(kind: InventoryKind) -> Self {
        Self {
            kind,
            name: Vec::new(),
            cluster: Vec::new(),
            update_domain: Vec::new(),
            node_state: Vec::new(),
            remaining_cores_gte: None,
            remaining_memory_gte: None,
            payload_name: Vec::new(),
            payload_name_not_in: Vec::new(),
            capability_type: Vec::new(),
            include_deleted: false,
            limit: None,
            after: None,
        }
    }
}

/// Kinds of the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InventoryKind {
    /// Nodes.
    Node,
    /// Clusters.
    Cluster,
    /// Capabilities.
    Capability,
}
