//! Decisions about the rollouts of a deployment: approve, pause, resume, stop, abort, rollback, retry, and those that a step
//! takes. The publisher records them; a decision that is repeated changes nothing.

use muster_contract::canonical::Digest;
use muster_contract::limits::{DECISION_REASON_BYTES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::query::ErrorCode;
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, GateEvidence, ReleaseAnswer, ReleaseRequest, RolloutPhase, RolloutRecord,
    RolloutVerb,
};
use muster_contract::state::cut;
use muster_contract::{DeploymentId, DeviceKey, Timestamp, WaveName};
use muster_domain::rollout::{
    ApprovalCount, Blocked, Failure, Gate, Lines, RolloutProgress, Step, WaveState, progress,
};
use serde::Serialize;

use super::approvals::under_way;
use super::gather::{targets, version};
use super::release_all;
use crate::ask::{AskError, Hub, understood};

/// A decision about one rollout: recorded, or refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decided {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The decision.
    pub verb: RolloutVerb,
    /// Approvals of the wave, and the number that it needs, for an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
    /// The answer of the publisher; absent if it refused.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub answer: Option<DecideAnswer>,
    /// Why the publisher refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The devices that a rollback reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<ReleaseAnswer>,
}

impl Decided {
    /// Whether it was recorded, and no device was refused.
    pub fn is_well(&self) -> bool {
        self.refused.is_none() && self.devices.as_ref().is_none_or(|answer| answer.refused.is_empty())
    }
}

/// A decision that a person asks for.
#[derive(Debug, Clone)]
pub struct DecisionRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Only the rollout of this `rollout.yaml`, by its path in the repository.
    pub file: Option<String>,
    /// The reason, in one sentence, for the history.
    pub reason: Option<String>,
    /// Accepted [versions](super::version) of the rollouts; any version if empty. With versions the publisher also refuses a decision
    /// if the commit or another decision has come before it records this one.
    pub versions: Vec<String>,
}

/// Records a decision about each rollout of a deployment, or about one of them; none if no such rollout governs it. It needs
/// the publisher alone, so it works while the evidence is out of reach.
///
/// # Errors
/// No publisher answers.
pub async fn decide(
    hub: &Hub,
    request: &DecisionRequest,
    verb: RolloutVerb,
    now: Timestamp,
) -> Result<Vec<Decided>, AskError> {
    let mut all = Vec::new();
    for rollout in chosen(hub, request, now).await? {
        let answer = record(hub, &rollout, Decision::of(verb, request)).await;
        let mut decided = decided(&rollout, verb, answer)?;
        if verb == RolloutVerb::Rollback && decided.refused.is_none() {
            let has = rollout.targets.iter().filter(|target| target.published == Some(rollout.digest));
            let devices = has.map(|target| target.key.clone()).collect();
            decided.devices = Some(roll_back(hub, &rollout, devices).await?);
        }
        all.push(decided);
    }
    Ok(all)
}

/// Pauses every rollout that has not ended, of all deployments with a held change or an open rollout. One that cannot be paused holds
/// up no other.
///
/// # Errors
/// No publisher answers, or the last error about a rollout: all others are paused, and a repetition tries it again.
pub async fn pause_all(hub: &Hub, reason: Option<&String>, now: Timestamp) -> Result<Vec<Decided>, AskError> {
    let (mut all, mut failed) = (Vec::new(), None);
    for deployment in under_way(hub).await? {
        let (reason, versions) = (reason.cloned(), Vec::new());
        let request = DecisionRequest { deployment, file: None, reason, versions };
        if let Err(error) = pause_of(hub, &request, now, &mut all).await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(all), Err)
}

/// Pauses the rollouts of a deployment that may be paused. `all` gets these, and those that are paused already.
async fn pause_of(
    hub: &Hub,
    request: &DecisionRequest,
    now: Timestamp,
    all: &mut Vec<Decided>,
) -> Result<(), AskError> {
    let verb = RolloutVerb::Pause;
    let may = |phase| verb.is_possible_in(phase) || phase == RolloutPhase::Paused;
    for rollout in chosen(hub, request, now).await?.iter().filter(|rollout| may(rollout.phase())) {
        let answer = record(hub, rollout, Decision::of(verb, request)).await;
        all.push(decided(rollout, verb, answer)?);
    }
    Ok(())
}

