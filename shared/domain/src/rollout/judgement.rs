//! Judges a rollout: the counts and the gate of each wave, and the next step. Recorded decisions come first: no evidence
//! continues a rollout that is paused.

use std::borrow::Cow;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::rollout::{REST_WAVE, Rollout, RolloutPhase, RolloutRecord, WaitsFor, Wave};

use super::approvals::approvals;
use super::clock::RolloutClock;
use super::gate::{self, Gate, Tally};
use super::policy;
use super::state::{RolloutState, Step, WaveState};
use super::steps::{Steps, Targets};
use super::target::Target;
use super::waves::{RolloutId, effective, unmatched, waves_of};

/// The state of a rollout by its decisions, its targets and the rollouts that it waits for, as of `now`.
pub fn state(
    rollout: &Rollout,
    id: &RolloutId,
    record: Option<&RolloutRecord>,
    targets: &[Target<'_>],
    waits_for: &[WaitsFor],
    now: Timestamp,
) -> RolloutState {
    let waves = effective(rollout);
    let members: Vec<_> = targets.iter().map(|target| (target.key, target.labels)).collect();
    let wave_indices = waves_of(&waves, id, &members);
    let targets = &policy::with_offline_policies(&waves, &wave_indices, record, targets, now)[..];
    let tallies = tallies(&waves, &wave_indices, targets, &RolloutClock { record, now });
    let listed = Listed { targets, wave_indices: &wave_indices };
    let unmatched = &unmatched(&waves, &members)[..];
    let must_wait = !waits_for.is_empty();
    let mut state =
        Judgement { rollout, id, record, waves: &waves, unmatched, must_wait, now }.state(&tallies, &listed);
    for (at, wave) in state.waves.iter_mut().enumerate() {
        wave.members = listed.members(at);
    }
    state
}

/// The inputs of a judgement besides the targets.
pub(super) struct Judgement<'a> {
    pub(super) rollout: &'a Rollout,
    pub(super) id: &'a RolloutId,
    pub(super) record: Option<&'a RolloutRecord>,
    pub(super) waves: &'a [Wave],
    /// Whether each wave matches no target and must not be empty.
    pub(super) unmatched: &'a [bool],
    /// Whether a rollout that it comes after has not succeeded.
    pub(super) must_wait: bool,
    pub(super) now: Timestamp,
}

impl Judgement<'_> {
    /// The waves without their members, and the next step. The wave of unmatched devices is the last of the counts.
    pub(super) fn state(&self, tallies: &[Tally], targets: &dyn Targets) -> RolloutState {
        let Self { rollout, id, record, waves, must_wait, now, .. } = *self;
        let mut states: Vec<_> = tallies.iter().enumerate().map(|(at, tally)| self.wave(at, tally)).collect();
        let phase = record.map(RolloutRecord::phase).unwrap_or_default();
        let step = decided(phase, tallies.len(), targets).unwrap_or_else(|| {
            Steps { rollout, id, record, phase, waves, states: &states, must_wait, now }.next(targets)
        });
        if states.last().is_some_and(|rest| rest.tally.targets == 0) {
            states.pop();
        }
        RolloutState { waves: states, step }
    }

    fn wave(&self, at: usize, tally: &Tally) -> WaveState {
        let Self { rollout, record, waves, unmatched, now, .. } = *self;
        let approvals = waves.get(at).and_then(|wave| approvals(rollout, wave, record, now));
        // The gate was open once if a later wave has begun.
        let has_begun = |name: &str| record.is_some_and(|record| record.began(name).is_some());
        let has_passed = waves.iter().skip(at + 1).any(|later| has_begun(later.name.as_str()))
            || at < waves.len() && has_begun(REST_WAVE);
        let name = waves.get(at).map_or_else(|| REST_WAVE.to_owned(), |wave| wave.name.to_string());
        let forced = record.is_some_and(|record| record.forced(&name).is_some());
        let is_empty = !has_passed && unmatched.get(at) == Some(&true);
        let evidence = if forced {
            Gate::Open
        } else if is_empty {
            Gate::Empty
        } else {
            gate::judge(waves.get(at), tally)
        };
        let gate = match waves.get(at) {
            // Devices that fall silent or join since, and a stricter policy, shut no gate again.
            _ if has_passed && !evidence.is_failed() => Gate::Open,
            Some(wave) if !has_passed => gate::judge_others(wave, evidence, forced, record, approvals),
            Some(_) | None => evidence,
        };
        WaveState {
            name,
            members: Vec::new(),
            tally: *tally,
            in_ledger: 0,
            gate,
            has_passed,
            forced,
            approvals,
        }
    }
}

/// Targets in a list, with the wave of each.
struct Listed<'a> {
    targets: &'a [Target<'a>],
    wave_indices: &'a [usize],
}

impl Targets for Listed<'_> {
    fn all(&self) -> Cow<'_, [Target<'_>]> {
        Cow::Borrowed(self.targets)
    }

    fn members(&self, wave: usize) -> Vec<usize> {
        (0..self.wave_indices.len()).filter(|target| self.wave_indices[*target] == wave).collect()
    }
}

/// The step that recorded decisions leave; `None` if the evidence decides.
fn decided(phase: RolloutPhase, waves: usize, targets: &dyn Targets) -> Option<Step> {
    match phase {
        RolloutPhase::Running | RolloutPhase::Succeeded | RolloutPhase::Superseded => None,
        RolloutPhase::Paused | RolloutPhase::Stopped => Some(Step::Held { phase }),
        RolloutPhase::Aborted | RolloutPhase::RolledBack => {
            // The last wave first: the devices that have had the content for the shortest time.
            let members = (0..waves).rev().flat_map(|wave| targets.members(wave));
            let targets = targets.all();
            let is_kept = |target: &Target<'_>| phase == RolloutPhase::Aborted && target.has_begun;
            let is_left = |at: &usize| targets[*at].is_released && !is_kept(&targets[*at]);
            let left: Vec<_> = members.filter(is_left).collect();
            Some(if left.is_empty() { Step::Held { phase } } else { Step::RollBack { targets: left } })
        }
    }
}

/// The counts of each wave; the wave of unmatched devices is the last.
pub(super) fn tallies(
    waves: &[Wave],
    wave_indices: &[usize],
    targets: &[Target<'_>],
    clock: &RolloutClock<'_>,
) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); waves.len() + 1];
    // Without a soak time a target counts even if a clock ahead of this one dated its confirmation.
    let soaked_by = |soak: Duration| if soak.is_zero() { Timestamp::MAX } else { clock.began_by(soak) };
    let soaked_by: Vec<_> = waves.iter().map(|wave| soaked_by(wave.soak)).collect();
    for (at, target) in wave_indices.iter().zip(targets) {
        if let Some(tally) = tallies.get_mut(*at) {
            tally.add(target, soaked_by.get(*at).copied().unwrap_or(Timestamp::MAX));
        }
    }
    tallies
}
