//! A migration of a plan's instances to another plan.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Coordinates;
use crate::ids::{ComponentName, PlanName, RevisionId};
use crate::limits::PLAN_INSTANCES_MAX;
use crate::requested_by::RequestedBy;

/// A migration that is under way: another plan has a revision, or gets it. Once that is completed, this plan gets a revision of 0
/// instances with the same id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanMigration {
    /// The other plan.
    pub to: PlanName,
    /// Id of the revision.
    pub id: RevisionId,
    /// Number of instances that the other plan gets.
    #[schemars(range(min = 1, max = PLAN_INSTANCES_MAX))]
    pub instances: u32,
    /// The coordinates of each payload.
    pub coordinates: BTreeMap<ComponentName, Coordinates>,
    /// The requester, if the server vouches for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// Time of the request.
    pub at: Timestamp,
}
