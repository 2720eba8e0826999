//! Judges the gate behind a wave. It opens once enough devices have been confirmed for the soak time, and stops on too many
//! known failures or when success is out of reach. Whole numbers only, so every reader decides the same.

use std::fmt;

use muster_contract::Timestamp;
use muster_contract::rollout::{AtMost, FailureLimit, Success, Wave};
use serde::Serialize;

use super::{Evidence, Target};

/// The counts of a wave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Its targets.
    pub targets: u64,
    /// Those with the rollout's content in their desired state.
    pub released: u64,
    /// Released ones that are known to have installed it: the lower bound of success.
    pub confirmed: u64,
    /// Confirmed ones whose soak time is over.
    pub soaked: u64,
    /// Released ones that are known to have failed.
    pub failed: u64,
}

/// The gate behind a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Enough targets have been confirmed for the soak time.
    Open,
    /// Too few targets are confirmed.
    Shut,
    /// Enough targets are confirmed, but too few of them for the soak time.
    Soaking,
    /// More targets have failed than the wave allows.
    TooManyFailures,
    /// So many targets have failed that success is out of reach.
    OutOfReach,
}

impl Gate {
    /// Whether the wave has failed.
    pub const fn is_failed(self) -> bool {
        matches!(self, Self::TooManyFailures | Self::OutOfReach)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Shut => "shut",
            Self::Soaking => "soaking",
            Self::TooManyFailures => "failed: too many failures",
            Self::OutOfReach => "failed: success is out of reach",
        })
    }
}

impl Tally {
    /// Adds a target, which needs to have been confirmed by `soaked_by` to count as soaked.
    pub(super) fn add(&mut self, target: &Target<'_>, soaked_by: Timestamp) {
        self.targets += 1;
        if target.is_released {
            self.released += 1;
            match target.evidence {
                Evidence::Confirmed(since) => {
                    self.confirmed += 1;
                    self.soaked += u64::from(since <= soaked_by);
                }
                Evidence::Failed => self.failed += 1,
                Evidence::Unknown => {}
            }
        }
    }

    /// Released targets that are neither confirmed nor known to have failed.
    pub const fn in_flight(&self) -> u64 {
        self.released - self.confirmed - self.failed
    }
}

/// The gate behind a wave; `None` is the wave of unmatched devices.
pub(super) fn judge(wave: Option<&Wave>, tally: &Tally) -> Gate {
    let success = wave.map_or_else(Success::default, |wave| wave.success);
    let failure = wave.map_or_else(FailureLimit::default, |wave| wave.failure);
    let Tally { targets, confirmed, soaked, failed, .. } = *tally;
    let needed = u64::from(success.at_least.get()) * targets;
    if is_beyond(failure, confirmed, failed) {
        Gate::TooManyFailures
    } else if (targets - failed) * 100 < needed {
        Gate::OutOfReach
    } else if soaked * 100 >= needed {
        Gate::Open
    } else if confirmed * 100 >= needed {
        Gate::Soaking
    } else {
        Gate::Shut
    }
}

/// Whether more targets have failed than allowed. A number above the targets allows any.
fn is_beyond(limit: FailureLimit, confirmed: u64, failed: u64) -> bool {
    match limit.at_most {
        AtMost::Count(count) => failed > u64::from(count),
        AtMost::Percent(percent) => {
            let ended = confirmed + failed;
            ended >= u64::from(limit.minimum_sample.get()) && failed * 100 > u64::from(percent.get()) * ended
        }
    }
}
