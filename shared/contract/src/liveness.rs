//! Liveness: whether the hub hears a device, how far the device's numbers go, and what the hub holds of them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Epoch;
use crate::ranges::SeqRanges;
use crate::version::{ApiVersion, kind};

/// Whether the hub hears a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// Within the lease.
    Fresh,
    /// Silent for longer than the lease.
    Stale,
}

/// `muster.liveness.<site>.<device>`: on transitions, and when a fresh device's backlog appears or drains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LivenessFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `LivenessFact`
    pub kind: kind::LivenessFact,
    /// Fresh or stale.
    pub state: Liveness,
    /// When the bus last took in anything of the device.
    pub last_heard_at: Timestamp,
    /// The device's epoch.
    pub epoch: Epoch,
    /// Highest report number the device has spoken of; 0 before the first.
    pub head: u64,
    /// The account of this epoch at that moment, from which a reader rebuilds the present after the facts themselves
    /// have aged out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// When the bus took in the newest heartbeat of this epoch that the hub knows of: `head` is not below what it said. A
    /// message that went to quarantine before, and whose number is not known, is one of the numbers up to `head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beat_at: Option<Timestamp>,
    /// False while the device may have changed without a report in `epoch`: it says that it cannot store reports, or its
    /// heartbeats are of a newer epoch, which ingest opens once no report of `epoch` can be waiting.
    #[serde(default = "holds", skip_serializing_if = "is_so")]
    pub storing: bool,
}

/// The default of a field that holds unless it is denied.
pub(crate) const fn holds() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(crate) const fn is_so(mark: &bool) -> bool {
    *mark
}

/// The accounting of one epoch: `head = received + coalesced + quarantined + missing`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Numbers the hub holds as facts.
    pub received: u64,
    /// Numbers declared as folded into others.
    pub coalesced: u64,
    /// Numbers held in quarantine.
    pub quarantined: u64,
    /// Numbers up to `head` that are missing.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub missing: SeqRanges,
}
