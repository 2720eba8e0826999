//! Judges the rollouts that are due, and takes the next step of each.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, RolloutRecord,
};
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::rollout::{Blocked, RolloutProgress, Step};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Counts, Planner, Work};
use crate::error::PlannerError;
use crate::ledger::Ledger;
use crate::rollouts::{Refusal, RolloutKey};
use crate::services::Requests;
use crate::step::{Effect, check_decision, effects, released};

/// Time before a release to a device that was refused is requested again, or the targets are listed again if their list refuses one.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

impl<R: Requests, L: Ledger> Planner<R, L> {
    /// Judges every rollout that is due, and takes its next step. False if the evidence or the planner ended meanwhile: the other
    /// rollouts stay due.
    pub(super) async fn judge(&mut self, stop: &CancellationToken) -> bool {
        let due = self.due();
        if due.is_empty() {
            return true;
        }
        let mut are_judged = true;
        for key in due {
            // The step of the rollout before may have taken long.
            self.follow_waiting().await;
            if stop.is_cancelled() || !self.is_current() {
                are_judged = false;
                break;
            }
            let taken = self.judge_one(&key).await;
            self.judged_last = Some(key.clone());
            if let Err(error) = &taken {
                if let Some(rollout) = self.rollouts.rollout(&key) {
                    (rollout.has_failed, rollout.is_touched) = (true, true);
                    rollout.due = Some(Instant::now() + self.every);
                }
                if matches!(error, PlannerError::Refused { .. }) {
                    // Another decision, commit or release has come in between.
                    self.rollouts.outdate(&key.0);
                }
            }
            self.report(Work::Step(key), taken);
        }
        let mut counts = Counts::default();
        self.rollouts.all().for_each(|rollout| counts.add(&rollout.live));
        self.metrics.rollouts.set(counts.rollouts);
        self.metrics.stopped.set(counts.stopped);
        self.metrics.approvals.set(counts.approvals);
        are_judged
    }

    /// The rollouts that are due, in order, starting after the one judged last, so that a slow rollout does not starve others.
    fn due(&mut self) -> Vec<RolloutKey> {
        let now = Instant::now();
        let due = self.rollouts.all().filter(|rollout| rollout.is_due(now));
        let mut due: Vec<_> = due.map(|rollout| rollout.key()).collect();
        due.sort();
        let before = due.partition_point(|key| Some(key) <= self.judged_last.as_ref());
        due.rotate_left(before);
        due
    }

    /// Whether the evidence is current.
    fn is_current(&self) -> bool {
        self.evidence.check_current(Instant::now()).is_ok()
    }

    /// Judges a rollout, and takes its next step unless it waits for devices or persons. An effect that fails ends the step.
    async fn judge_one(&mut self, key: &RolloutKey) -> Result<(), PlannerError> {
        let (now, time, every) = (Instant::now(), self.evidence.judgement_time(self.clock.now()), self.every);
        let Some(rollout) = self.rollouts.rollout(key) else { return Ok(()) };
        rollout.forget_refusals(now);
        (rollout.is_touched, rollout.has_failed) = (false, false);
        let evidence = &self.evidence;
        let line = |device: &DeviceKey| Some(evidence.target_line(&key.0, device));
        rollout.live.judge(&line, time);
        let progress = rollout.live.progress(&line, evidence.ledger_seq());
        let (live, refusals) = (&rollout.live, &rollout.refusals);
        let is_refused =
            |device: &DeviceKey| refusals.contains_key(device) || live.is_refused_by_list(device);
        let effects = effects(&progress, &is_refused);
        let is_left_out = |at: &usize| live.is_refused_by_list(&progress.targets[*at].key);
        let again = released(&progress.state.step).iter().any(is_left_out).then(|| now + REFUSED_PAUSE);
        let ends = rollout.refusals.values().map(|refusal| refusal.until).chain(again);
        let wakes = rollout.live.wakes_at().map(|wakes| later(now, time, wakes));
        let is_checked = matches!(progress.state.step, Step::Check { .. });
        rollout.due = ends.chain(wakes).chain(is_checked.then(|| now + every)).min();
        self.log(key, &progress);
        if again.is_some() {
            self.rollouts.outdate_older(&key.0, REFUSED_PAUSE);
        }
        if !is_checked {
            self.checks.retain(|(of, _)| of != key);
        }
        let mut version = version(&progress);
        for effect in effects {
            if !self.is_current() {
                // The effect before has taken long: the judgement may be out of date.
                self.touch(key);
                return Ok(());
            }
            match effect {
                Effect::Decide(request) => {
                    let request = DecideRequest { record: Some(version), ..request };
                    let answer = self.decide(key, &request).await?;
                    if !answer.changed {
                        // Another planner has made this decision, and others may have followed it.
                        self.touch(key);
                        return Ok(());
                    }
                    version = answer.record.version();
                }
                Effect::Release(request) => {
                    let request = ReleaseRequest { record: Some(version), ..request };
                    self.release(key, &progress, &request).await?;
                }
            }
        }
        if let Step::Check { wave } = progress.state.step {
            self.check(key, &progress, wave).await?;
        }
        Ok(())
    }

