//! Requests to `muster.planner.*` that change something. A change carries the `version` that it is made for, and a `requestId`: within
//! 24 hours the same id is answered with the stored document and changes nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inventory::{Disruption, DisruptionState, InventoryState, NodeState, NodeVolume, Resources};
use super::operation::OperationType;
use super::plan::{Coordinates, PlanSpec, PlanState};
use crate::desired::ProfileType;
use crate::ids::{
    CapabilityName, ClusterName, ComponentName, DeviceKey, InstanceName, OperationId, PlanName, RevisionId,
};
use crate::limits::{PLAN_INSTANCES_MAX, RUNTIMES_MAX};

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
        /// Whether instances that are proven to run these coordinates get no UPDATE: they belong to the revision at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skip_unchanged: bool,
    }
);

change!(
    /// Request of `muster.planner.plan-approve`: approves a revision that has not ended, with all its operations, also those that
    /// it has not made yet. A repeated approval changes nothing.
    PlanApproveRequest {
        /// The plan.
        plan: PlanName,
        /// Id of the revision.
        id: RevisionId,
        /// The rule by which a program approves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
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
    /// Request of `muster.planner.plan-migrate`: another plan gets a revision, and once that is completed, this one gets a revision
    /// of 0 instances.
    PlanMigrateRequest {
        /// The plan.
        plan: PlanName,
        /// The other plan, which has no instance with an order.
        to: PlanName,
        /// Id of the revision, unique within either plan.
        id: RevisionId,
        /// Number of instances that the other plan gets. Absent: as many as the plan has with an order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = PLAN_INSTANCES_MAX))]
        instances: Option<u32>,
        /// The coordinates of each payload of the other plan. Absent: those of the plan's newest completed revision.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        coordinates: BTreeMap<ComponentName, Coordinates>,
    }
);

change!(
    /// Request of `muster.planner.plan-revision`: pauses, resumes, cancels or stops a revision.
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
    /// Request of `muster.planner.instance-create`: another instance of a plan. It waits for the approval of its CREATE.
    InstanceCreateRequest {
        /// The plan.
        plan: PlanName,
        /// The newest revision, which must be completed. Absent: that one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<RevisionId>,
        /// The node. Absent: the planner chooses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<DeviceKey>,
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
        /// Its type. CREATE is for an instance without a node. An instance without a node is deleted at once by DELETE. CREATE, UPDATE
        /// and DELETE are refused while a revision of the plan has not ended.
        #[serde(rename = "type")]
        operation_type: OperationType,
        /// For UPDATE: a completed revision; for CREATE: the newest one, if it is completed. Absent: the newest one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<RevisionId>,
        /// For CREATE and RELOCATE: the node. Absent: the planner chooses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<DeviceKey>,
        /// It does not run before this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    }
);

change!(
    /// Request of `muster.planner.operation-approve`, `operation-reject` and `operation-cancel`, and of `operation-complete` and
    /// `operation-fail`, which need a reason. A person and a program send the same one.
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
    /// It ends; operations of it that have not begun are cancelled. Those that run go on.
    Cancel,
    /// It ends as failed, without waiting for a node: operations of it that have not begun are cancelled, and those that run are
    /// failed. Orders stay as they are, so the state of each instance is still what its node reports.
    Stop,
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

impl DisruptionRequest {
    /// The disruption to add, if the request has all of it.
    pub fn disruption(&self) -> Option<Disruption> {
        let state = DisruptionState::Scheduled;
        Some(Disruption { id: self.id.clone(), should_evict: self.should_evict, start: self.start?, state })
    }
}
