//! What was done to a deployment as a whole, one action after another: EMCO's history of user-level states. Asked for with a
//! [`Query`](crate::query::Query) (`id`, and a point) on `muster.query.actions`.
//!
//! An action is what desired states in LEDGER say of a deployment, and nothing else: who created it, or approved of it, is
//! known to Git or to whoever made a request, and is no fact here.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::desired::Source;
use crate::ids::DeploymentId;
use crate::view::AsOf;

/// Actions of one deployment that are kept, the newest of them.
pub const ACTIONS_MAX: usize = 32;

/// Answer of `muster.query.actions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionsAnswer {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Up to where LEDGER was read for it.
    pub ledger_seq: u64,
    /// What was done before this is not told: LEDGER held no more when it was read, or more was done than is kept. Absent
    /// where everything is told from LEDGER's first fact on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<AsOf>,
    /// What was done, the oldest first.
    #[schemars(length(max = ACTIONS_MAX))]
    pub actions: Vec<Action>,
}

/// One action. It is as old as the first document that carries it to a device; to others it may come later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// What was done.
    pub action: ActionKind,
    /// When LEDGER stored it.
    pub at: Timestamp,
    /// Where LEDGER holds it: `atSeq` of a question about that moment.
    pub ledger_seq: u64,
    /// Which commit, request or plan did it; absent of a removal, because a document does not say who took out what it no
    /// longer names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// What can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ActionKind {
    /// It shall run where it ran nowhere, as far as is told: see `since`.
    Published,
    /// Another revision of it shall run, or the same on more devices by another revision.
    Changed,
    /// It shall run nowhere any more.
    Removed,
}
