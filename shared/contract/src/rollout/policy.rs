//! The policies of a rollout besides its waves: devices that are not heard, the budget of groups, and deadlines. `muster-domain`
//! applies them.

use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decisions::RolloutVerb;
use super::policy_time;
use crate::desired::RetryDelays;
use crate::fact::DeadlineKind;
use crate::ids::LabelKey;
use crate::retry::Retry;

/// How a wave treats a released device that is not heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Offline {
    /// It counts neither for nor against, and keeps its place in flight.
    #[default]
    Wait,
    /// After a time it is left out of the wave's counts and gives its place back. It counts again once it is heard.
    Debt {
        /// Time for which it was not heard since the wave began: 30m, 8h, 7d; at most 720h.
        #[serde(with = "policy_time")]
        #[schemars(with = "String")]
        after: Duration,
        /// Most such devices of the wave.
        max: NonZeroU32,
    },
    /// After a time it counts as failed until it is heard.
    Fail {
        /// As for `debt`.
        #[serde(with = "policy_time")]
        #[schemars(with = "String")]
        after: Duration,
    },
}

/// The number of unavailable devices in each group that a release leaves. A device is unavailable while it is not heard, has failed, or
/// has got the content and not confirmed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Budget {
    /// Devices with the same value of this label are a group; those without it are one, too.
    pub group_by: LabelKey,
    /// Most unavailable devices of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<NonZeroU32>,
    /// In place of `maxUnavailable`: available devices that a group keeps. A group of so many devices or fewer could get nothing, and
    /// is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<NonZeroU32>,
}

/// Classes of one rollout's retries.
const CLASSES_MAX: usize = 32;
/// Bytes of a class.
const CLASS_BYTES_MAX: usize = 128;

/// The failures that a device may try again before they count. The device repeats them by this backoff or its own; nothing is published
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retries {
    /// Failed attempts of a device that do not count.
    pub max: NonZeroU32,
    /// Codes of the errors that may be tried again, as reports have them; any if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CLASSES_MAX))]
    pub classes: Vec<String>,
    /// The delays between the attempts of a device, in place of its own settings. A device gets them with its next document, and for all
    /// of its deployments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<RetryBackoff>,
}

/// The bounds of the delays between attempts; they double from the first to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryBackoff {
    /// Longest delay before the second attempt: 30s; at least 1s.
    #[serde(with = "policy_time")]
    #[schemars(with = "String")]
    pub min: Duration,
    /// Longest delay before any attempt: 10m; at most 24h.
    #[serde(with = "policy_time")]
    #[schemars(with = "String")]
    pub max: Duration,
}

impl From<RetryBackoff> for RetryDelays {
    fn from(RetryBackoff { min, max }: RetryBackoff) -> Self {
        Self { min, max }
    }
}

impl Budget {
    /// Checks that exactly one bound is given.
    pub(super) const fn check(&self) -> Result<(), &'static str> {
        if self.max_unavailable.is_some() == self.min_available.is_some() {
            Err("needs exactly one of maxUnavailable and minAvailable")
        } else {
            Ok(())
        }
    }

    /// Most unavailable devices of a group of so many devices.
    pub fn most_unavailable(&self, devices: usize) -> usize {
        let number = |bound: NonZeroU32| usize::try_from(bound.get()).unwrap_or(usize::MAX);
        match (self.max_unavailable, self.min_available) {
            (Some(most), _) => number(most),
            (None, Some(least)) => devices.saturating_sub(number(least)),
            (None, None) => 0,
        }
    }
}

impl Retries {
    /// Checks number and length of the classes, and the backoff; the field, and the rule that is broken.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.classes.len() > CLASSES_MAX {
            Err(("classes", "has more than 32 entries"))
        } else if self.classes.iter().any(|class| class.is_empty() || class.len() > CLASS_BYTES_MAX) {
            Err(("classes", "has an entry without a character, or with more than 128 bytes"))
        } else {
            let delays = self.backoff.map(RetryDelays::from);
            delays.map_or(Ok(()), |delays| delays.check()).map_err(|rule| ("backoff", rule))
        }
    }

    /// Whether an error may be tried again.
    pub fn covers(&self, code: &str) -> bool {
        self.classes.is_empty() || self.classes.iter().any(|class| class == code)
    }

    /// Whether a failed device tries again, and each of its failures may be tried again so often.
    pub fn allow(&self, tried: &[Retry]) -> bool {
        let is_allowed =
            |retry: &Retry| retry.attempt <= self.max.get() && self.covers(&retry.last_error.code);
        !tried.is_empty() && tried.iter().all(is_allowed)
    }
}

/// The times within which waves must pass their gates, and devices must get to an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deadlines {
    /// From the begin of a wave until its gate is open: 30m, 8h, 7d; at most 720h.
    #[serde(default, with = "policy_time::optional", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub wave: Option<Duration>,
    /// From the begin of the first wave until the last gate is open, as for `wave`.
    #[serde(default, with = "policy_time::optional", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub rollout: Option<Duration>,
    /// From the first attempt of a device at the content until it has an end, as for `wave`. After it, and after the hub's own deadline
    /// of the deployment, the device counts as failed until it has confirmed the content.
    #[serde(default, with = "policy_time::optional", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<Duration>,
    /// From the moment at which a device could first learn of the content until it reports anything of it, as for `device`.
    #[serde(default, with = "policy_time::optional", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub never_started: Option<Duration>,
    /// The planner's decision at the end of such a time.
    #[serde(default, skip_serializing_if = "AtEnd::is_stop")]
    pub at_end: AtEnd,
}

