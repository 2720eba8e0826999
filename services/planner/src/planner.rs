//! One round: evaluates every rollout of a deployment with held changes, and requests the release that its next step allows.
//!
//! Releases are the only effect, and the publisher answers a repeated one as done, so a round may end anywhere and begin
//! anew. Two planners that run at once request the same releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::limits::RELEASE_DEVICES_MAX;
use muster_contract::rollout::{RefusedRelease, ReleaseRefusal, ReleaseRequest};
use muster_contract::{DeploymentId, DeviceKey};
use muster_domain::rollout::{RolloutProgress, Step, progress};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

use crate::error::RoundError;
use crate::metrics::Metrics;
use crate::services::Services;

/// A rollout: deployment, content and path of the `rollout.yaml`.
type RolloutKey = (DeploymentId, Digest, String);

/// The planner.
pub struct Planner {
    services: Services,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// The sentence that was logged last about each rollout.
    logged: BTreeMap<RolloutKey, String>,
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

impl Planner {
    /// A planner before its first round.
    pub const fn new(services: Services, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self { services, clock, metrics, logged: BTreeMap::new(), refusals: BTreeMap::new() }
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
        let held = git.into_iter().flat_map(|git| git.held);
        let deployments: BTreeSet<_> = held.map(|change| change.deployment).collect();
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

    /// Takes the next step of a rollout, if it is a release that needs no person.
    async fn step(&mut self, rollout: RolloutProgress) -> Result<(), RoundError> {
        let Step::Release { targets, needs_approval: false, .. } = &rollout.state.step else { return Ok(()) };
        let devices: Vec<DeviceKey> = targets.iter().map(|at| rollout.targets[*at].key.clone()).collect();
        let mut refusals: BTreeMap<DeviceKey, ReleaseRefusal> = BTreeMap::new();
        for some in devices.chunks(RELEASE_DEVICES_MAX) {
            let request = ReleaseRequest {
                deployment: rollout.deployment.clone(),
                digest: Some(rollout.digest),
                devices: some.to_vec(),
                revision: Some(rollout.revision.clone()),
            };
            let answer = self.services.release(&request).await?;
            self.metrics.released.inc_by(answer.released.len() as u64);
            if !answer.released.is_empty() {
                tracing::info!(
                    deployment = %rollout.deployment,
                    digest = %rollout.digest,
                    rollout = rollout.file,
                    devices = answer.released.len(),
                    refused = answer.refused.len(),
                    "released a wave"
                );
            }
            refusals.extend(answer.refused.into_iter().map(|RefusedRelease { key, reason }| (key, reason)));
        }
        self.log_refusals(&rollout, refusals);
        Ok(())
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
            Step::Stop { .. } => self.stopped += 1,
            Step::Release { needs_approval: true, .. } => self.approvals += 1,
            Step::Release { .. } | Step::Wait { .. } | Step::Done => {}
        }
    }
}

fn key(rollout: &RolloutProgress) -> RolloutKey {
    (rollout.deployment.clone(), rollout.digest, rollout.file.clone())
}
