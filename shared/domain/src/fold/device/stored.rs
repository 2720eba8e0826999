//! A device in the snapshot's format: the serialized field names are the format.

use muster_contract::fact::Liveness;
use muster_contract::{DeviceId, DeviceKey, Epoch, Generation, SiteId};
use serde::{Deserialize, Serialize};

use super::{Anomalies, DeviceState, ReportedCapabilities, Sources};
use crate::fold::packed_timestamp::PackedTimestamp;
use crate::fold::seq_account::SeqAccount;

/// Everything about a device but its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::fold) struct StoredDevice {
    pub(in crate::fold) key: DeviceKey,
    /// Generation of the newest desired state, and whether that retires the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    desired: Option<(Generation, bool)>,
    #[serde(rename = "holdings")]
    seq_account: SeqAccount,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    liveness: Option<(Epoch, Liveness)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    not_storing: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beat_at: Option<PackedTimestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reported: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heard_at: Option<PackedTimestamp>,
    #[serde(default, rename = "nature", skip_serializing_if = "Option::is_none")]
    capabilities: Option<Box<ReportedCapabilities>>,
    #[serde(default, rename = "troubles", skip_serializing_if = "Option::is_none")]
    anomalies: Option<Box<Anomalies>>,
    sources: Sources,
}

impl DeviceState {
    /// The stored form for a device of a site.
    pub(in crate::fold) fn stored(&self, site: &SiteId) -> StoredDevice {
        StoredDevice {
            key: DeviceKey { site: site.clone(), device: self.name.clone() },
            desired: self.desired.map(|generation| (generation, self.retires)),
            seq_account: self.seq_account.clone(),
            liveness: self.liveness.zip(self.liveness_state()),
            not_storing: self.not_storing,
            beat_at: self.beat_at,
            reported: self.reported,
            heard_at: self.heard_at,
            capabilities: self.capabilities.clone(),
            anomalies: self.anomalies.clone(),
            sources: self.sources,
        }
    }
}

impl StoredDevice {
    /// The device's state, with the name that the fleet already holds and its unheard partition.
    pub(in crate::fold) fn state(self, name: DeviceId, unheard_in: Option<u8>) -> DeviceState {
        DeviceState {
            name,
            unheard_in,
            desired: self.desired.map(|(generation, _)| generation),
            retires: matches!(self.desired, Some((_, true))),
            seq_account: self.seq_account,
            liveness: self.liveness.map(|(epoch, _)| epoch),
            heard: matches!(self.liveness, Some((_, Liveness::Fresh))),
            not_storing: self.not_storing,
            beat_at: self.beat_at,
            reported: self.reported,
            heard_at: self.heard_at,
            capabilities: self.capabilities,
            anomalies: self.anomalies,
            sources: self.sources,
        }
    }
}
