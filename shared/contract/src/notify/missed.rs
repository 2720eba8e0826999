//! Request and answer of `muster.notify.missed`: the changes that a subscriber has not confirmed, recomputed from LEDGER.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Subscription;
use crate::changes::Change;
use crate::ids::{HubName, SubscriptionName};

/// Request of `muster.notify.missed`: every change that passes the filters of a subscription, after the last confirmed
/// notice up to the newest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissedQuery {
    /// The subscription.
    pub name: SubscriptionName,
    /// Changes after this LEDGER sequence, for a subscriber that keeps its own position; those after the last confirmed
    /// notice if absent. A federation refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Changes up to this LEDGER sequence, `asOf.ledgerSeq` of a notice; up to the newest notice if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// In a federation, `hubs` of that notice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<HubPosition>,
    /// The filter itself, for a federation, which keeps the subscription: `after` and `to` are required with it, and no
    /// subscription of the name need be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Subscription>,
    /// `next` of the previous page, which then stands for both positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Most changes in one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Answer of `muster.notify.missed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissedAnswer {
    /// The subscription.
    pub name: SubscriptionName,
    /// The changes of this page in LEDGER's order, each once. Verdicts are listed if the filter is one deployment and
    /// nothing else, and not in a federation.
    pub changes: Vec<Change>,
    /// Ranges of LEDGER whose changes are not listed: LEDGER has forgotten the facts, or one fact changed more
    /// standings than are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GoneRange>,
    /// The LEDGER sequence up to which all pages together reach; in a federation, the sum of those of the hubs.
    pub to: u64,
    /// There is more: ask again with this as `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Facts whose changes cannot be listed any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoneRange {
    /// In a federation, the hub whose LEDGER it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubName>,
    /// The first of them.
    pub from: u64,
    /// The last of them.
    pub to: u64,
}

/// A position in the LEDGER of one hub of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubPosition {
    /// Its name in the federation.
    pub name: HubName,
    /// The LEDGER sequence.
    pub ledger_seq: u64,
}
