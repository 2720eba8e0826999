//! The next step that the evidence allows. The first wave that has failed, has unreleased targets, or has a gate that is not open
//! decides it.

use std::borrow::Cow;
use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::Timestamp;
use muster_contract::rollout::{
    Approval, Deadlines, Order, Rollout, RolloutPhase, RolloutRecord, RolloutVerb, Wave,
};

use super::gate::{self, Gate, Tally};
use super::policy::{self, Room};
use super::state::{Blocked, Failure, Step, WaveState};
use super::target::Target;
use super::waves::{RolloutId, ordered};
use super::windows::{self, Opening};

/// The time over which the rate of a wave is counted.
const RATE_TIME: SignedDuration = SignedDuration::from_mins(1);

/// The targets of a rollout. Only steps that name targets read them; the counts of waves decide all others.
pub(super) trait Targets {
    /// All of them.
    fn all(&self) -> Cow<'_, [Target<'_>]>;
    /// The targets of a wave, by their indices among all.
    fn members(&self, wave: usize) -> Vec<usize>;
}

/// The rules by which the evidence leads to the next step.
pub(super) struct Steps<'a> {
    pub(super) rollout: &'a Rollout,
    pub(super) id: &'a RolloutId,
    pub(super) record: Option<&'a RolloutRecord>,
    pub(super) phase: RolloutPhase,
    pub(super) waves: &'a [Wave],
    pub(super) states: &'a [WaveState],
    /// Whether a rollout that it comes after has not succeeded.
    pub(super) must_wait: bool,
    pub(super) now: Timestamp,
}

