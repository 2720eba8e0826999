//! One round: evaluates every rollout of a deployment with held changes or an open rollout, and takes its next step: it
//! requests a release or records a decision.
//!
//! The publisher answers a repeated release or decision as done, so a round may end anywhere and begin anew. Two planners that
//! run at once request the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, RolloutPhase, TargetsAnswer,
};
use muster_contract::{DeploymentId, DeviceKey};
use muster_domain::rollout::{Blocked, RolloutProgress, Step, progress};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::asker::Asker;
use crate::checks::Checks;
use crate::error::RoundError;
use crate::metrics::Metrics;
use crate::services::{Requests, Services};
use crate::step::{Effect, check_decision, effects};

/// Time before a release to a device that was refused is requested again.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// A rollout: deployment, content and path of the `rollout.yaml`.
pub(crate) type RolloutKey = (DeploymentId, Digest, String);

/// The planner.
pub struct Planner<R> {
    services: Services<R>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// The sentence that was logged last about each rollout.
    logged: BTreeMap<RolloutKey, String>,
    /// The devices of each rollout that were refused, with the time from which a release to each is requested again.
    refusals: BTreeMap<RolloutKey, BTreeMap<DeviceKey, Refused>>,
    /// The checks behind waves.
    checks: Checks<R>,
}

/// A refused release.
#[derive(Debug, Clone, Copy)]
struct Refused {
    reason: ReleaseRefusal,
    until: Instant,
}

/// The counts of a round.
#[derive(Default)]
struct Counts {
    rollouts: i64,
    stopped: i64,
    approvals: i64,
}

impl<R: Requests> Planner<R> {
    /// A planner before its first round.
    pub fn new(services: Services<R>, asker: Asker<R>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        let checks = Checks::new(asker, metrics.clone());
        let (logged, refusals) = (BTreeMap::new(), BTreeMap::new());
        Self { services, clock, metrics, logged, refusals, checks }
    }

    /// Plans until `stop`, which ends a round after the deployment at hand.
    pub async fn run(mut self, every: Duration, ready: Latch, stop: CancellationToken) {
        let (mut last_error, mut ready) = (None, Some(ready));
        while !stop.is_cancelled() {
            let error = self.round(&stop).await.err().map(|error| chain(&error));
            match &error {
                None => {
                    if let Some(ready) = ready.take() {
                        ready.release();
                    }
                }
                Some(error) => {
                    self.metrics.failures.inc();
                    if last_error.as_ref() != Some(error) {
                        tracing::warn!(error, retry_in = ?every, "cannot evaluate all rollouts");
                    }
                }
            }
            last_error = error;
            stop.run_until_cancelled(tokio::time::sleep(every)).await;
        }
    }

    /// Evaluates every rollout once. An error of one deployment holds up no other; the first one is returned at the end.
    async fn round(&mut self, stop: &CancellationToken) -> Result<(), RoundError> {
        let deployments = self.services.deployments().await?;
        let (mut counts, mut seen) = (Counts::default(), BTreeSet::new());
        let mut first_error = None;
        for id in deployments {
            if stop.is_cancelled() {
                return Ok(());
            }
            match self.evaluate(&id, &mut counts, &mut seen).await {
                Err(error) if error.is_of_one_deployment() => _ = first_error.get_or_insert(error),
                result => result?,
            }
        }
        self.logged.retain(|key, _| seen.contains(key));
        self.refusals.retain(|key, _| seen.contains(key));
        self.checks.retain(|(key, _)| seen.contains(key));
        self.metrics.rollouts.set(counts.rollouts);
        self.metrics.stopped.set(counts.stopped);
        self.metrics.approvals.set(counts.approvals);
        first_error.map_or(Ok(()), Err)
    }

    /// Evaluates the rollouts of one deployment and takes the next step of each.
    async fn evaluate(
        &mut self,
        id: &DeploymentId,
        counts: &mut Counts,
        seen: &mut BTreeSet<RolloutKey>,
    ) -> Result<(), RoundError> {
        let mut targets = self.services.targets(id).await?;
        self.recall_refusals(id, &mut targets);
        let (lines, now) = (self.services.lines(id).await?, self.clock.now());
        let mut rollouts = progress(id, targets.clone(), &lines, now);
        if let Some(through) = lines.ledger_through.filter(|_| rollouts.iter().any(records_a_judgement)) {
            // The pages are of several sequences. A decision that can be recomputed rests on one.
            match self.services.lines_at(id, through).await {
                Ok(lines) => rollouts = progress(id, targets, &lines, now),
                Err(error) => {
                    tracing::debug!(deployment = %id, error = chain(&error), "cannot read the view at one sequence");
                }
            }
        }
        for rollout in rollouts {
            self.log(&rollout);
            seen.insert(key(&rollout));
            counts.add(&rollout);
            self.step(rollout).await?;
        }
        Ok(())
    }

    /// Takes the next step of a rollout, unless it waits for devices or persons. An effect that fails ends the step.
    async fn step(&mut self, rollout: RolloutProgress) -> Result<(), RoundError> {
        if !matches!(rollout.state.step, Step::Check { .. }) {
            let of = key(&rollout);
            self.checks.retain(|(key, _)| *key != of);
        }
        let (mut refusals, mut has_released) = (BTreeMap::new(), false);
        for effect in effects(&rollout, &self.refused_now(&rollout)) {
            match effect {
                Effect::Decide(request) => self.services.decide(&request).await.map(drop)?,
                Effect::Release(request) => {
                    has_released = true;
                    refusals.extend(self.release(&rollout, &request).await?);
                }
            }
        }
        if let Step::Check { wave } = rollout.state.step {
            self.check(&rollout, wave).await?;
        }
        if has_released {
            self.log_refusals(&rollout, refusals);
        }
        Ok(())
    }

