//! Receipt: what the hub holds of a device's reports, so that the device may forget them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::Epoch;
use crate::limits::COUNTER_MAX;
use crate::ranges::SeqRanges;
use crate::version::{ApiVersion, kind};

/// `muster.receipt.<site>.<device>`: LEDGER or quarantine holds every number up to `through` except `missing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Receipt`
    pub kind: kind::Receipt,
    /// The epoch it speaks of.
    pub epoch: Epoch,
    /// Highest number it speaks of; 0 where the hub holds none of this epoch.
    #[schemars(range(max = COUNTER_MAX))]
    pub through: u64,
    /// Numbers up to `through` that the hub does not hold.
    #[serde(default)]
    pub missing: SeqRanges,
}

impl Receipt {
    /// True where the hub holds this number.
    pub fn covers(&self, seq: u64) -> bool {
        seq <= self.through && !self.missing.contains(seq)
    }
}

impl Document for Receipt {
    const KIND: &'static str = "Receipt";

    fn check(&self) -> Result<(), Violation> {
        match self.missing.max() {
            Some(top) if top > self.through => {
                Err(Violation::at("missing", format!("{top} is above through {}", self.through)))
            }
            _ => Ok(()),
        }
    }
}