/// Approves a wave of each rollout of a deployment that has one, or of one of them; none if no wave waits for approval.
///
/// # Errors
/// As [`decide`].
pub async fn approve(
    hub: &Hub,
    request: &DecisionRequest,
    wave: Option<&WaveName>,
    now: Timestamp,
) -> Result<Vec<Decided>, AskError> {
    let mut all = Vec::new();
    for rollout in chosen(hub, request, now).await? {
        let Some(state) = waiting_for_approval(&rollout, wave) else { continue };
        let Ok(name) = state.name.parse() else { continue };
        let verb = RolloutVerb::Approve;
        let decision = Decision { wave: Some(name), ..Decision::of(verb, request) };
        let mut decided = decided(&rollout, verb, record(hub, &rollout, decision).await)?;
        let is_new = decided.answer.as_ref().is_some_and(|answer| answer.changed);
        let counted =
            |count: ApprovalCount| ApprovalCount { given: count.given + usize::from(is_new), ..count };
        decided.approvals = state.approvals.map(counted);
        all.push(decided);
    }
    Ok(all)
}

/// Stops each rollout of a deployment, or one of them, with a wave that waits for approval: the refusal is its reason. None if no
/// wave waits for approval.
///
/// # Errors
/// As [`decide`].
pub async fn reject(
    hub: &Hub,
    request: &DecisionRequest,
    wave: Option<&WaveName>,
    now: Timestamp,
) -> Result<Vec<Decided>, AskError> {
    let mut all = Vec::new();
    for rollout in chosen(hub, request, now).await? {
        let Some(state) = waiting_for_approval(&rollout, wave) else { continue };
        let remark = request.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let reason = Some(format!("wave {} is rejected{remark}", state.name));
        let decision = Decision { reason, ..Decision::of(RolloutVerb::Stop, request) };
        all.push(decided(&rollout, RolloutVerb::Stop, record(hub, &rollout, decision).await)?);
    }
    Ok(all)
}

/// The result of a request for a decision. A refusal is one: other rollouts of the deployment may be in another phase.
fn decided(
    rollout: &RolloutProgress,
    verb: RolloutVerb,
    answer: Result<DecideAnswer, AskError>,
) -> Result<Decided, AskError> {
    let (answer, refused) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(AskError::Refused(body)) if body.code == ErrorCode::Conflict => (None, Some(body.message)),
        Err(error) => return Err(error),
    };
    let RolloutProgress { deployment, digest, file, .. } = rollout;
    let (deployment, digest, rollout) = (deployment.clone(), *digest, file.clone());
    Ok(Decided { deployment, digest, rollout, verb, approvals: None, answer, refused, devices: None })
}

/// Approves a wave.
///
/// # Errors
/// The publisher does not answer, or the rollout is in another state.
pub(super) async fn approve_wave(
    hub: &Hub,
    rollout: &RolloutProgress,
    wave: WaveName,
    reason: Option<String>,
) -> Result<DecideAnswer, AskError> {
    let decision = Decision { wave: Some(wave), reason, ..Decision::new(RolloutVerb::Approve) };
    record(hub, rollout, decision).await
}

/// Records that a wave begins, unless it has.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn record_begin(hub: &Hub, rollout: &RolloutProgress, at: usize) -> Result<(), AskError> {
    if let Some((name, evidence)) = rollout.begin(at) {
        let decision = Decision { wave: Some(name), evidence, ..Decision::new(RolloutVerb::Begin) };
        record(hub, rollout, decision).await?;
    }
    Ok(())
}

/// Records that the evidence of a wave is enough, and waits for approvals.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn ready(hub: &Hub, rollout: &RolloutProgress, at: usize) -> Result<(), AskError> {
    if let Some(name) = rollout.state.waves.get(at).and_then(|wave| wave.name.parse().ok()) {
        let evidence = rollout.evidence(at);
        let decision = Decision { wave: Some(name), evidence, ..Decision::new(RolloutVerb::Ready) };
        record(hub, rollout, decision).await?;
    }
    Ok(())
}

/// Records that the gate behind the wave that a rollout stands at counts as open, and returns the wave; `None` if the rollout waits
/// for no gate.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn force(
    hub: &Hub,
    rollout: &RolloutProgress,
    reason: &str,
) -> Result<Option<String>, AskError> {
    let Some(at) = forcible(rollout) else { return Ok(None) };
    let Some(state) = rollout.state.waves.get(at) else { return Ok(None) };
    let (wave, evidence) = (state.name.parse().ok(), rollout.evidence(at));
    let (reason, is_pinned) = (Some(reason.to_owned()), true);
    record(hub, rollout, Decision { verb: RolloutVerb::Force, wave, reason, evidence, is_pinned }).await?;
    Ok(Some(state.name.clone()))
}

/// The wave whose gate holds a rollout: it is shut, asks its checks, or has failed. Of a paused rollout it is the first such one.
fn forcible(rollout: &RolloutProgress) -> Option<usize> {
    let is_held = |wave: &WaveState| match wave.gate {
        Gate::Open | Gate::Approving => false,
        Gate::Empty => true,
        _ => wave.tally.released > 0,
    };
    match &rollout.state.step {
        Step::Wait { wave, because: Blocked::Gate | Blocked::NothingToRelease } | Step::Check { wave } => {
            Some(*wave)
        }
        Step::Fail { wave, because, .. } if *because != Failure::RolloutDeadline => Some(*wave),
        Step::Held { phase: RolloutPhase::Paused } => rollout.state.waves.iter().position(is_held),
        _ => None,
    }
}

