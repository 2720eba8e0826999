//! After the last fault: links hold, programs run, people are diligent. Every rollout must end, or say what it waits for.

use std::collections::BTreeSet;

use muster_contract::rollout::{ReleaseRefusal, RolloutPhase, RolloutTarget, TargetsAnswer, WaitsFor};
use muster_contract::{DeploymentId, DeviceKey};
use muster_domain::rollout::{Blocked, Known, Line, RolloutProgress, Step, progress};

use super::checks::knows_nothing;
use super::law::{Lawful, has_ended_badly, must};
use super::ledger::lines;
use super::members::{entry, got_at, wanted};
use super::order::waits;
use super::people::{NAMES, requested_by};
use super::world::{Event, MINUTE, Millis, SECOND, World};

/// Time without a stored document or decision after which a world is at rest: longer than every soak time, silence and pause.
const REST: Millis = 4 * MINUTE;
/// The same of a script, which has short soak times and no silence.
const REST_OF_SCRIPT: Millis = MINUTE;
/// Time within which a world comes to rest.
const REST_WITHIN: Millis = 4 * 60 * MINUTE;
/// Time between two reviews.
const REVIEW: Millis = 20 * SECOND;
/// Reviews in a row that may find a rollout without an end: meanwhile planner and people look once more.
const OPEN_REVIEWS_MAX: u32 = 5;

pub(crate) const COMES_TO_REST: &str = "in the calm every rollout comes to rest";
pub(crate) const SAYS_WHY: &str = "a rollout that has not ended waits for a named device, person or time";
pub(crate) const FAITHFUL: &str = "LEDGER's view is what devices are";

/// How a rollout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Succeeded,
    Stopped,
    Aborted,
    RolledBack,
    WaitsForDevice,
    WaitsForRollout,
    WaitsForCheck,
    WaitsForPerson,
    WaitsForWindow,
    WaitsForCommit,
    NothingToRelease,
}

/// Whether every device that a release reaches had the content before any decision, and the sentence says so. No planner follows such a
/// rollout, because the publisher holds no change of it.
pub(crate) fn has_nothing_to_release(rollout: &RolloutProgress) -> bool {
    let phase = rollout.record.as_ref().map(|record| record.phase());
    let mut all = rollout.known.iter().zip(&rollout.targets);
    let has_all = all.all(|(known, target)| *known != Known::NotReleased || target.refused.is_some());
    let is_said = || rollout.state.step == Step::Done || rollout.why().starts_with("nothing to release");
    matches!(phase, None | Some(RolloutPhase::Superseded)) && has_all && is_said()
}

/// Whether a release reaches no device, because the publisher refuses all of them, and the sentence names each with the reason.
pub(crate) fn is_refused(rollout: &RolloutProgress, targets: &[usize]) -> bool {
    let why = rollout.why();
    targets.iter().all(|at| {
        let RolloutTarget { key, refused, .. } = &rollout.targets[*at];
        refused.is_some_and(|refused| why.contains(&format!("{key} {}", refused.words())))
    })
}

impl World {
    /// The faults end.
    pub(crate) fn calm(&mut self) {
        self.schedule.end();
        self.feed.stalled = None;
        self.expect_feed();
        for device in &mut self.devices {
            device.is_linked = true;
        }
        self.after(SECOND, Event::StartPublisher);
        self.after(SECOND, Event::StartPlanner(0));
        self.after(SECOND, Event::People);
        self.after(REVIEW, Event::Review);
        self.changed_at = self.now;
    }

    /// Every rollout of the accepted commit, by all that the hub has.
    pub(crate) fn progress(&self) -> Vec<RolloutProgress> {
        let Some(fleet) = &self.law.fleet else { return Vec::new() };
        let mut present = self.present.borrow_mut();
        present.move_to(&self.hub.ledger, self.hub.ledger.len() as u64);
        let ids: BTreeSet<DeploymentId> =
            fleet.devices.values().flatten().map(|content| content.id().clone()).collect();
        let mut all = Vec::new();
        for id in ids {
            let targets: Vec<_> = fleet.rollouts.keys().filter_map(|key| self.target(key, &id)).collect();
            let rollouts = fleet.rollouts.values().map(|file| (file.path.clone(), file.rollout.clone()));
            let decisions = self.hub.decisions.iter().filter(|((of, _), _)| *of == id);
            let answer = TargetsAnswer {
                revision: fleet.revision.clone(),
                rollouts: rollouts.collect(),
                targets,
                decisions: decisions.flat_map(|(_, (_, all))| all.rollouts.clone()).collect(),
                waits_for: waits(&self.hub, fleet, &id),
                next: None,
            };
            let mut lines = lines(&present.fleet, &id);
            for RolloutTarget { key, .. } in &answer.targets {
                let Line { freshness, last_heard_at, .. } = present.fleet.target_line(&id, key);
                lines.hearings.insert(key.clone(), (freshness, last_heard_at));
            }
            all.extend(progress(&id, answer, &lines, self.time()));
        }
        all
    }

