//! What a row holds of a report, and how it becomes the report that is sent. Knows neither tables nor limits.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::report::{CapabilitiesReport, Report, StatusReport};
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::version::ApiVersion;
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a report says, without what only sending knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Body {
    /// About a deployment.
    Status(StatusBody),
    /// About the device.
    Capabilities(CapabilitiesBody),
}

/// See [`StatusReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct StatusBody {
    pub observed_at: Timestamp,
    pub deployment: DeploymentId,
    pub generation: Generation,
    pub digest: Digest,
    pub status: DeploymentStatus,
    pub components: Vec<ComponentStatus>,
}

/// See [`CapabilitiesReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct CapabilitiesBody {
    pub observed_at: Timestamp,
    pub properties: Map<String, Value>,
    pub labels: BTreeMap<String, String>,
    pub agent_version: String,
}

/// A row as the relay sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number.
    pub seq: u64,
    /// No later report of its deployment exists.
    pub newest: bool,
    /// The bus's message id.
    pub message_id: String,
    /// What it counts against the limits.
    pub bytes: usize,
    /// The report.
    pub body: Body,
    /// Numbers folded into it.
    pub coalesced: SeqRanges,
}

impl Body {
    /// The deployment it is about; none for capabilities.
    pub const fn deployment(&self) -> Option<&DeploymentId> {
        match self {
            Self::Status(body) => Some(&body.deployment),
            Self::Capabilities(_) => None,
        }
    }

    /// When it was seen.
    pub const fn observed_at(&self) -> Timestamp {
        match self {
            Self::Status(body) => body.observed_at,
            Self::Capabilities(body) => body.observed_at,
        }
    }

    /// True where nothing more happens by itself: such a report is not folded.
    pub(super) const fn is_terminal(&self) -> bool {
        match self {
            Self::Status(body) => body.status.state.is_terminal(),
            Self::Capabilities(_) => false,
        }
    }
}

impl StatusBody {
    /// Bytes it has when it is kept. What cannot be written has none; it is refused when it is kept.
    pub fn stored_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }
}

impl Row {
    /// The report to send, as of an epoch and a head. `None` for a number that no report can have.
    pub fn report(&self, epoch: Epoch, head: u64) -> Option<Report> {
        let (seq, head) = (Seq::new(self.seq)?, Seq::new(head)?);
        let coalesced = self.coalesced.clone();
        Some(match self.body.clone() {
            Body::Status(body) => Report::Status(StatusReport {
                api_version: ApiVersion::V1,
                kind: Default::default(),
                epoch,
                seq,
                head,
                observed_at: body.observed_at,
                deployment: body.deployment,
                generation: body.generation,
                digest: body.digest,
                status: body.status,
                components: body.components,
                current: self.newest,
                coalesced,
            }),
            Body::Capabilities(body) => Report::Capabilities(CapabilitiesReport {
                api_version: ApiVersion::V1,
                kind: Default::default(),
                epoch,
                seq,
                head,
                observed_at: body.observed_at,
                properties: body.properties,
                labels: body.labels,
                agent_version: body.agent_version,
                coalesced,
            }),
        })
    }
}