/// Records that a rollout has ended well, unless it never began.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn finish(hub: &Hub, rollout: &RolloutProgress) -> Result<(), AskError> {
    if rollout.record.is_some() && rollout.phase() == RolloutPhase::Running {
        let evidence = rollout.last_evidence();
        record(hub, rollout, Decision { evidence, ..Decision::new(RolloutVerb::Finish) }).await?;
    }
    Ok(())
}

/// Records what the rollout says of a wave that has failed.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn fail(
    hub: &Hub,
    rollout: &RolloutProgress,
    at: usize,
    because: Failure,
    verb: RolloutVerb,
) -> Result<(), AskError> {
    let reason = rollout.state.waves.get(at).map(|wave| rollout.failure(wave, because));
    let evidence = rollout.evidence(at);
    record(hub, rollout, Decision { reason, evidence, ..Decision::new(verb) }).await.map(drop)
}

/// A decision about a rollout.
struct Decision {
    verb: RolloutVerb,
    wave: Option<WaveName>,
    reason: Option<String>,
    evidence: Option<GateEvidence>,
    /// The publisher refuses it unless commit, phase and decisions are those that were read.
    is_pinned: bool,
}

impl Decision {
    const fn new(verb: RolloutVerb) -> Self {
        Self { verb, wave: None, reason: None, evidence: None, is_pinned: false }
    }

    /// One that a person asks for.
    fn of(verb: RolloutVerb, request: &DecisionRequest) -> Self {
        let (reason, is_pinned) = (request.reason.clone(), !request.versions.is_empty());
        Self { reason, is_pinned, ..Self::new(verb) }
    }
}

async fn record(hub: &Hub, rollout: &RolloutProgress, decision: Decision) -> Result<DecideAnswer, AskError> {
    let Decision { verb, wave, reason, evidence, is_pinned } = decision;
    let request = DecideRequest {
        deployment: rollout.deployment.clone(),
        digest: rollout.digest,
        rollout: rollout.file.clone(),
        verb,
        wave,
        reason: reason.map(|reason| cut(reason, DECISION_REASON_BYTES_MAX)),
        evidence,
        result: None,
        expected: is_pinned.then(|| rollout.phase()),
        revision: is_pinned.then(|| rollout.revision.clone()),
        record: is_pinned.then(|| seen(rollout).version()),
    };
    understood(&hub.publisher("decide", &request).await?)
}

/// The record of a rollout as it was read; an empty one before the first decision.
fn seen(rollout: &RolloutProgress) -> RolloutRecord {
    rollout.record.clone().unwrap_or_else(|| RolloutRecord::new(rollout.digest, rollout.file.clone()))
}

/// Gives devices of a rollout the content that they had before it.
pub(super) async fn roll_back(
    hub: &Hub,
    rollout: &RolloutProgress,
    devices: Vec<DeviceKey>,
) -> Result<ReleaseAnswer, AskError> {
    let request = ReleaseRequest {
        before: Some(rollout.digest),
        ..ReleaseRequest::new(rollout.deployment.clone(), devices)
    };
    release_all(hub, request, ROLLBACK_DEVICES_MAX).await
}

/// The rollouts that a request names.
async fn chosen(
    hub: &Hub,
    request: &DecisionRequest,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, AskError> {
    let targets = targets(hub, &request.deployment).await?;
    let mut found = progress(&request.deployment, targets, &Lines::default(), now);
    let is_other = !request.versions.is_empty() && !request.versions.contains(&version(&found));
    if is_other && !found.is_empty() {
        return Err(AskError::VersionChanged(request.deployment.clone()));
    }
    found.retain(|rollout| request.file.as_ref().is_none_or(|file| *file == rollout.file));
    Ok(found)
}

/// The first wave that needs approvals, or the one with this name: it has not begun, or its evidence waits for them.
fn waiting_for_approval<'a>(rollout: &'a RolloutProgress, named: Option<&WaveName>) -> Option<&'a WaveState> {
    let record = rollout.record.as_ref();
    let waits = move |(at, _): &(usize, &WaveState)| {
        rollout.policy.waves.get(*at).is_some_and(|wave| wave.waits_for_approval(record))
    };
    let is_named = |wave: &&WaveState| named.is_none_or(|name| name.as_str() == wave.name);
    rollout.state.waves.iter().enumerate().filter(waits).map(|(_, wave)| wave).find(is_named)
}