    fn target(&self, key: &DeviceKey, id: &DeploymentId) -> Option<RolloutTarget> {
        let fleet = self.law.fleet.as_ref()?;
        let (wanted, entry) = (wanted(fleet, key, id), entry(self.hub.document(key), id));
        let published = entry.map(|entry| entry.digest);
        if wanted.is_none() && published.is_none() {
            return None;
        }
        Some(RolloutTarget {
            key: key.clone(),
            labels: (*fleet.labels_of(key)).clone(),
            rollout: fleet.rollouts.get(key)?.path.clone(),
            wanted,
            published,
            target_generation: entry.map(|entry| entry.target_generation),
            published_at: published.and_then(|digest| got_at(&self.hub, key, (id, digest))),
            refused: fleet.held_back.contains(key).then_some(ReleaseRefusal::HeldBack),
        })
    }

    /// Whether the world is at rest, with every rollout at an end or waiting for something that is named.
    pub(crate) fn review(&mut self) -> Result<bool, super::law::Breach> {
        let calm = self.now - self.schedule.length;
        must(calm < REST_WITHIN, COMES_TO_REST, || {
            let all: Vec<_> = self.progress().iter().map(RolloutProgress::why).collect();
            format!("after {} minutes: {all:?}", calm / MINUTE)
        })?;
        if self.now - self.changed_at < if self.checks.is_scripted { REST_OF_SCRIPT } else { REST } {
            self.open_reviews = 0;
            self.after(REVIEW, Event::Review);
            return Ok(false);
        }
        let all = self.progress();
        // Time alone may have opened a window or passed a deadline since planner and people looked.
        if self.open_reviews < OPEN_REVIEWS_MAX && all.iter().any(|rollout| self.end_of(rollout).is_none()) {
            self.open_reviews += 1;
            self.after(REVIEW, Event::Review);
            return Ok(false);
        }
        for rollout in all {
            let end = self.end_of(&rollout);
            must(end.is_some(), SAYS_WHY, || {
                format!("{} under {}: {}", rollout.deployment, rollout.file, rollout.why())
            })?;
            must(!rollout.why().is_empty(), SAYS_WHY, || format!("{} has no sentence", rollout.deployment))?;
            *self.tally.ends.entry(end.unwrap()).or_default() += 1;
        }
        self.faithful()?;
        Ok(true)
    }

