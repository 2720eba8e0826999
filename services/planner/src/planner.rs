//! One round: evaluates every rollout of a deployment with held changes or an open rollout, and takes its next step: it
//! requests a release or records a decision.
//!
//! The publisher answers a repeated release or decision as done, so a round may end anywhere and begin anew. Two planners that
//! run at once request the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::limits::{DECISION_REASON_BYTES_MAX, RELEASE_DEVICES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::query::GitStatus;
use muster_contract::rollout::{
    DecideRequest, GateEvidence, RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, RolloutPhase,
    RolloutVerb,
};
use muster_contract::state::cut;
use muster_contract::{DeploymentId, DeviceKey, WaveName};
use muster_domain::rollout::{RolloutProgress, Step, progress};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::RoundError;
use crate::metrics::Metrics;
use crate::services::Services;

/// Time before a release that was refused twice for the same reasons is requested again.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// A rollout: deployment, content and path of the `rollout.yaml`.
type RolloutKey = (DeploymentId, Digest, String);

/// The planner.
pub struct Planner {
    services: Services,
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

impl Planner {
    /// A planner before its first round.
    pub const fn new(services: Services, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
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

    /// Takes the next step of a rollout, unless it waits for devices or persons.
    async fn step(&mut self, rollout: RolloutProgress) -> Result<(), RoundError> {
        if self.paused.get(&key(&rollout)).is_some_and(|next| *next > Instant::now()) {
            return Ok(());
        }
        match &rollout.state.step {
            Step::Release { wave, targets, needs_approval: false } => {
                self.release_wave(&rollout, *wave, targets).await
            }
            Step::RollBack { targets } => self.roll_back(&rollout, targets).await,
            Step::Fail { wave, because, verb } => {
                let reason = rollout.state.waves.get(*wave).map(|wave| rollout.failure(wave, *because));
                self.decide(&rollout, *verb, None, reason, rollout.evidence(*wave)).await
            }
            Step::Done if rollout.record.is_some() && rollout.phase() == RolloutPhase::Running => {
                self.decide(&rollout, RolloutVerb::Finish, None, None, rollout.last_evidence()).await
            }
            Step::Release { .. } | Step::Wait { .. } | Step::Held { .. } | Step::Done => Ok(()),
        }
    }

    /// Releases to targets of a wave. The record that the wave begins comes first, so no release lacks its evidence.
    async fn release_wave(
        &mut self,
        rollout: &RolloutProgress,
        at: usize,
        targets: &[usize],
    ) -> Result<(), RoundError> {
        if let Some((name, evidence)) = rollout.begin(at) {
            self.decide(rollout, RolloutVerb::Begin, Some(name), None, evidence).await?;
        }
        let mut refusals = BTreeMap::new();
        for devices in chunks(rollout, targets, RELEASE_DEVICES_MAX) {
            let request = ReleaseRequest { digest: Some(rollout.digest), ..to(rollout, devices) };
            refusals.extend(self.release(rollout, &request, "released a wave").await?);
        }
        self.log_refusals(rollout, refusals);
        Ok(())
    }

    /// Gives targets of a rollout that is rolled back the content that they had before.
    async fn roll_back(&mut self, rollout: &RolloutProgress, targets: &[usize]) -> Result<(), RoundError> {
        let mut refusals = BTreeMap::new();
        for devices in chunks(rollout, targets, ROLLBACK_DEVICES_MAX) {
            let request = ReleaseRequest { before: Some(rollout.digest), ..to(rollout, devices) };
            refusals.extend(self.release(rollout, &request, "rolled devices back").await?);
        }
        self.log_refusals(rollout, refusals);
        Ok(())
    }

    /// Requests a release; returns the refusals.
    async fn release(
        &self,
        rollout: &RolloutProgress,
        request: &ReleaseRequest,
        done: &str,
    ) -> Result<BTreeMap<DeviceKey, ReleaseRefusal>, RoundError> {
        let ReleaseAnswer { released, refused } = self.services.release(request).await?;
        self.metrics.released.inc_by(released.len() as u64);
        if !released.is_empty() {
            let RolloutProgress { deployment, digest, file, .. } = rollout;
            let (devices, refused) = (released.len(), refused.len());
            tracing::info!(%deployment, %digest, rollout = file, devices, refused, "{done}");
        }
        Ok(refused.into_iter().map(|RefusedRelease { key, reason }| (key, reason)).collect())
    }

    /// Records a decision about a rollout.
    async fn decide(
        &self,
        rollout: &RolloutProgress,
        verb: RolloutVerb,
        wave: Option<WaveName>,
        reason: Option<String>,
        evidence: Option<GateEvidence>,
    ) -> Result<(), RoundError> {
        let request = DecideRequest {
            deployment: rollout.deployment.clone(),
            digest: rollout.digest,
            rollout: rollout.file.clone(),
            verb,
            wave,
            reason: reason.map(|reason| cut(reason, DECISION_REASON_BYTES_MAX)),
            evidence,
            // A person may have decided since the round has judged the rollout.
            expected: Some(rollout.phase()),
        };
        self.services.decide(&request).await.map(drop)
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

/// Whether the next step of a rollout records a decision that rests on evidence.
fn records_a_judgement(rollout: &RolloutProgress) -> bool {
    match rollout.state.step {
        Step::Release { wave, needs_approval: false, .. } => rollout.begin(wave).is_some(),
        Step::Fail { .. } => true,
        Step::Done => rollout.record.is_some() && rollout.phase() == RolloutPhase::Running,
        Step::Release { .. } | Step::Wait { .. } | Step::Held { .. } | Step::RollBack { .. } => false,
    }
}

/// The devices of targets, in groups of `max`.
fn chunks(rollout: &RolloutProgress, targets: &[usize], max: usize) -> Vec<Vec<DeviceKey>> {
    let key = |at: &usize| rollout.targets[*at].key.clone();
    targets.chunks(max).map(|some| some.iter().map(key).collect()).collect()
}

/// A release of no content to devices, for the commit of the rollout.
fn to(rollout: &RolloutProgress, devices: Vec<DeviceKey>) -> ReleaseRequest {
    let revision = Some(rollout.revision.clone());
    ReleaseRequest { revision, ..ReleaseRequest::new(rollout.deployment.clone(), devices) }
}

fn key(rollout: &RolloutProgress) -> RolloutKey {
    (rollout.deployment.clone(), rollout.digest, rollout.file.clone())
}
