//! The rules of a rollout: the wave of each device, the gate behind each wave, and the next step. Pure.
//!
//! A gate opens on confirmed devices alone. A device that is not heard, or whose reports are missing, counts neither for
//! nor against; it keeps its place in flight until it is heard. Membership depends on the rollout and the device alone, so
//! every program gets the same waves. Recorded decisions come first: no evidence continues a rollout that is paused.

mod gate;
mod policy;
mod progress;
mod recompute;
mod sentence;
mod waves;
mod windows;

use std::fmt;
use std::time::Duration;

use muster_contract::labels::Labels;
use muster_contract::rollout::{Deadlines, Rollout, RolloutPhase, RolloutRecord, RolloutVerb, Wave};
use muster_contract::{DeviceKey, Timestamp};
use serde::Serialize;

pub use self::gate::{Gate, Tally};
use self::policy::Room;
pub use self::progress::{Known, Lines, RolloutProgress, progress};
pub use self::recompute::{
    NotRecomputable, PastLines, Recomputed, past_progress, recomputable, recompute, rests_on_evidence,
};
pub use self::sentence::listed;
use self::waves::{REST, effective};
pub use self::waves::{RolloutId, matches, waves_of};
use self::windows::Opening;
pub use self::windows::is_zone;

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
    /// Time since which it is not heard; `None` while it is.
    pub silent_since: Option<Timestamp>,
}

/// The hub's knowledge of the rollout's content on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The device is heard, all of its reports are in, and it has installed the content: nothing has changed since then.
    Confirmed(Timestamp),
    /// The device is heard, all of its reports are in, and the content has failed.
    Failed,
    /// The device has not been heard for so long that its wave leaves it out.
    Debt,
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
    /// The rollout is rolled back: give these targets, which still have the content, the one before it.
    RollBack {
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
    /// The budget of the groups of the devices that are next.
    Budget,
    /// The rollout's windows; the next one begins then. `None` if this machine knows the time zone of none.
    Window(Option<Timestamp>),
}

/// Why a wave has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// Its gate: too many failures, or success out of reach.
    Gate,
    /// Its gate was not open within its deadline.
    WaveDeadline,
    /// The last gate was not open within the rollout's deadline.
    RolloutDeadline,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate => f.write_str("its gate is not open"),
            Self::InFlight => f.write_str("as many devices as allowed are in flight"),
            Self::Budget => f.write_str("the budget of its devices' groups has no room"),
            Self::Window(Some(next)) => write!(f, "no window of the rollout is open until {next}"),
            Self::Window(None) => f.write_str("this machine knows no time zone of the rollout's windows"),
        }
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
    let targets = &policy::with_offline_policies(&waves, &wave_indices, record, targets, now)[..];
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
    let phase = record.map(RolloutRecord::phase).unwrap_or_default();
    let step = decided(phase, targets).unwrap_or_else(|| {
        Steps { rollout, record, phase, waves: &waves, states: &states, now }.next(&wave_indices, targets)
    });
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
fn decided(phase: RolloutPhase, targets: &[Target<'_>]) -> Option<Step> {
    match phase {
        RolloutPhase::Running | RolloutPhase::Succeeded | RolloutPhase::Superseded => None,
        RolloutPhase::Paused | RolloutPhase::Stopped => Some(Step::Held { phase }),
        RolloutPhase::RolledBack => {
            let left: Vec<_> = (0..targets.len()).filter(|at| targets[*at].is_released).collect();
            Some(if left.is_empty() { Step::Held { phase } } else { Step::RollBack { targets: left } })
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

/// The rules by which the evidence leads to the next step.
struct Steps<'a> {
    rollout: &'a Rollout,
    record: Option<&'a RolloutRecord>,
    phase: RolloutPhase,
    waves: &'a [Wave],
    states: &'a [WaveState],
    now: Timestamp,
}

impl Steps<'_> {
    /// The next step. The first wave that has failed, has unreleased targets, or has a gate that is not open decides it.
    fn next(&self, wave_indices: &[usize], targets: &[Target<'_>]) -> Step {
        for (at, state) in self.states.iter().enumerate() {
            let is_released = state.tally.released == state.tally.targets;
            if is_released && state.gate == Gate::Open {
                continue;
            }
            // Devices that come after the end of a rollout get its content without gates.
            let has_succeeded = self.phase == RolloutPhase::Succeeded;
            if has_succeeded && is_released {
                continue;
            }
            if let Some((because, verb)) = self.failure(at).filter(|_| !has_succeeded) {
                return Step::Fail { wave: at, because, verb };
            }
            if is_released {
                return Step::Wait { wave: at, because: Blocked::Gate };
            }
            let members = (0..targets.len()).filter(|target| wave_indices[*target] == at);
            return self.release(at, members, targets);
        }
        Step::Done
    }

    /// Why a wave has failed, and what the rollout decides then.
    fn failure(&self, at: usize) -> Option<(Failure, RolloutVerb)> {
        let state = self.states.get(at)?;
        if state.gate.is_failed() {
            return Some((Failure::Gate, self.rollout.on_failure.verb()));
        }
        let Deadlines { wave, rollout, at_end } = self.rollout.deadlines;
        let record = self.record?;
        let is_over = |began: Option<Timestamp>, time: Option<Duration>| {
            began.zip(time).is_some_and(|(began, time)| policy::is_over(began, time, self.now))
        };
        // The gate was open once if a later wave has begun.
        let has_passed = self.states.iter().skip(at + 1).any(|later| record.began(&later.name).is_some());
        let is_shut = state.gate != Gate::Open && !has_passed;
        if is_shut && is_over(record.began(&state.name), wave) {
            Some((Failure::WaveDeadline, at_end.verb()))
        } else {
            is_over(record.first_began(), rollout).then(|| (Failure::RolloutDeadline, at_end.verb()))
        }
    }

    /// The release to unreleased members of a wave that its limit in flight and the budget leave room for.
    fn release(&self, at: usize, members: impl Iterator<Item = usize>, targets: &[Target<'_>]) -> Step {
        let WaveState { name, tally, approvals, .. } = &self.states[at];
        if let Opening::From(next) = windows::opening(&self.rollout.windows, self.now) {
            return Step::Wait { wave: at, because: Blocked::Window(next) };
        }
        let free = free_slots(self.waves.get(at), tally);
        if free == 0 {
            return Step::Wait { wave: at, because: Blocked::InFlight };
        }
        let mut room = Room::beside(self.rollout.budget.as_ref(), targets);
        let waiting = members.filter(|target| !targets[*target].is_released);
        let next: Vec<_> = waiting.filter(|target| room.admits(&targets[*target])).take(free).collect();
        if next.is_empty() {
            return Step::Wait { wave: at, because: Blocked::Budget };
        }
        let has_begun = self.phase == RolloutPhase::Succeeded
            || self.record.is_some_and(|record| record.began(name).is_some());
        let needs_approval = !has_begun && approvals.is_some_and(|count| count.given < count.needed);
        Step::Release { wave: at, targets: next, needs_approval }
    }
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
