//! The rules of a rollout: the wave of each device, the gate behind each wave, and the next step. Pure.
//!
//! A gate opens on confirmed devices alone. A device that is not heard, or whose reports are missing, counts neither for
//! nor against; it keeps its place in flight until it is heard. Membership depends on the rollout and the device alone, so
//! every program gets the same waves.

mod gate;
mod progress;
mod sentence;
mod waves;

use std::fmt;
use std::time::Duration;

use muster_contract::labels::Labels;
use muster_contract::rollout::{Rollout, Wave};
use muster_contract::{DeviceKey, Timestamp};
use serde::Serialize;

pub use self::gate::{Gate, Tally};
pub use self::progress::{Known, RolloutProgress, progress};
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
        /// Whether a person must do it: the wave has not begun, and needs approval.
        needs_approval: bool,
    },
    /// Nothing may be released yet: the wave's gate or its limit in flight blocks the rollout.
    Wait {
        /// The wave.
        wave: usize,
        /// The predicate that is not met yet.
        because: Blocked,
    },
    /// Nothing may be released any more unless the evidence changes.
    Stop {
        /// The wave.
        wave: usize,
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

/// The state of a rollout by its targets, as of `now`.
pub fn state(rollout: &Rollout, id: &RolloutId, targets: &[Target<'_>], now: Timestamp) -> RolloutState {
    let waves = effective(rollout);
    let members: Vec<_> = targets.iter().map(|target| (target.key, target.labels)).collect();
    let wave_indices = waves_of(&waves, id, &members);
    let tallies = tallies(&waves, &wave_indices, targets, now);
    let step = step(&waves, &tallies, &wave_indices, targets);
    let state = |(at, tally): (usize, &Tally)| WaveState {
        name: waves.get(at).map_or_else(|| REST.to_owned(), |wave| wave.name.to_string()),
        members: (0..wave_indices.len()).filter(|target| wave_indices[*target] == at).collect(),
        tally: *tally,
        gate: gate::judge(waves.get(at), tally),
    };
    let mut states: Vec<_> = tallies.iter().enumerate().map(state).collect();
    if states.last().is_some_and(|rest| rest.tally.targets == 0) {
        states.pop();
    }
    RolloutState { waves: states, step }
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

/// The next step. The first wave that is stopped, has unreleased targets, or has a gate that is not open decides it.
fn step(waves: &[Wave], tallies: &[Tally], wave_indices: &[usize], targets: &[Target<'_>]) -> Step {
    for (at, tally) in tallies.iter().enumerate() {
        let wave = waves.get(at);
        let gate = gate::judge(wave, tally);
        if gate.is_stopped() {
            return Step::Stop { wave: at };
        }
        if tally.released < tally.targets {
            let free = free_slots(wave, tally);
            let waiting = (0..targets.len()).filter(|target| wave_indices[*target] == at);
            let waiting = waiting.filter(|target| !targets[*target].is_released);
            let next: Vec<_> = waiting.take(free).collect();
            return if next.is_empty() {
                Step::Wait { wave: at, because: Blocked::InFlight }
            } else {
                let is_begun = tally.released > 0;
                let needs_approval = !is_begun && wave.is_some_and(|wave| !wave.approval.is_none());
                Step::Release { wave: at, targets: next, needs_approval }
            };
        }
        if gate != Gate::Open {
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
