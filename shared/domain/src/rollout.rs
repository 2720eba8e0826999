//! The rules of a rollout: the wave of each device, the gate behind each wave, and the next step. Pure.
//!
//! A gate opens on confirmed devices alone. A device that is not heard, or whose reports are missing, counts neither for
//! nor against; it keeps its place in flight until it is heard. Membership depends on the rollout and the device alone, so
//! every program gets the same waves. Recorded decisions come first: no evidence continues a rollout that is paused.

mod gate;
mod progress;
mod sentence;
mod waves;

use std::fmt;
use std::time::Duration;

use muster_contract::labels::Labels;
use muster_contract::rollout::{Rollout, RolloutRecord, RolloutVerb, RolloutWord, Wave};
use muster_contract::{DeviceKey, Timestamp};
use serde::Serialize;

pub use self::gate::{Gate, Tally};
pub use self::progress::{Known, Lines, RolloutProgress, progress};
pub use self::sentence::listed;
use self::waves::{REST, effective};
pub use self::waves::{RolloutId, matches, waves_of};

/// A device that a rollout governs.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The device.
    pub key: &'a DeviceKey,
    /// Its labels.
    pub labels: &'a Labels,
    /// Whether it has the rollout's content in its desired state.
    pub is_released: bool,
    /// The evidence about that content on the device.
    pub evidence: Evidence,
}

/// The hub's knowledge of the rollout's content on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The device is heard, all of its reports are in, and it has installed the content: nothing has changed since then.
    Confirmed(Timestamp),
    /// The device is heard, all of its reports are in, and the content has failed.
    Failed,
    /// Anything else: not released, under way, not heard, or with missing reports.
    Unknown,
}

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
    /// The gate behind it.
    pub gate: Gate,
    /// The approvals before it, if it needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
}

/// The approvals of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalCount {
    /// Number of different requesters that have approved it lately.
    pub given: usize,
    /// Number that it needs.
    pub needed: usize,
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
    /// Nothing may be released yet: the wave's gate or its limit in flight blocks the rollout.
    Wait {
        /// The wave.
        wave: usize,
        /// The predicate that is not met yet.
        because: Blocked,
    },
    /// The wave has more failures than it allows, so its rollout decides this.
    Fail {
        /// The wave.
        wave: usize,
        /// The decision.
        verb: RolloutVerb,
    },
    /// A recorded decision ends the rollout or holds it.
    Held {
        /// The state that it led to.
        word: RolloutWord,
    },
    /// The rollout is rolled back: give these targets, which still have the content, the one before it.
    TakeBack {
        /// The targets.
        targets: Vec<usize>,
    },
    /// Every target has the content, and every gate is open.
    Done,
}

/// The predicate that blocks a waiting rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Blocked {
    /// The gate behind the wave.
    Gate,
    /// The wave's limit of devices in flight.
    InFlight,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gate => "its gate is not open",
            Self::InFlight => "as many devices as allowed are in flight",
        })
    }
}

