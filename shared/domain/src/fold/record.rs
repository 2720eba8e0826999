//! A device's record in a snapshot. The records define the fleet: every count is rebuilt from them.

pub(super) mod packed;
mod restore;

use std::sync::Arc;

use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::app_spec::AppSpec;
use super::device::StoredDevice;
use super::report::Report;
use super::standing::Deadline;

/// The complete state of one device in the fold. Its JSON is the snapshot's format: a change of meaning needs a
/// new format version in every store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    #[serde(rename = "about")]
    state: StoredDevice,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    /// Ordered by deployment.
    rows: Vec<RowRecord>,
}

/// Everything the fold knows of a deployment on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RowRecord {
    deployment: DeploymentId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Generation>,
    /// Since when it has that target, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// The assigned spec.
    #[serde(default, rename = "print", skip_serializing_if = "Option::is_none")]
    spec: Option<Arc<AppSpec>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<Box<Deadline>>,
}

impl DeviceRecord {
    /// The device.
    pub const fn key(&self) -> &DeviceKey {
        &self.state.key
    }
}
