//! Judges the gate behind a wave. It opens once enough devices have been confirmed for the soak time, and stops on too many
//! known failures or when success is out of reach. Whole numbers only, so every reader decides the same.

use std::fmt;

use muster_contract::Timestamp;
use muster_contract::rollout::{
    Approval, AtMost, CheckResult, FailureLimit, MINIMUM_SAMPLE, RolloutRecord, Success, Wave,
};
use serde::Serialize;

use super::approvals::ApprovalCount;
use super::target::{Evidence, Target};

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
    /// Released ones that are known to have failed, or count as failed.
    pub failed: u64,
    /// Those of them that have no end, and have missed their deadline.
    pub overdue: u64,
    /// Released ones that are left out, because they have not been heard for long.
    pub debt: u64,
    /// Released ones that are not heard, also those of them that are left out or count as failed.
    pub dark: u64,
}

/// The gate behind a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Enough targets have been confirmed for the soak time.
    Open,
    /// Too few targets are confirmed.
    Shut,
    /// The wave names devices, a site or labels, and matches no target: nothing could be evidence.
    Empty,
    /// Enough targets are confirmed, but too few of them for the soak time.
    Soaking,
    /// More targets have failed than the wave allows.
    TooManyFailures,
    /// The evidence is enough, and the wave's checks have not passed.
    Checking,
    /// The evidence is enough, and approvals of it are missing.
    Approving,
    /// So many targets have failed that success is out of reach.
    OutOfReach,
    /// A check of the wave has failed.
    CheckFailed,
}

impl Gate {
    /// Whether the wave has failed.
    pub const fn is_failed(self) -> bool {
        matches!(self, Self::TooManyFailures | Self::OutOfReach | Self::CheckFailed)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Shut => "shut",
            Self::Empty => "empty",
            Self::Soaking => "soaking",
            Self::Checking => "checking",
            Self::Approving => "needs approval",
            Self::CheckFailed => "failed: a check",
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
            self.dark += u64::from(target.silent_since.is_some());
            match target.evidence {
                Evidence::Confirmed(since) => {
                    self.confirmed += 1;
                    self.soaked += u64::from(since <= soaked_by);
                }
                Evidence::Failed => self.failed += 1,
                Evidence::Overdue => {
                    self.failed += 1;
                    self.overdue += 1;
                }
                Evidence::Debt => self.debt += 1,
                Evidence::Unknown => {}
            }
        }
    }

    /// Released targets that are neither confirmed, nor known to have failed, nor left out.
    pub const fn in_flight(&self) -> u64 {
        self.released - self.confirmed - self.failed - self.debt
    }
}

/// The gate behind a wave; `None` is the wave of unmatched devices.
pub(super) fn judge(wave: Option<&Wave>, tally: &Tally) -> Gate {
    let success = wave.map_or_else(Success::default, |wave| wave.success);
    let failure = wave.map_or_else(FailureLimit::default, |wave| wave.failure);
    let Tally { confirmed, soaked, failed, debt, .. } = *tally;
    let targets = tally.targets - debt;
    let needed = u64::from(success.at_least.get()) * targets;
    let is_complete = success.evidence.is_lower() || confirmed + failed == targets;
    if is_beyond(failure, confirmed, failed, targets) {
        Gate::TooManyFailures
    } else if (targets - failed) * 100 < needed {
        Gate::OutOfReach
    } else if targets == 0 && debt > 0 {
        // No device is left that could be evidence.
        Gate::Shut
    } else if !is_complete {
        Gate::Shut
    } else if soaked * 100 >= needed {
        Gate::Open
    } else if confirmed * 100 >= needed {
        Gate::Soaking
    } else {
        Gate::Shut
    }
}

/// The gate behind a wave whose evidence gives `gate`, by the results of its checks and the approvals of its evidence. A gate that a
/// person has forced needs no checks.
pub(super) fn judge_others(
    wave: &Wave,
    gate: Gate,
    is_forced: bool,
    record: Option<&RolloutRecord>,
    approvals: Option<ApprovalCount>,
) -> Gate {
    // A failed check has failed the wave, whatever becomes of its devices.
    let checked = record.and_then(|record| record.checked(wave.name.as_str())).and_then(|check| check.result);
    let has_checks = !wave.checks.is_empty() && !is_forced;
    let is_missing = |count: ApprovalCount| wave.approval == Approval::After && count.given < count.needed;
    match checked.filter(|_| has_checks) {
        _ if gate.is_failed() => gate,
        Some(CheckResult::Fail) => Gate::CheckFailed,
        _ if gate != Gate::Open => gate,
        None | Some(CheckResult::Inconclusive) if has_checks => Gate::Checking,
        _ if approvals.is_some_and(is_missing) => Gate::Approving,
        _ => Gate::Open,
    }
}

/// Whether more targets have failed than allowed. A number above the targets allows any. A share needs a sample, or the end of all
/// targets if they are fewer.
fn is_beyond(limit: FailureLimit, confirmed: u64, failed: u64, targets: u64) -> bool {
    match limit.at_most {
        AtMost::Count(count) => failed > u64::from(count),
        AtMost::Percent(percent) => {
            let ended = confirmed + failed;
            let sample = u64::from(limit.minimum_sample.map_or(MINIMUM_SAMPLE, std::num::NonZeroU32::get));
            ended >= sample.min(targets) && failed * 100 > u64::from(percent.get()) * ended
        }
    }
}
