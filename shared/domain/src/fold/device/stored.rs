//! A device as a snapshot has it: the names of its fields are the snapshot's format.

use muster_contract::fact::Liveness;
use muster_contract::{DeviceId, DeviceKey, Epoch, Generation, SiteId};
use serde::{Deserialize, Serialize};

use super::{About, Nature, Sources, Troubles};
use crate::fold::holdings::Holdings;
use crate::fold::moment::Moment;

/// Everything about a device but its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::fold) struct StoredDevice {
    pub(in crate::fold) key: DeviceKey,
    /// Generation of the newest desired state, and whether that retires the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    desired: Option<(Generation, bool)>,
    holdings: Holdings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    liveness: Option<(Epoch, Liveness)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    not_storing: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beat_at: Option<Moment>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reported: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heard_at: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nature: Option<Box<Nature>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    troubles: Option<Box<Troubles>>,
    sources: Sources,
}

impl About {
    /// As it is stored for a device of a site.
    pub(in crate::fold) fn stored(&self, site: &SiteId) -> StoredDevice {
        StoredDevice {
            key: DeviceKey { site: site.clone(), device: self.name.clone() },
            desired: self.desired.map(|generation| (generation, self.retires)),
            holdings: self.holdings.clone(),
            liveness: self.liveness.zip(self.liveness_state()),
            not_storing: self.not_storing,
            beat_at: self.beat_at,
            reported: self.reported,
            heard_at: self.heard_at,
            nature: self.nature.clone(),
            troubles: self.troubles.clone(),
            sources: self.sources,
        }
    }
}

impl StoredDevice {
    /// What it says, of a device of which the fleet holds the name already, and whether the hub listens to its partition.
    pub(in crate::fold) fn about(self, name: DeviceId, unheard_in: Option<u8>) -> About {
        About {
            name,
            unheard_in,
            desired: self.desired.map(|(generation, _)| generation),
            retires: matches!(self.desired, Some((_, true))),
            holdings: self.holdings,
            liveness: self.liveness.map(|(epoch, _)| epoch),
            heard: matches!(self.liveness, Some((_, Liveness::Fresh))),
            not_storing: self.not_storing,
            beat_at: self.beat_at,
            reported: self.reported,
            heard_at: self.heard_at,
            nature: self.nature,
            troubles: self.troubles,
            sources: self.sources,
        }
    }
}