impl Steps<'_> {
    /// The next step. A device that joins a wave after it has passed gets the content, and holds up no later wave.
    pub(super) fn next(&self, targets: &dyn Targets) -> Step {
        if self.has_nothing_to_release(targets) {
            let shut = self.states.iter().position(|state| state.gate != Gate::Open);
            return shut.map_or(Step::Done, |wave| Step::Wait { wave, because: Blocked::NothingToRelease });
        }
        if let Some(failed) = self.first_failed() {
            return failed;
        }
        let mut of_passed = None;
        for (at, state) in self.states.iter().enumerate() {
            let is_released = state.tally.released == state.tally.targets;
            // Devices that come after the end of a rollout get its content without gates.
            if is_released && (state.gate == Gate::Open || self.phase == RolloutPhase::Succeeded) {
                continue;
            }
            if is_released {
                return self.gated(at, state);
            }
            let step = self.release(at, targets);
            if !state.has_passed || is_effective(&step, targets) {
                return step;
            }
            of_passed.get_or_insert(step);
        }
        of_passed.unwrap_or(Step::Done)
    }

    /// Whether every target that a release reaches had the content before any decision about it: then no planner takes a step.
    fn has_nothing_to_release(&self, targets: &dyn Targets) -> bool {
        if self.record.is_some_and(|record| record.phase() != RolloutPhase::Superseded) {
            return false;
        }
        let released: u64 = self.states.iter().map(|state| state.tally.released).sum();
        let all: u64 = self.states.iter().map(|state| state.tally.targets).sum();
        let reaches_none = || targets.all().iter().all(|target| target.is_released || target.is_refused);
        released == all || released > 0 && reaches_none()
    }

    /// The first wave that has failed, of those that have passed and the next one. It comes before any release, also to a late device of
    /// an earlier wave.
    fn first_failed(&self) -> Option<Step> {
        if self.phase == RolloutPhase::Succeeded {
            return None;
        }
        for (at, state) in self.states.iter().enumerate() {
            if state.tally.released == state.tally.targets && state.gate == Gate::Open {
                continue;
            }
            if let Some((because, verb)) = self.failure(at) {
                return Some(Step::Fail { wave: at, because, verb });
            }
            if !state.has_passed {
                break;
            }
        }
        None
    }

    /// The step at the gate behind a released wave.
    fn gated(&self, at: usize, state: &WaveState) -> Step {
        let is_ready = || self.record.is_some_and(|record| record.ready(&state.name).is_some());
        match state.gate {
            Gate::Checking => Step::Check { wave: at },
            Gate::Approving if !is_ready() => Step::Ready { wave: at },
            Gate::Approving => Step::Wait { wave: at, because: Blocked::Approval },
            Gate::Open
            | Gate::Shut
            | Gate::Empty
            | Gate::Soaking
            | Gate::TooManyFailures
            | Gate::OutOfReach
            | Gate::CheckFailed => Step::Wait { wave: at, because: Blocked::Gate },
        }
    }

    /// Why a wave has failed, and what the rollout decides then.
    fn failure(&self, at: usize) -> Option<(Failure, RolloutVerb)> {
        let state = self.states.get(at)?;
        let Deadlines { wave, rollout, at_end, .. } = self.rollout.deadlines;
        if state.gate.is_failed() {
            let on_failure = self.rollout.on_failure.verb();
            return Some(match state.gate {
                Gate::CheckFailed => (Failure::Check, on_failure),
                _ if self.has_failed_by_deadlines(at) => (Failure::DeviceDeadline, at_end.verb()),
                _ => (Failure::Gate, on_failure),
            });
        }
        let record = self.record?;
        let is_over = |began: Option<Timestamp>, time: Option<Duration>| {
            began.zip(time).is_some_and(|(began, time)| policy::is_over(began, time, self.now))
        };
        let is_shut = state.gate != Gate::Open;
        if is_shut && is_over(record.began(&state.name), wave) {
            Some((Failure::WaveDeadline, at_end.verb()))
        } else {
            is_over(record.first_began(), rollout).then(|| (Failure::RolloutDeadline, at_end.verb()))
        }
    }

    /// Whether a wave that has failed would not have, if devices past their deadline did not count as failed.
    fn has_failed_by_deadlines(&self, at: usize) -> bool {
        let tally = self.states[at].tally;
        let others = Tally { failed: tally.failed - tally.overdue, overdue: 0, ..tally };
        tally.overdue > 0 && !gate::judge(self.waves.get(at), &others).is_failed()
    }

    /// The release to unreleased members of a wave that its limit in flight, its rate and the budget leave room for.
    fn release(&self, at: usize, all: &dyn Targets) -> Step {
        let WaveState { name, tally, approvals, .. } = &self.states[at];
        let wait = |because| Step::Wait { wave: at, because };
        let is_under_way = self.record.is_some_and(|record| record.first_began().is_some());
        if self.must_wait && !is_under_way && self.phase != RolloutPhase::Succeeded {
            return wait(Blocked::After);
        }
        if let Opening::From(next) = windows::opening(&self.rollout.windows, self.now) {
            return wait(Blocked::Window(next));
        }
        let wave = self.waves.get(at);
        let slots = free_slots(wave, tally);
        if slots == 0 {
            return wait(Blocked::InFlight);
        }
        let targets = &all.all()[..];
        let free = match self.rate(wave, targets) {
            Ok(most) => slots.min(most),
            Err(next) => return wait(Blocked::Rate(next)),
        };
        let mut room = Room::beside(self.rollout.budget.as_ref(), targets);
        let waiting: Vec<_> =
            all.members(at).into_iter().filter(|target| !targets[*target].is_released).collect();
        let waiting = ordered(wave.map_or(&Order::Name, |wave| &wave.order), self.id, waiting, targets);
        let next: Vec<_> =
            waiting.into_iter().filter(|target| room.admits(&targets[*target])).take(free).collect();
        if next.is_empty() {
            return wait(Blocked::Budget);
        }
        let has_begun = self.phase == RolloutPhase::Succeeded
            || self.record.is_some_and(|record| record.began(name).is_some());
        let is_before = wave.is_some_and(|wave| wave.approval == Approval::Before);
        let needs_approval =
            is_before && !has_begun && approvals.is_some_and(|count| count.given < count.needed);
        Step::Release { wave: at, targets: next, needs_approval }
    }

    /// The number of devices that the rate of a wave leaves room for.
    ///
    /// # Errors
    /// None; the time at which there is room again.
    fn rate(&self, wave: Option<&Wave>, targets: &[Target<'_>]) -> Result<usize, Timestamp> {
        let Some(limit) = wave.and_then(|wave| wave.per_minute) else { return Ok(usize::MAX) };
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        let end = |released: Timestamp| released.checked_add(RATE_TIME).unwrap_or(Timestamp::MAX);
        let mut ends: Vec<_> = targets
            .iter()
            .filter(|target| target.is_released)
            // A clock ahead of this one must not stop a rollout for longer than the time of the rate.
            .filter_map(|target| target.released_at.map(|released| end(released.min(self.now))))
            .filter(|end| *end > self.now)
            .collect();
        ends.sort_unstable();
        match ends.len().checked_sub(limit) {
            Some(over) => Err(ends.get(over).copied().unwrap_or(self.now)),
            None => Ok(limit - ends.len()),
        }
    }
}

/// Whether a step releases to a device that a release reaches.
fn is_effective(step: &Step, all: &dyn Targets) -> bool {
    let Step::Release { targets: released, .. } = step else { return false };
    let targets = all.all();
    released.iter().any(|at| !targets[*at].is_refused)
}

/// The number of devices of a wave that may be released now.
fn free_slots(wave: Option<&Wave>, tally: &Tally) -> usize {
    let limit = wave.and_then(|wave| wave.max_in_flight);
    limit.map_or(usize::MAX, |limit| {
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        limit.saturating_sub(usize::try_from(tally.in_flight()).unwrap_or(usize::MAX))
    })
}