    /// Requests a release; returns the refusals.
    async fn release(
        &self,
        rollout: &RolloutProgress,
        request: &ReleaseRequest,
    ) -> Result<BTreeMap<DeviceKey, ReleaseRefusal>, RoundError> {
        let ReleaseAnswer { released, refused } = self.services.release(request).await?;
        self.metrics.released.inc_by(released.len() as u64);
        if !released.is_empty() {
            let RolloutProgress { deployment, digest, file, .. } = rollout;
            let (devices, refused) = (released.len(), refused.len());
            let done = if request.before.is_some() { "rolled devices back" } else { "released a wave" };
            tracing::info!(%deployment, %digest, rollout = file, devices, refused, "{done}");
        }
        Ok(refused.into_iter().map(|RefusedRelease { key, reason }| (key, reason)).collect())
    }

    /// Keeps the refusals of a release for a while, and logs each once until it changes.
    fn log_refusals(&mut self, rollout: &RolloutProgress, refusals: BTreeMap<DeviceKey, ReleaseRefusal>) {
        let now = Instant::now();
        let (until, known) = (now + REFUSED_PAUSE, self.refusals.entry(key(rollout)).or_default());
        for (device, reason) in refusals {
            let before = known.insert(device.clone(), Refused { reason, until });
            if before.is_none_or(|before| before.reason != reason) {
                let reason = reason.words();
                tracing::warn!(%device, deployment = %rollout.deployment, reason, "a release was refused");
            }
        }
        if known.values().any(|refused| refused.until <= now) {
            let targets: BTreeSet<_> = rollout.targets.iter().map(|target| &target.key).collect();
            known.retain(|device, _| targets.contains(device));
        }
    }

    /// Adds the refusals of the last releases to targets: other devices of their waves come first.
    fn recall_refusals(&self, id: &DeploymentId, answer: &mut TargetsAnswer) {
        let now = Instant::now();
        for ((_, digest, file), refused) in self.refusals.iter().filter(|((of, ..), _)| of == id) {
            for target in answer.targets.iter_mut().filter(|target| target.rollout == *file) {
                if target.wanted == Some(*digest) && target.refused.is_none() {
                    let refused = refused.get(&target.key).filter(|refused| refused.until > now);
                    target.refused = refused.map(|refused| refused.reason);
                }
            }
        }
    }

    /// The devices of a rollout that are known to be refused at present.
    fn refused_now(&self, rollout: &RolloutProgress) -> BTreeSet<DeviceKey> {
        let (now, refused) = (Instant::now(), self.refusals.get(&key(rollout)));
        let refused = refused.into_iter().flatten().filter(|(_, refused)| refused.until > now);
        refused.map(|(device, _)| device.clone()).collect()
    }

    /// Asks the checks of a wave, and records their result once it changes.
    async fn check(&mut self, rollout: &RolloutProgress, at: usize) -> Result<(), RoundError> {
        let (Some(wave), Some(question)) = (rollout.policy.waves.get(at), rollout.question(at)) else {
            return Ok(());
        };
        let of_wave = (key(rollout), wave.name.to_string());
        let Some((result, reason)) = self.checks.advance(of_wave, &wave.checks, &question).await else {
            return Ok(());
        };
        let known = rollout.record.as_ref().and_then(|record| record.checked(wave.name.as_str()));
        if known.and_then(|check| check.result) == Some(result) {
            return Ok(());
        }
        let request = check_decision(rollout, at, result, reason);
        self.services.decide(&request).await.map(drop)
    }

    /// Logs the next step of a rollout, or what it waits for, once until that changes.
    fn log(&mut self, rollout: &RolloutProgress) {
        let (key, why) = (key(rollout), rollout.why());
        if self.logged.get(&key) != Some(&why) {
            let RolloutProgress { deployment, digest, file, revision, .. } = rollout;
            tracing::info!(%deployment, %digest, rollout = file, commit.id = revision, why, "evaluated a rollout");
            self.logged.insert(key, why);
        }
    }
}

impl Counts {
    fn add(&mut self, rollout: &RolloutProgress) {
        self.rollouts += 1;
        match rollout.state.step {
            Step::Fail { .. } | Step::Held { .. } | Step::RollBack { .. } => self.stopped += 1,
            Step::Release { needs_approval: true, .. }
            | Step::Ready { .. }
            | Step::Wait { because: Blocked::Approval, .. } => self.approvals += 1,
            Step::Release { .. } | Step::Check { .. } | Step::Wait { .. } | Step::Done => {}
        }
    }
}

/// Whether the next step of a rollout records a decision that rests on evidence.
fn records_a_judgement(rollout: &RolloutProgress) -> bool {
    match rollout.state.step {
        Step::Release { wave, needs_approval: false, .. } => rollout.begin(wave).is_some(),
        Step::Fail { .. } | Step::Check { .. } | Step::Ready { .. } => true,
        Step::Done => rollout.record.is_some() && rollout.phase() == RolloutPhase::Running,
        Step::Release { .. } | Step::Wait { .. } | Step::Held { .. } | Step::RollBack { .. } => false,
    }
}

fn key(rollout: &RolloutProgress) -> RolloutKey {
    (rollout.deployment.clone(), rollout.digest, rollout.file.clone())
}