/// The decision at the end of a deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AtEnd {
    /// Stops the rollout; `cancel` is another word for it.
    #[default]
    #[serde(alias = "cancel")]
    Stop,
    /// Rolls it back.
    Rollback,
}

impl Offline {
    /// Whether it is the default.
    pub const fn is_wait(&self) -> bool {
        matches!(self, Self::Wait)
    }
}

impl Deadlines {
    /// Whether there is no deadline.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Time after which a device that missed a deadline of the hub counts as failed; `None` if it never does.
    pub const fn of_device(&self, missed: DeadlineKind) -> Option<Duration> {
        match missed {
            DeadlineKind::Stuck => self.device,
            DeadlineKind::NeverStarted => self.never_started,
        }
    }
}

impl AtEnd {
    /// Whether it is the default.
    pub const fn is_stop(&self) -> bool {
        matches!(self, Self::Stop)
    }

    /// The decision.
    pub const fn verb(self) -> RolloutVerb {
        match self {
            Self::Stop => RolloutVerb::Stop,
            Self::Rollback => RolloutVerb::Rollback,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for (policy, value) in [
            (Offline::Wait, json!("wait")),
            (
                Offline::Debt { after: Duration::from_secs(72 * 60 * 60), max: NonZeroU32::MIN },
                json!({ "debt": { "after": "72h", "max": 1 } }),
            ),
            (Offline::Fail { after: Duration::from_secs(90) }, json!({ "fail": { "after": "1m 30s" } })),
            (
                Offline::Fail { after: Duration::from_secs(7 * 24 * 60 * 60) },
                json!({ "fail": { "after": "7d" } }),
            ),
        ] {
            let written = serde_json::to_value(policy).unwrap();
            assert_eq!(serde_json::from_value::<Offline>(written).unwrap(), policy);
            assert_eq!(serde_json::from_value::<Offline>(value.clone()).unwrap(), policy, "{value}");
        }
        let deadlines = json!({ "wave": "8h", "device": "30m", "neverStarted": "72h", "atEnd": "rollback" });
        let read: Deadlines = serde_json::from_value(deadlines.clone()).unwrap();
        assert_eq!((read.wave, read.rollout), (Some(Duration::from_secs(8 * 60 * 60)), None));
        assert_eq!(serde_json::to_value(read).unwrap(), deadlines);
    }

    #[test]
    fn a_backoff_of_retries_has_bounds_in_order() {
        let check = |min: &str, max: &str| {
            let retries =
                json!({ "max": 2, "classes": ["imagePull"], "backoff": { "min": min, "max": max } });
            let read: Retries = serde_json::from_value(retries).unwrap();
            assert_eq!(
                serde_json::from_value::<Retries>(serde_json::to_value(&read).unwrap()).unwrap(),
                read
            );
            read.check()
        };
        assert_eq!(check("30s", "10m"), Ok(()));
        for (min, max) in [("10m", "30s"), ("100ms", "30s"), ("30s", "25h")] {
            assert_eq!(check(min, max).map_err(|(field, _)| field), Err("backoff"), "{min} {max}");
        }
        let other = json!({ "max": 2, "backoff": { "min": "30s", "max": "10m", "factor": 3 } });
        assert!(
            serde_json::from_value::<Retries>(other)
                .unwrap_err()
                .to_string()
                .contains("unknown field `factor`")
        );
    }

    #[test]
    fn a_policy_without_a_limit_or_with_a_misspelt_key_is_refused() {
        let refusal = |value: Value| serde_json::from_value::<Offline>(value).unwrap_err().to_string();
        for (value, words) in [
            (json!({ "debt": { "after": "8h" } }), "missing field `max`"),
            (json!({ "debt": { "after": "8h", "max": 0 } }), "nonzero"),
            (json!({ "fail": { "after": "721h" } }), "up to 720h"),
            (json!({ "fail": { "after": "0s" } }), "above 0"),
            (json!({ "fail": { "after": "0d" } }), "above 0"),
            (json!({ "fail": { "after": "31d" } }), "up to 720h"),
            (json!({ "fail": { "after": "d" } }), "'d' is not a time"),
            (json!({ "fail": { "after": "+7d" } }), "'+7d' is not a time"),
            (json!({ "fail": { "after": "8h", "most": 1 } }), "unknown field `most`"),
            (json!("skip"), "unknown variant `skip`"),
        ] {
            let refused = refusal(value.clone());
            assert!(refused.contains(words), "{value}: {refused}");
        }
        assert!(serde_json::from_value::<Budget>(json!({ "groupBy": "site", "maxUnavailable": 0 })).is_err());
    }
}
