//! Instance: one copy of a plan's applications, its placements on nodes, and its operations.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::PlansChange;
use super::checks::{check_length, check_text};
use super::operation::Operation;
use crate::decode::{Document, Violation};
use crate::ids::{DeviceKey, InstanceName, OperationId, PlanName, RevisionId};
use crate::limits::{FINISHED_OPERATIONS_MAX, OPEN_OPERATIONS_MAX};
use crate::version::{ApiVersion, kind};

/// `muster.instance.<plan>.<instance>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Instance`
    pub kind: kind::Instance,
    /// Its name, and the id of its deployment on a device: the service's name in lower case, cut to 30 characters, and the 32
    /// digits of the UUID in `displayName`.
    pub name: InstanceName,
    /// Its name for people, as MRDS makes it: the service's name, and a UUID in 22 characters of base64url.
    pub display_name: String,
    /// The plan.
    pub plan: PlanName,
    /// The revision that it belongs to. A placement names the one that its node runs.
    pub revision: RevisionId,
    /// Rises by one with each change; 0 at first.
    pub version: u64,
    /// Its state.
    pub state: InstanceState,
    /// Whether an approved STOP holds: the placement stays, and nothing runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Number of approved restarts.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub restarts: u64,
    /// The nodes whose resources it holds: none before its CREATE, one as a rule, and two during a RELOCATE.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub placements: Vec<Placement>,
    /// Its operations, the oldest first. Of those that have ended it keeps the newest 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
    /// Time of the first version.
    pub created_at: Timestamp,
    /// The newest change.
    pub change: PlansChange,
}

/// States of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InstanceState {
    /// It belongs to its plan.
    Active,
    /// Its DELETE is under way.
    MarkedForDeletion,
    /// It is gone.
    Deleted,
}

/// The resources of one node that an instance holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The node.
    pub node: DeviceKey,
    /// False for the second placement of a RELOCATE, until its node runs.
    pub active: bool,
    /// The revision whose content the node shall run; absent before an approved operation starts it, and once an approved
    /// operation stops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<RevisionId>,
    /// Why this node was chosen: its score against the others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Instance {
    /// An operation by its id.
    pub fn operation(&self, id: &OperationId) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.id == *id)
    }

    /// The active placement.
    pub fn active(&self) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.active)
    }
}

impl Document for Instance {
    const KIND: &'static str = "Instance";

    fn check(&self) -> Result<(), Violation> {
        check_text("displayName", &self.display_name)?;
        check_length("placements", self.placements.len(), 2)?;
        check_length("operations", self.operations.len(), FINISHED_OPERATIONS_MAX + OPEN_OPERATIONS_MAX)?;
        if self.placements.iter().filter(|placement| placement.active).count() > 1 {
            return Err(Violation::at("placements", "has two active placements"));
        }
        Ok(())
    }
}
