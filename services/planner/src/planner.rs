//! One round: evaluates every rollout of a deployment with held changes or an open rollout, and takes its next step: it
//! requests a release or records a decision.
//!
//! The publisher answers a repeated release or decision as done, so a round may end anywhere and begin anew. Two planners that
//! run at once request the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::query::GitStatus;
use muster_contract::rollout::{RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest};
use muster_contract::{DeploymentId, DeviceKey};
use muster_domain::rollout::{RolloutProgress, Step, progress};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::RoundError;
use crate::metrics::Metrics;
use crate::services::{Requests, Services};
use crate::step::{Effect, effects};

/// Time before a release that was refused twice for the same reasons is requested again.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// A rollout: deployment, content and path of the `rollout.yaml`.
type RolloutKey = (DeploymentId, Digest, String);

/// The planner.
pub struct Planner<R> {
    services: Services<R>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// The sentence that was logged last about each rollout.
    logged: BTreeMap<RolloutKey, String>,
    /// Rollouts whose releases are refused as before, each with the time of the next attempt.
    paused: BTreeMap<RolloutKey, Instant>,
    /// The refusals of the last release of each rollout, which were logged.
    refusals: BTreeMap<RolloutKey, BTreeMap<DeviceKey, ReleaseRefusal>>,
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
    pub const fn new(services: Services<R>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self {
            services,
            clock,
            metrics,
            logged: BTreeMap::new(),
            paused: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
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
        let git = self.services.status().await?.git;
        let omitted = git.as_ref().map_or(0, |git| git.held_omitted);
        if omitted > 0 {
            tracing::debug!(omitted, "further held changes follow once listed ones are released");
        }
        let mut deployments = BTreeSet::new();
        if let Some(GitStatus { held, open_rollouts, .. }) = git {
            deployments.extend(held.into_iter().map(|change| change.deployment));
            deployments.extend(open_rollouts.into_iter().map(|rollout| rollout.deployment));
        }
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
        self.paused.retain(|key, next| seen.contains(key) && *next > Instant::now());
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
        let targets = self.services.targets(id).await?;
        let lines = self.services.lines(id).await?;
        for rollout in progress(id, targets, &lines, self.clock.now()) {
            self.log(&rollout);
            seen.insert(key(&rollout));
            counts.add(&rollout);
            self.step(rollout).await?;
        }
        Ok(())
    }

    /// Takes the next step of a rollout, unless it waits for devices or persons. An effect that fails ends the step.
    async fn step(&mut self, rollout: RolloutProgress) -> Result<(), RoundError> {
        if self.paused.get(&key(&rollout)).is_some_and(|next| *next > Instant::now()) {
            return Ok(());
        }
        let (mut refusals, mut has_released) = (BTreeMap::new(), false);
        for effect in effects(&rollout) {
            match effect {
                Effect::Decide(request) => self.services.decide(&request).await.map(drop)?,
                Effect::Release(request) => {
                    has_released = true;
                    refusals.extend(self.release(&rollout, &request).await?);
                }
            }
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

    /// Logs the refusals of a release, each once until it changes: the next rounds request the same release again.
    fn log_refusals(&mut self, rollout: &RolloutProgress, refusals: BTreeMap<DeviceKey, ReleaseRefusal>) {
        let before = self.refusals.remove(&key(rollout)).unwrap_or_default();
        for (device, reason) in
            refusals.iter().filter(|(device, reason)| before.get(*device) != Some(*reason))
        {
            let reason = reason.words();
            tracing::warn!(%device, deployment = %rollout.deployment, reason, "a release was refused");
        }
        if !refusals.is_empty() && before == refusals {
            self.paused.insert(key(rollout), Instant::now() + REFUSED_PAUSE);
        }
        self.refusals.insert(key(rollout), refusals);
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
            Step::Release { needs_approval: true, .. } => self.approvals += 1,
            Step::Release { .. } | Step::Wait { .. } | Step::Done => {}
        }
    }
}

fn key(rollout: &RolloutProgress) -> RolloutKey {
    (rollout.deployment.clone(), rollout.digest, rollout.file.clone())
}
