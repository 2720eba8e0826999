//! How much is known of a whole: the bounds of what has converged, and the devices whose standing is known.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The bounds of the truth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bounds {
    /// Devices installed for the current target, fresh and known.
    pub lo: u64,
    /// Targets without those that are heard and known to have failed: what failed before it fell silent may have recovered
    /// since.
    pub hi: u64,
}

/// How much is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Complete {
    /// Devices whose standing is known.
    pub devices: u64,
    /// The total.
    pub of: u64,
    /// Reports that exist and are not in.
    pub missing_reports: u64,
}

impl Complete {
    /// Devices whose standing is not known.
    pub const fn not_known(self) -> u64 {
        self.of.saturating_sub(self.devices)
    }
}
