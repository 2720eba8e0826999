//! The delays between the attempts of a device at what has failed, as a `rollout.yaml` gives them. The device adds its chance.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest delay.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest bound of a delay.
pub const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);

/// The bounds of the delays between attempts. They double from the first to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetryDelays {
    /// Longest delay before the second attempt: 30s.
    #[serde(with = "crate::duration_text")]
    #[schemars(with = "String")]
    pub min: Duration,
    /// Longest delay before any attempt: 10m.
    #[serde(with = "crate::duration_text")]
    #[schemars(with = "String")]
    pub max: Duration,
}

impl RetryDelays {
    /// Checks the bounds.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.min < RETRY_DELAY_MIN || self.max > RETRY_DELAY_MAX {
            Err("has a delay below 1s or above 24h")
        } else if self.min > self.max {
            Err("has a min above its max")
        } else {
            Ok(())
        }
    }
}
