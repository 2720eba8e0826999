//! Silent sites: sites without a fresh device. An answer names a silent site once, instead of each effect on its devices and
//! deployments, because one cause is likely. The cause itself (the line, the power, or the hub's own reception) is unknown
//! here.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::SiteId;

/// Devices that a site must have had before its silence is more than that of a device.
pub const SILENT_DEVICES_MIN: u64 = 2;
/// Silent sites that one answer names; it counts them all.
pub const SILENT_SITES_MAX: usize = 20;

/// A site whose devices are all silent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentSite {
    /// Which.
    pub site: SiteId,
    /// Its devices that were heard once. None of them is heard now, and there are at least two.
    pub devices: u64,
    /// Targets there: of the deployment that the answer is about, if it is about one, else of all.
    pub targets: u64,
    /// When the last of its devices was heard, by the hub's clock.
    pub since: Timestamp,
}

/// The sites that are silent as a whole: how many, and the first of them in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentSites {
    /// How many there are.
    pub count: u64,
    /// The first of them, at most 20.
    pub first: Vec<SilentSite>,
}

impl SilentSites {
    /// True where there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The one of this name, where it is one of the first.
    pub fn of(&self, site: &SiteId) -> Option<&SilentSite> {
        self.first.iter().find(|silent| silent.site == *site)
    }
}
