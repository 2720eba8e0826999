//! Heartbeat: a device is there, and this is how far its reports go.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::Epoch;
use crate::limits::COUNTER_MAX;
use crate::liveness::{holds, is_so};
use crate::version::{ApiVersion, kind};

/// `muster.presence.<site>.<device>`: every 30 s, and at once after a (re)connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Heartbeat`
    pub kind: kind::Heartbeat,
    /// The device's epoch.
    pub epoch: Epoch,
    /// Highest report number ever given; 0 before the first.
    #[schemars(range(max = COUNTER_MAX))]
    pub head: u64,
    /// Reports that no publish acknowledgement covers yet.
    pub unsent: u64,
    /// When the oldest of those was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_unsent_at: Option<Timestamp>,
    /// Generation of the desired state the device holds; 0 before the first.
    pub generation: u64,
    /// Version of the agent.
    pub agent_version: String,
    /// False while the device cannot keep what it would report, because its disk is full or broken: what it is like
    /// may have changed since the report that has number `head`. Absent is true.
    #[serde(default = "holds", skip_serializing_if = "is_so")]
    pub storing: bool,
}

impl Document for Heartbeat {
    const KIND: &'static str = "Heartbeat";

    fn check(&self) -> Result<(), Violation> {
        if self.head > COUNTER_MAX {
            return Err(Violation::at("head", format!("{} is above {COUNTER_MAX}", self.head)));
        }
        if self.unsent > self.head {
            return Err(Violation::at("unsent", format!("{} is above head {}", self.unsent, self.head)));
        }
        Ok(())
    }
}