    /// Has a rollout judged again in the next round.
    fn touch(&mut self, key: &RolloutKey) {
        self.rollouts.rollout(key).into_iter().for_each(|rollout| rollout.is_touched = true);
    }

    /// Requests the publisher to record a decision.
    async fn decide(
        &mut self,
        key: &RolloutKey,
        request: &DecideRequest,
    ) -> Result<DecideAnswer, PlannerError> {
        let answer = self.services.decide(request).await?;
        if let Some(rollout) = self.rollouts.rollout(key) {
            rollout.is_touched |= rollout.live.set_record(Some(answer.record.clone()));
        }
        Ok(answer)
    }

    /// Requests a release. Its answer counts until LEDGER shows the release.
    async fn release(
        &mut self,
        key: &RolloutKey,
        progress: &RolloutProgress,
        request: &ReleaseRequest,
    ) -> Result<(), PlannerError> {
        let ReleaseAnswer { released, refused } = self.services.release(request).await?;
        self.metrics.released.inc_by(released.len() as u64);
        if !released.is_empty() {
            let RolloutProgress { deployment, digest, file, .. } = progress;
            let (devices, refused) = (released.len(), refused.len());
            let done = if request.before.is_some() { "rolled devices back" } else { "released a wave" };
            tracing::info!(%deployment, %digest, rollout = file, devices, refused, "{done}");
        }
        let (evidence, now) = (&self.evidence, self.evidence.judgement_time(self.clock.now()));
        let Some(rollout) = self.rollouts.rollout(key) else { return Ok(()) };
        for device in &released {
            if let Some(at) = rollout.live.find(device) {
                rollout.live.set_answer(at, request.before.is_none(), now);
                rollout.live.observe(at, Some(&evidence.target_line(&key.0, device)));
                rollout.is_touched = true;
                rollout.answered_at = Some(Instant::now());
            }
        }
        let refused = refused.into_iter().map(|RefusedRelease { key, reason }| (key, reason)).collect();
        self.keep_refusals(key, refused);
        Ok(())
    }

    /// Keeps the refusals of a release for a while, and logs each once until it changes.
    fn keep_refusals(&mut self, key: &RolloutKey, refusals: BTreeMap<DeviceKey, ReleaseRefusal>) {
        let until = Instant::now() + REFUSED_PAUSE;
        let Some(rollout) = self.rollouts.rollout(key) else { return };
        let is_any = !refusals.is_empty();
        for (device, reason) in refusals {
            if let Some(at) = rollout.live.find(&device) {
                rollout.live.set_refused_by_answer(at, true);
            }
            let before = rollout.refusals.insert(device.clone(), Refusal { reason, until });
            if before.is_none_or(|before| before.reason != reason) {
                let reason = reason.words();
                tracing::warn!(%device, deployment = %key.0, reason, "a release was refused");
            }
        }
        if is_any {
            rollout.is_touched = true;
            self.rollouts.outdate(&key.0);
        }
    }

    /// Asks the checks of a wave, and records their result once it changes.
    async fn check(
        &mut self,
        key: &RolloutKey,
        rollout: &RolloutProgress,
        at: usize,
    ) -> Result<(), PlannerError> {
        let (Some(wave), Some(question)) = (rollout.policy.waves.get(at), rollout.question(at)) else {
            return Ok(());
        };
        let of_wave = (key.clone(), wave.name.to_string());
        let Some((result, reason)) = self.checks.advance(of_wave, &wave.checks, &question).await else {
            return Ok(());
        };
        let known = rollout.record.as_ref().and_then(|record| record.checked(wave.name.as_str()));
        if known.and_then(|check| check.result) == Some(result) {
            return Ok(());
        }
        let request = check_decision(rollout, at, result, reason);
        let request = DecideRequest { record: Some(version(rollout)), ..request };
        self.decide(key, &request).await.map(|_| ())
    }

    /// Logs the next step of a rollout, or what it waits for, once until that changes.
    fn log(&mut self, key: &RolloutKey, progress: &RolloutProgress) {
        let Some(rollout) = self.rollouts.rollout(key) else { return };
        // Without the counts of a waiting wave, which change with each report.
        let summary = match &progress.state.step {
            Step::Wait { wave, because: Blocked::After } => format!("{wave} {:?}", progress.waits_for),
            Step::Wait { wave, because } => format!("{wave} {because}"),
            Step::Release { wave, needs_approval, .. } => format!("{wave} {needs_approval}"),
            step => format!("{step:?}"),
        };
        if rollout.logged != summary {
            let RolloutProgress { deployment, digest, file, revision, .. } = progress;
            let why = progress.why();
            tracing::info!(%deployment, %digest, rollout = file, commit.id = revision, why, "evaluated a rollout");
            rollout.logged = summary;
        }
    }
}

/// The digest of the record that a rollout was judged by: the publisher refuses a request that was computed for another record.
fn version(rollout: &RolloutProgress) -> Digest {
    RolloutRecord::version_of(rollout.record.as_ref(), rollout.digest, &rollout.file)
}

/// The moment at which the clock reaches `at`; it shows `time` at `now`.
fn later(now: Instant, time: Timestamp, at: Timestamp) -> Instant {
    now + Duration::try_from(at.duration_since(time)).unwrap_or_default()
}
