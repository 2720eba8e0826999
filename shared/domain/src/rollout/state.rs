//! The state of a rollout: its waves with their counts and gates, and the next step. `judgement` makes it.

use std::fmt;

use muster_contract::Timestamp;
use muster_contract::rollout::{RolloutPhase, RolloutVerb, WaitsFor};
use serde::Serialize;

use super::approvals::ApprovalCount;
use super::gate::{Gate, Tally};

/// The state of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutState {
    /// The waves in order; the wave of unmatched devices is the last, if there are any.
    pub waves: Vec<WaveState>,
    /// The next step.
    pub step: Step,
}

/// The state of a wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveState {
    /// Its name.
    pub name: String,
    /// Its targets, by their indices in the given list.
    pub members: Vec<usize>,
    /// Its counts.
    pub tally: Tally,
    /// Released targets whose content LEDGER shows.
    #[serde(skip)]
    pub in_ledger: u64,
    /// The gate behind it.
    pub gate: Gate,
    /// Whether a later wave has begun. The gate does not shut again: only failures beyond its limits count from then on.
    #[serde(skip)]
    pub has_passed: bool,
    /// Whether a person has decided that the gate counts as open.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// The approvals before it or of its evidence, if it needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
}

/// The next step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Release the content to these targets, by their indices in the given list.
    Release {
        /// The wave.
        wave: usize,
        /// The targets.
        targets: Vec<usize>,
        /// Whether approvals are missing: the wave has not begun.
        needs_approval: bool,
    },
    /// The evidence of the wave is enough: ask its checks, and record the result.
    Check {
        /// The wave.
        wave: usize,
    },
    /// The evidence of the wave is enough: record that its gate waits for approvals.
    Ready {
        /// The wave.
        wave: usize,
    },
    /// Nothing may be released yet: the wave's gate or its limit in flight blocks the rollout.
    Wait {
        /// The wave.
        wave: usize,
        /// The predicate that is not met yet.
        because: Blocked,
    },
    /// The wave has failed, so its rollout decides this.
    Fail {
        /// The wave.
        wave: usize,
        /// Why it has failed.
        because: Failure,
        /// The decision.
        verb: RolloutVerb,
    },
    /// A recorded decision ends the rollout or holds it.
    Held {
        /// The phase that it led to.
        phase: RolloutPhase,
    },
    /// The rollout is aborted or rolled back: give these targets, which still have the content, the one before it.
    RollBack {
        /// The targets.
        targets: Vec<usize>,
    },
    /// Every target has the content, and every gate is open.
    Done,
}

impl Step {
    /// The wave that it is about; `None` if a decision holds or ends the rollout, or nothing is left.
    pub const fn wave(&self) -> Option<usize> {
        match self {
            Self::Release { wave, .. }
            | Self::Check { wave }
            | Self::Ready { wave }
            | Self::Wait { wave, .. }
            | Self::Fail { wave, .. } => Some(*wave),
            Self::Held { .. } | Self::RollBack { .. } | Self::Done => None,
        }
    }
}

/// The predicate that blocks a waiting rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Blocked {
    /// The gate behind the wave.
    Gate,
    /// The gate behind the wave, and nothing is released: every target that a release reaches had the content before any decision.
    NothingToRelease,
    /// The wave's limit of devices in flight.
    InFlight,
    /// The budget of the groups of the devices that are next.
    Budget,
    /// The wave's rate; the next device may get the content then.
    Rate(Timestamp),
    /// The approvals of the wave's evidence.
    Approval,
    /// The rollouts that it comes after: one has not succeeded.
    After,
    /// The rollout's windows; the next one begins then. `None` if this machine knows the time zone of none.
    Window(Option<Timestamp>),
}

/// Whether a step waits directly for a rollout that only a person or a commit continues.
pub(super) fn waits_for_person(step: &Step, waits_for: &[WaitsFor]) -> bool {
    let is_after = matches!(step, Step::Wait { because: Blocked::After, .. });
    is_after && waits_for.iter().any(|other| other.phase.continued_by().is_some())
}

/// Why a wave has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// Its gate: too many failures, or success out of reach.
    Gate,
    /// Its gate, because devices that missed their deadline count as failed.
    DeviceDeadline,
    /// One of its checks.
    Check,
    /// Its gate was not open within its deadline.
    WaveDeadline,
    /// The last gate was not open within the rollout's deadline.
    RolloutDeadline,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate => f.write_str("its gate is not open"),
            Self::NothingToRelease => f.write_str("every target had the content before a wave began"),
            Self::InFlight => f.write_str("as many devices as allowed are in flight"),
            Self::Budget => f.write_str("the budget of its devices' groups has no room"),
            Self::Rate(next) => write!(f, "its rate leaves room for a further device at {next}"),
            Self::Approval => f.write_str("its evidence needs approvals"),
            Self::After => f.write_str("a rollout that it comes after has not succeeded"),
            Self::Window(Some(next)) => write!(f, "no window of the rollout is open until {next}"),
            Self::Window(None) => f.write_str("this machine knows no time zone of the rollout's windows"),
        }
    }
}
