//! Answer of `muster.query.actions`: the actions on a deployment as a whole in order, which is EMCO's history of user-level
//! states.
//!
//! Actions follow from the desired states in LEDGER alone. Who created or approved a deployment is known to Git or to the sender
//! of a request, and is no fact here.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::desired::Source;
use crate::ids::DeploymentId;
use crate::view::AsOf;

/// The newest actions of one deployment that are kept.
pub const ACTIONS_MAX: usize = 32;

/// Answer of `muster.query.actions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionsAnswer {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The position in LEDGER that the answer reflects.
    pub ledger_seq: u64,
    /// Earlier actions are not listed, because LEDGER no longer held them or more happened than is kept. Absent if the list
    /// begins with LEDGER's first fact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<AsOf>,
    /// The actions, the oldest first.
    #[schemars(length(max = ACTIONS_MAX))]
    pub actions: Vec<Action>,
}

/// One action. Its time is that of the first document that carries it to a device; other devices may receive it later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// The action.
    pub action: ActionKind,
    /// When LEDGER stored it.
    pub at: Timestamp,
    /// Its sequence in LEDGER: `atSeq` of a query about that moment.
    pub ledger_seq: u64,
    /// The commit, request or plan behind it; absent for a removal, because a document does not say why an entry is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Kinds of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ActionKind {
    /// It was targeted for the first time since `since`.
    Published,
    /// A new revision changed it, or targeted more devices with it.
    Changed,
    /// It is targeted nowhere any more.
    Removed,
}
