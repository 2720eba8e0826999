//! The devices of a rollout, each with the hub's knowledge of the content on it. It judges nothing.

use muster_contract::labels::Labels;
use muster_contract::{DeviceKey, Timestamp};

/// A device that a rollout governs.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The device.
    pub key: &'a DeviceKey,
    /// Its labels.
    pub labels: &'a Labels,
    /// Whether it has the rollout's content in its desired state.
    pub is_released: bool,
    /// The evidence about that content on the device.
    pub evidence: Evidence,
    /// Whether LEDGER has a report of the device about that content: it has begun.
    pub has_begun: bool,
    /// Time since which it is not heard; `None` while it is.
    pub silent_since: Option<Timestamp>,
    /// Time at which it got the content, or later; `None` if nobody knows.
    pub released_at: Option<Timestamp>,
    /// Whether a release, or a rollback that is due, would not reach it now.
    pub is_refused: bool,
}

/// The hub's knowledge of the rollout's content on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The device is heard, all of its reports are in, and it has installed the content: nothing has changed since then.
    Confirmed(Timestamp),
    /// The device is heard, all of its reports are in, and the content has failed.
    Failed,
    /// The device is heard, all of its reports are in, and it has missed a deadline of the rollout: it counts as failed.
    Overdue,
    /// The device has not been heard for so long that its wave leaves it out.
    Debt,
    /// Anything else: not released, under way, not heard, or with missing reports.
    Unknown,
}
