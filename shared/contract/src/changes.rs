//! Request and answer of `muster.query.changes`: changes of standings, verdicts and devices in LEDGER's order, each with the
//! fact that caused it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::{DeploymentId, DeviceKey, Generation};
use crate::notify::change::Stood;
use crate::point::Point;
use crate::query::Sites;
use crate::view::{AsOf, Freshness, Verdict};

/// Most changes of standings and devices between the two points of a request; more are refused.
pub const CHANGES_MAX: usize = 50_000;

/// Request of `muster.query.changes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangesQuery {
    /// The earlier point, itself excluded; required.
    pub from: Point,
    /// The later point, itself included; the present if absent.
    pub to: Point,
    /// Only changes at these sites; the verdicts then cover these sites alone.
    #[serde(skip_serializing_if = "Sites::is_empty")]
    pub site: Sites,
    /// Only changes of this deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// Most changes in one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Number of changes to skip: `next` of the previous page, with the same points.
    #[serde(skip_serializing_if = "crate::omit::is_zero")]
    pub skip: u64,
}

/// Answer of `muster.query.changes`: every change between two points, also changes that a later fact
/// undid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangesAnswer {
    /// The earlier point.
    pub from: AsOf,
    /// The later point.
    pub to: AsOf,
    /// Number of changes on all pages.
    pub of: u64,
    /// The changes of this page in LEDGER's order.
    pub changes: Vec<Change>,
    /// True if one fact changed more standings than the change log keeps: some of its changes are not listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// `skip` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A change of a standing, of a device without standings, or of the verdict on a deployment. A verdict follows from the changes
/// before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// LEDGER sequence of the fact that caused the change.
    pub ledger_seq: u64,
    /// Time at which LEDGER stored that fact.
    pub at: Timestamp,
    /// Kind of that fact.
    pub fact: FactKind,
    /// The deployment; absent if the change is of type `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentId>,
    /// The change.
    #[serde(flatten)]
    pub what: Changed,
}

/// A change with its two sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Changed {
    /// The standing of a deployment on a device, with its freshness, its target and whether it is known.
    Standing {
        /// The device.
        #[serde(flatten)]
        key: DeviceKey,
        /// Standing before; absent if there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Stood>,
        /// Standing after; absent if there is none any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<Stood>,
        /// The new target, if the target changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Generation>,
        /// Reason for the standing after, in words; empty if there is none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// The freshness of a device without standings. Each standing has the freshness of its device.
    Device {
        /// The device.
        #[serde(flatten)]
        key: DeviceKey,
        /// Freshness before; absent if the device is new.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Freshness>,
        /// Freshness after.
        to: Freshness,
    },
    /// The verdict on the deployment.
    Verdict {
        /// Verdict before.
        from: Verdict,
        /// Verdict after.
        to: Verdict,
    },
}

/// Kinds of facts that change standings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FactKind {
    /// Desired state of a device.
    Desired,
    /// Report of a deployment.
    Status,
    /// Capabilities of a device.
    Device,
    /// Liveness of a device.
    Liveness,
    /// Deadline that has passed.
    Deadline,
    /// Quarantined message.
    Quarantine,
    /// Verdict on a quarantined message.
    Verdict,
    /// Whether the hub hears a partition.
    Hearing,
    /// Any other fact.
    Other,
}

impl FactKind {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Desired => "desired",
            Self::Status => "status",
            Self::Device => "device",
            Self::Liveness => "liveness",
            Self::Deadline => "deadline",
            Self::Quarantine => "quarantine",
            Self::Verdict => "verdict",
            Self::Hearing => "hearing",
            Self::Other => "other",
        }
    }
}
