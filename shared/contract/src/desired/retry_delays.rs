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
    #[serde(with = "delay")]
    #[schemars(with = "String")]
    pub min: Duration,
    /// Longest delay before any attempt: 10m.
    #[serde(with = "delay")]
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

mod delay {
    use std::time::Duration;

    use jiff::SignedDuration;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let text = SignedDuration::try_from(*time).map_err(serde::ser::Error::custom)?;
        to.collect_str(&format_args!("{text:#}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        time.ok_or_else(|| serde::de::Error::custom(format!("'{text}' is not a time such as 30s or 10m")))
    }
}
