//! Requests to `muster.planner.*`. A change carries the `version` that it is made for, and a `requestId`: within 24 hours the same
//! id is answered with the stored document and changes nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::{Disruption, DisruptionState, InventoryState, NodeState, NodeVolume, Resources};
use super::operation::{OperationState, OperationType};
use super::plan::{Coordinates, PlanSpec, PlanState};
use crate::desired::ProfileType;
use crate::ids::{
    CapabilityName, ClusterName, ComponentName, DeviceKey, InstanceName, OperationId, PlanName, RevisionId,
};
use crate::limits::{PLAN_INSTANCES_MAX, PLANS_SUBJECTS_MAX, RUNTIMES_MAX};

/// Declares a request that changes one document, with the fields that all of them have.
macro_rules! change {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The document's version that the change is made for; if it has another, nothing changes. Absent: any.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub expected_version: Option<u64>,
            /// The id of the request, chosen by the requester.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub request_id: Option<String>,
        }
    };
}

change!(
    /// Request of `muster.planner.plan-apply`: makes a plan, or changes one that has no instances. Without `expectedVersion` it
    /// makes a plan, and a plan of that name is a conflict.
    PlanApplyRequest {
        /// The plan.
        #[serde(flatten)]
        spec: PlanSpec,
    }
);

change!(
    /// Request of `muster.planner.plan-delete`: deletes a plan that has no instances.
    PlanDeleteRequest {
        /// The plan.
        plan: PlanName,
    }
);

change!(
    /// Request of `muster.planner.plan-state`.
    PlanStateRequest {
        /// The plan.
        plan: PlanName,
        /// The state: active or inactive.
        state: PlanState,
    }
);

change!(
    /// Request of `muster.planner.plan-deploy`: adds a revision, MRDS's deployment.
    PlanDeployRequest {
        /// The plan.
        plan: PlanName,
        /// Id of the revision, unique within the plan.
        id: RevisionId,
        /// Number of instances that the plan shall have in all. 0 also cancels an open revision.
        instances: u32,
        /// The coordinates of each payload.
        coordinates: BTreeMap<ComponentName, Coordinates>,
        /// Most instances of the plan that updates may leave without proof that they run: further ones wait, and one update domain
        /// follows another. Absent: any number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1))]
        max_unavailable: Option<u32>,
        /// Number of instances that get these coordinates; the others of `instances` keep the revision that they have, and run
        /// beside them. Absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = PLAN_INSTANCES_MAX))]
        canary: Option<u32>,
    }
);

change!(
    /// Request of `muster.planner.plan-rollback`: adds a revision with the instances and coordinates of an earlier one that has
    /// completed.
    PlanRollbackRequest {
        /// The plan.
        plan: PlanName,
        /// Id of the new revision, unique within the plan.
        id: RevisionId,
        /// Id of the earlier revision.
        to: RevisionId,
    }
);

change!(
    /// Request of `muster.planner.plan-revision`: pauses, resumes or cancels a revision.
    RevisionStateRequest {
        /// The plan.
        plan: PlanName,
        /// Id of the revision.
        id: RevisionId,
        /// The change.
        verb: RevisionVerb,
    }
);

change!(
    /// Request of `muster.planner.operation-request`: an operation of a person on an instance. It waits for its approval like any
    /// other.
    OperationRequest {
        /// The plan.
        plan: PlanName,
        /// The instance.
        instance: InstanceName,
        /// STOP, RESTART or RELOCATE. Revisions make the others.
        #[serde(rename = "type")]
        operation_type: OperationType,
        /// It does not run before this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    }
);

change!(
    /// Request of `muster.planner.operation-approve`, `operation-reject` and `operation-cancel`. A person and a program send the
    /// same one.
    OperationVerdictRequest {
        /// The plan.
        plan: PlanName,
        /// The instance.
        instance: InstanceName,
        /// The operation.
        operation: OperationId,
        /// The rule by which a program decides.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// The reason, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
);

change!(
    /// Request of `muster.planner.inventory-apply`: makes an entry of the inventory, or changes what a person says of one.
    InventoryApplyRequest {
        /// The entry.
        item: InventoryItem,
    }
);

change!(
    /// Request of `muster.planner.inventory-state`.
    InventoryStateRequest {
        /// The entry.
        item: InventoryName,
        /// The state of a node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node_state: Option<NodeState>,
        /// The cluster of a node that is allocating or allocated.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterName>,
        /// The state of a cluster or a capability: active or inactive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<InventoryState>,
        /// The state in one sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    }
);

change!(
    /// Request of `muster.planner.inventory-disruption`: adds a disruption of a node, changes its state, or removes it.
    DisruptionRequest {
        /// The node.
        node: DeviceKey,
        /// Id of the disruption.
        id: String,
        /// The change.
        verb: DisruptionVerb,
        /// Its start, to add one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<Timestamp>,
        /// To add one: whether instances must leave the node before it starts.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        should_evict: bool,
    }
);

change!(
    /// Request of `muster.planner.inventory-delete`: deletes an entry that nothing uses.
    InventoryDeleteRequest {
        /// The entry.
        item: InventoryName,
    }
);

/// Changes of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RevisionVerb {
    /// It makes no further operations, and those that wait for approval keep waiting.
    Pause,
    /// It goes on.
    Resume,
    /// It ends; operations of it that have not begun are cancelled.
    Cancel,
}

/// Changes of a disruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DisruptionVerb {
    /// It is scheduled.
    Add,
    /// It may begin.
    Approve,
    /// It is over.
    Complete,
    /// It is removed, once it is over.
    Remove,
}

/// An entry of the inventory, as a person states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InventoryItem {
    /// A node.
    Node(NodeSpec),
    /// A cluster.
    Cluster(ClusterSpec),
    /// A capability.
    Capability(CapabilitySpec),
}

/// The name of an entry of the inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InventoryName {
    /// A node.
    Node(DeviceKey),
    /// A cluster.
    Cluster(ClusterName),
    /// A capability.
    Capability(CapabilityName),
}

/// The part of a node that a person applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Nodes of one update domain are changed together.
    pub update_domain: String,
    /// All its resources.
    pub total_resources: Resources,
    /// The part that no instance gets.
    #[serde(default)]
    pub system_reserved_resources: Resources,
    /// Its local volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub local_volumes: Vec<NodeVolume>,
    /// Its capabilities, which must be in the inventory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<CapabilityName>,
    /// The types that its agent runs, the preferred one first. Empty: not known, and a plan's type follows from its coordinates
    /// alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RUNTIMES_MAX))]
    pub runtimes: Vec<ProfileType>,
}

/// The part of a cluster that a person applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterSpec {
    /// Its name.
    pub name: ClusterName,
}

/// The part of a capability that a person applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapabilitySpec {
    /// Its name.
    pub name: CapabilityName,
    /// Its type: GPU.
    #[serde(rename = "type")]
    pub capability_type: String,
    /// Its score among those of its type.
    pub score: u64,
}

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

impl InventoryStateRequest {
    /// The request about an entry that changes nothing of it yet.
    pub const fn of(item: InventoryName) -> Self {
        Self {
            item,
            node_state: None,
            cluster: None,
            state: None,
            message: None,
            expected_version: None,
            request_id: None,
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

impl DisruptionRequest {
    /// The disruption to add, if the request has all of it.
    pub fn disruption(&self) -> Option<Disruption> {
        let state = DisruptionState::Scheduled;
        Some(Disruption { id: self.id.clone(), should_evict: self.should_evict, start: self.start?, state })
    }
}
