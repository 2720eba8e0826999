//! How much an answer shows, and the last report that its lines show. It knows neither questions nor answers.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evidence::{EvidenceSource, Fidelity, Provenance};
use crate::ids::{Epoch, Generation, Seq};
use crate::limits::RETRIES_MAX;
use crate::retry::Retry;
use crate::state::{ComponentStatus, DeploymentStatus, State};

/// How much an answer shows. Each level has all of those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// Counts alone.
    #[default]
    Summary,
    /// And a line for each target.
    Brief,
    /// And its components.
    All,
    /// And the last report whole, and what shall run.
    Detail,
}

/// The last report of a deployment on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastReport {
    /// The state reported.
    pub state: State,
    /// The generation it is about.
    pub generation: Generation,
    /// When the device saw it, by its own clock.
    pub observed_at: Timestamp,
    /// When the hub took it in.
    pub received_at: Timestamp,
    /// Which report it is.
    pub epoch: Epoch,
    /// Which report it is.
    pub seq: Seq,
    /// Where LEDGER holds it.
    pub ledger_seq: u64,
    /// How it reached the hub; absent if the device sent it.
    #[serde(default, skip_serializing_if = "Provenance::is_push")]
    pub origin: Provenance,
    /// Which part of the changes the reports show; absent if every change is one.
    #[serde(default, skip_serializing_if = "Fidelity::is_event")]
    pub fidelity: Fidelity,
    /// The retries after errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RETRIES_MAX))]
    pub retries: Vec<Retry>,
    /// The whole status, with `output` detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeploymentStatus>,
    /// The components, with `output` detail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentStatus>,
}

impl LastReport {
    /// The source of the report, as evidence.
    pub const fn evidence_source(&self) -> EvidenceSource {
        EvidenceSource { origin: self.origin, fidelity: self.fidelity }
    }
}