    /// The end of a rollout at rest; `None` if it should go on.
    fn end_of(&self, rollout: &RolloutProgress) -> Option<End> {
        let waits = |wave: &usize, is_reason: &dyn Fn(Known) -> bool| {
            let members = &rollout.state.waves.get(*wave)?.members;
            let is_named = members.iter().any(|at| is_reason(rollout.known[*at]));
            is_named.then_some(End::WaitsForDevice)
        };
        if has_nothing_to_release(rollout) {
            return Some(End::NothingToRelease);
        }
        // A device without a fault is neither of these at rest.
        let is_silent = |known| matches!(known, Known::NotHeard | Known::Failed);
        match &rollout.state.step {
            Step::Done => (rollout.phase() == RolloutPhase::Succeeded).then_some(End::Succeeded),
            Step::Held { phase: RolloutPhase::Stopped } => Some(End::Stopped),
            Step::Held { phase: RolloutPhase::Aborted } => Some(End::Aborted),
            Step::Held { phase: RolloutPhase::RolledBack } => Some(End::RolledBack),
            Step::RollBack { targets } => {
                let has_no_other = |at: &usize| self.has_no_other(rollout, &rollout.targets[*at].key);
                let is_aborted = rollout.phase() == RolloutPhase::Aborted;
                let end = if is_aborted { End::Aborted } else { End::RolledBack };
                targets.iter().all(has_no_other).then_some(end)
            }
            Step::Wait { wave, because: Blocked::Gate | Blocked::InFlight } => waits(wave, &is_silent),
            Step::Wait { because: Blocked::Budget, .. } => {
                let is_dead = |target: &RolloutTarget| {
                    self.devices.iter().any(|device| device.key == target.key && !device.is_alive())
                };
                let has_failed = rollout.known.contains(&Known::Failed);
                (has_failed || rollout.targets.iter().any(is_dead)).then_some(End::WaitsForDevice)
            }
            Step::Wait { because: Blocked::After, .. } => {
                let has_end = |other: &WaitsFor| self.waits_at_rest(&other.deployment, &rollout.file);
                rollout.waits_for.iter().all(has_end).then_some(End::WaitsForRollout)
            }
            Step::Check { wave } => {
                let checks = &rollout.policy.waves.get(*wave)?.checks;
                let mut subjects = checks.iter().filter_map(|check| check.request.as_ref());
                subjects
                    .any(|subject| knows_nothing(subject.as_str(), rollout.digest))
                    .then_some(End::WaitsForCheck)
            }
            Step::Release { wave, needs_approval: true, .. }
            | Step::Wait { wave, because: Blocked::Approval } => {
                self.lacks_approvers(rollout, *wave).then_some(End::WaitsForPerson)
            }
            Step::Wait { because: Blocked::Window(Some(next)), .. } => {
                (*next > self.time()).then_some(End::WaitsForWindow)
            }
            Step::Release { targets, .. } => is_refused(rollout, targets).then_some(End::WaitsForCommit),
            Step::Wait { .. } | Step::Ready { .. } | Step::Fail { .. } | Step::Held { .. } => None,
        }
    }

    /// Whether fewer persons may approve a wave than it needs, because one of them has requested the run or the open gate.
    fn lacks_approvers(&self, rollout: &RolloutProgress, wave: usize) -> bool {
        let (rule, Some(wave)) = (&rollout.policy.approvals, rollout.policy.waves.get(wave)) else {
            return false;
        };
        let may_approve = |person: &usize| {
            let by = requested_by(*person);
            let is_own = rollout
                .record
                .as_ref()
                .is_some_and(|record| record.is_own_request(wave.name.as_str(), &by, rule));
            !is_own && rule.of.as_ref().is_none_or(|of| of.counted(&by).is_some())
        };
        (0..NAMES.len()).filter(may_approve).count() < rule.need.get() as usize
    }

    /// Whether a rollout of a deployment is at rest without success, so that others may wait for it.
    fn waits_at_rest(&self, id: &DeploymentId, file: &str) -> bool {
        let all = self.progress();
        let mut of_file = all.iter().filter(|rollout| rollout.deployment == *id && rollout.file == file);
        of_file.any(|rollout| {
            let end = self.end_of(rollout);
            end.is_some_and(|end| !matches!(end, End::Succeeded | End::NothingToRelease))
        })
    }

    /// Whether a device never had another content that is still good.
    pub(crate) fn has_no_other(&self, rollout: &RolloutProgress, key: &DeviceKey) -> bool {
        let subject = (rollout.deployment.clone(), rollout.file.clone());
        let is_bad = |digest| {
            let record = self.hub.record(&subject, digest);
            let phase = record.map(|record| record.phase()).unwrap_or_default();
            has_ended_badly(phase)
        };
        let all = self.hub.documents.get(key).into_iter().flatten();
        let mut digests =
            all.map(|(_, document)| entry(Some(document), &rollout.deployment).map(|entry| entry.digest));
        digests.all(|digest| digest.is_some_and(|digest| digest == rollout.digest || is_bad(digest)))
    }

    /// At rest, a linked device runs what DOWNLINK says.
    fn faithful(&self) -> Lawful {
        for rollout in self.progress() {
            for (target, known) in rollout.targets.iter().zip(&rollout.known) {
                let device = self.devices.iter().find(|device| device.key == target.key);
                let is_alive = device.is_some_and(|device| device.is_alive());
                let is_idle = matches!(known, Known::NotReleased | Known::Confirmed | Known::Failed);
                must(!is_alive || is_idle, FAITHFUL, || {
                    format!("{} of {}: {known:?}", target.key, rollout.deployment)
                })?;
            }
        }
        Ok(())
    }
}
