//! The content of reports before they have a number: a deployment's state or the device's capabilities. Knows neither the
//! outbox nor how reports are sent.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::retry::Retry;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Largest body of one report, as stored.
pub const BODY_BYTES_MAX: usize = 60 * 1024;

/// The content of a report without the fields that are added when it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Body {
    /// The state of a deployment.
    Status(StatusBody),
    /// The capabilities of the device.
    Capabilities(CapabilitiesBody),
}

/// The content of a [`StatusReport`](muster_contract::report::StatusReport).
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retries: Vec<Retry>,
}

/// The content of a [`CapabilitiesReport`](muster_contract::report::CapabilitiesReport).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct CapabilitiesBody {
    pub observed_at: Timestamp,
    pub properties: Map<String, Value>,
    pub labels: BTreeMap<String, String>,
    pub agent_version: String,
}

impl Body {
    /// The deployment; `None` for capabilities.
    pub const fn deployment(&self) -> Option<&DeploymentId> {
        match self {
            Self::Status(body) => Some(&body.deployment),
            Self::Capabilities(_) => None,
        }
    }

    /// The time of observation.
    pub const fn observed_at(&self) -> Timestamp {
        match self {
            Self::Status(body) => body.observed_at,
            Self::Capabilities(body) => body.observed_at,
        }
    }

    /// Whether the state is final: such a report is evicted after the others.
    pub(crate) const fn is_terminal(&self) -> bool {
        match self {
            Self::Status(body) => body.status.state.is_terminal(),
            Self::Capabilities(_) => false,
        }
    }
}

impl StatusBody {
    /// Bytes of its stored form; 0 if it cannot be serialised, which is an error when it is stored.
    pub fn stored_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }
}
