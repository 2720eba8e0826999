//! The evidence that a report is: how it reached the hub, and which part of the changes it shows. Both are absent from a report of
//! an agent, which sends every change itself. How long evidence is fresh is in [`presence`](crate::presence).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a report reached the hub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// The device sent it.
    #[default]
    Push,
    /// A program at the hub polled the device.
    Pull,
    /// A program derived it from metrics.
    Metrics,
}

/// Which part of the changes the reports of a deployment show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    /// Every change is a report.
    #[default]
    Event,
    /// The state at one moment; earlier changes are not reported.
    Snapshot,
    /// The state at sampled moments; changes in between are not reported.
    Sampled,
}

impl Provenance {
    /// Whether the device sent the report.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub const fn is_push(&self) -> bool {
        matches!(self, Self::Push)
    }

    /// Its word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Metrics => "metrics",
        }
    }
}

impl Fidelity {
    /// Whether every change is a report.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub const fn is_event(&self) -> bool {
        matches!(self, Self::Event)
    }

    /// Its word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Snapshot => "snapshot",
            Self::Sampled => "sampled",
        }
    }
}