/// The state of a rollout by its decisions and targets, as of `now`.
pub fn state(
    rollout: &Rollout,
    id: &RolloutId,
    record: Option<&RolloutRecord>,
    targets: &[Target<'_>],
    now: Timestamp,
) -> RolloutState {
    let waves = effective(rollout);
    let members: Vec<_> = targets.iter().map(|target| (target.key, target.labels)).collect();
    let wave_indices = waves_of(&waves, id, &members);
    let tallies = tallies(&waves, &wave_indices, targets, now);
    let approvals = |wave: &Wave| approvals(rollout, wave, record, now);
    let state = |(at, tally): (usize, &Tally)| WaveState {
        name: waves.get(at).map_or_else(|| REST.to_owned(), |wave| wave.name.to_string()),
        members: (0..wave_indices.len()).filter(|target| wave_indices[*target] == at).collect(),
        tally: *tally,
        gate: gate::judge(waves.get(at), tally),
        approvals: waves.get(at).and_then(approvals),
    };
    let mut states: Vec<_> = tallies.iter().enumerate().map(state).collect();
    let step = decided(record, targets)
        .unwrap_or_else(|| step(&waves, &states, &wave_indices, targets, rollout.on_failure.verb()));
    if states.last().is_some_and(|rest| rest.tally.targets == 0) {
        states.pop();
    }
    RolloutState { waves: states, step }
}

/// The approvals of a wave that needs some.
fn approvals(
    rollout: &Rollout,
    wave: &Wave,
    record: Option<&RolloutRecord>,
    now: Timestamp,
) -> Option<ApprovalCount> {
    if wave.approval.is_none() {
        return None;
    }
    let since = now.checked_sub(rollout.approvals.expires_after).unwrap_or(Timestamp::MIN);
    let given = record.map_or(0, |record| record.approvals(&wave.name, since));
    let needed = usize::try_from(rollout.approvals.need.get()).unwrap_or(usize::MAX);
    Some(ApprovalCount { given, needed })
}

/// The step that recorded decisions leave; `None` if the evidence decides.
fn decided(record: Option<&RolloutRecord>, targets: &[Target<'_>]) -> Option<Step> {
    let word = record.map(RolloutRecord::word).unwrap_or_default();
    match word {
        RolloutWord::Running | RolloutWord::Succeeded => None,
        RolloutWord::Paused | RolloutWord::Stopped => Some(Step::Held { word }),
        RolloutWord::RolledBack => {
            let left: Vec<_> = (0..targets.len()).filter(|at| targets[*at].is_released).collect();
            Some(if left.is_empty() { Step::Held { word } } else { Step::TakeBack { targets: left } })
        }
    }
}

/// The counts of each wave; the wave of unmatched devices is the last.
fn tallies(waves: &[Wave], wave_indices: &[usize], targets: &[Target<'_>], now: Timestamp) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); waves.len() + 1];
    for (at, target) in wave_indices.iter().zip(targets) {
        let soak = waves.get(*at).map_or(Duration::ZERO, |wave| wave.soak);
        // Without a soak time a target counts even if a clock ahead of this one dated its confirmation.
        let soaked_by =
            if soak.is_zero() { Timestamp::MAX } else { now.checked_sub(soak).unwrap_or(Timestamp::MIN) };
        if let Some(tally) = tallies.get_mut(*at) {
            tally.add(target, soaked_by);
        }
    }
    tallies
}

/// The next step by the evidence. The first wave that has failed, has unreleased targets, or has a gate that is not open
/// decides it.
fn step(
    waves: &[Wave],
    states: &[WaveState],
    wave_indices: &[usize],
    targets: &[Target<'_>],
    on_failure: RolloutVerb,
) -> Step {
    for (at, WaveState { tally, gate, approvals, .. }) in states.iter().enumerate() {
        if gate.is_failed() {
            return Step::Fail { wave: at, verb: on_failure };
        }
        if tally.released < tally.targets {
            let free = free_slots(waves.get(at), tally);
            let waiting = (0..targets.len()).filter(|target| wave_indices[*target] == at);
            let waiting = waiting.filter(|target| !targets[*target].is_released);
            let next: Vec<_> = waiting.take(free).collect();
            return if next.is_empty() {
                Step::Wait { wave: at, because: Blocked::InFlight }
            } else {
                let is_begun = tally.released > 0;
                let needs_approval = !is_begun && approvals.is_some_and(|count| count.given < count.needed);
                Step::Release { wave: at, targets: next, needs_approval }
            };
        }
        if *gate != Gate::Open {
            return Step::Wait { wave: at, because: Blocked::Gate };
        }
    }
    Step::Done
}

/// The number of devices of a wave that may be released now.
fn free_slots(wave: Option<&Wave>, tally: &Tally) -> usize {
    let limit = wave.and_then(|wave| wave.max_in_flight);
    limit.map_or(usize::MAX, |limit| {
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        limit.saturating_sub(usize::try_from(tally.in_flight()).unwrap_or(usize::MAX))
    })
}

#[cfg(test)]
mod tests;
