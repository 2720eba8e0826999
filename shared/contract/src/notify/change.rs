//! A standing that has changed between two notices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::{DeploymentId, DeviceKey};
use crate::view::{Freshness, Standing};

/// A standing that is otherwise than it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandingChange {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The deployment.
    pub deployment: DeploymentId,
    /// How it was; absent where it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Stood>,
    /// How it is; absent where it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Stood>,
    /// The fact of LEDGER that changed it last.
    pub ledger_seq: u64,
    /// When LEDGER took that in.
    pub at: Timestamp,
}

/// Where a device stood with a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stood {
    /// The standing.
    pub standing: Standing,
    /// Whether the device was heard.
    pub freshness: Freshness,
    /// Whether the hub could know that it held the last report.
    pub known: bool,
    /// It was not to run any more and was still there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// It was past its deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
}
