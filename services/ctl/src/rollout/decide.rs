//! `muster rollout approve|pause|resume|stop|rollback|retry`: decisions of a person about the rollouts of a deployment, and
//! their history. The publisher records them; a decision that is repeated changes nothing.

use muster_contract::canonical::Digest;
use muster_contract::limits::{DECISION_REASON_BYTES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::query::ErrorCode;
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, GateEvidence, ReleaseAnswer, ReleaseRequest, RolloutPhase, RolloutRecord,
    RolloutVerb,
};
use muster_contract::state::cut;
use muster_contract::{DeploymentId, WaveName};
use muster_domain::rollout::{ApprovalCount, Failure, Lines, RolloutProgress, WaveState, progress};
use serde::Serialize;

use super::gather::{targets, ungoverned};
use super::release_all;
use crate::ask::{AskError, Hub, understood};
use crate::config::DecisionArgs;
use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;

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
    fn is_well(&self) -> bool {
        self.refused.is_none() && self.devices.as_ref().is_none_or(|answer| answer.refused.is_empty())
    }
}

/// The decisions about the rollouts of a deployment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its rollouts, the one that was decided about last at the end.
    pub rollouts: Vec<RolloutRecord>,
}

/// Records a decision about each rollout of a deployment, or about one of them; true if each was recorded and no device was
/// refused. It needs the publisher alone, so it works while the evidence is out of reach.
///
/// # Errors
/// No publisher answers, or no rollout governs the deployment.
pub(super) async fn decide(
    session: &mut Session<'_>,
    args: DecisionArgs,
    verb: RolloutVerb,
) -> Result<bool, CtlError> {
    let mut all = Vec::new();
    for rollout in chosen(session, &args).await? {
        let answer = record(&session.hub, &rollout, verb, None, args.reason.clone(), None).await;
        let mut decided = decided(&rollout, verb, answer)?;
        if verb == RolloutVerb::Rollback && decided.refused.is_none() {
            decided.devices = Some(roll_back(&session.hub, &rollout).await?);
        }
        all.push(decided);
    }
    show(session, &all)
}

/// Approves a wave of each rollout of a deployment that has one, or of one of them.
///
/// # Errors
/// As [`decide`], or no wave waits for approval.
pub(super) async fn approve(
    session: &mut Session<'_>,
    args: DecisionArgs,
    wave: Option<WaveName>,
) -> Result<bool, CtlError> {
    let mut all = Vec::new();
    for rollout in chosen(session, &args).await? {
        let names = |state: &&WaveState| wave.as_ref().is_none_or(|wave| wave.as_str() == state.name);
        let Some(state) = waiting_for_approval(&rollout).find(names) else { continue };
        let Ok(name) = state.name.parse() else { continue };
        let answer = approve_wave(&session.hub, &rollout, name, args.reason.clone()).await;
        let mut decided = decided(&rollout, RolloutVerb::Approve, answer)?;
        let is_new = decided.answer.as_ref().is_some_and(|answer| answer.changed);
        let counted =
            |count: ApprovalCount| ApprovalCount { given: count.given + usize::from(is_new), ..count };
        decided.approvals = state.approvals.map(counted);
        all.push(decided);
    }
    if all.is_empty() {
        let what = wave.map_or_else(|| "no wave".to_owned(), |wave| format!("no wave '{wave}'"));
        let message = format!(
            "{what} of '{}' waits for approval: `muster rollout show` lists the waves",
            args.deployment
        );
        return Err(CtlError::Name(message));
    }
    show(session, &all)
}

fn show(session: &mut Session<'_>, all: &[Decided]) -> Result<bool, CtlError> {
    let is_well = all.iter().all(Decided::is_well);
    settled(session.show_own(&all, |all, _| render::rollout::decided(all))).map(|()| is_well)
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

/// Shows the decisions about the rollouts of a deployment.
///
/// # Errors
/// No publisher answers.
pub(super) async fn history(session: &mut Session<'_>, deployment: DeploymentId) -> Result<bool, CtlError> {
    let rollouts = targets(&session.hub, &deployment).await?.decisions;
    let (history, frame) = (History { deployment, rollouts }, session.frame());
    session.show_own(&history, |history, _| render::rollout::history(history, frame))?;
    Ok(true)
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
    record(hub, rollout, RolloutVerb::Approve, Some(wave), reason, None).await
}

/// Records that a wave begins, unless it has.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn begin(hub: &Hub, rollout: &RolloutProgress, at: usize) -> Result<(), AskError> {
    if let Some((name, evidence)) = rollout.begin(at) {
        record(hub, rollout, RolloutVerb::Begin, Some(name), None, evidence).await?;
    }
    Ok(())
}

/// Records that a rollout has ended well, unless it never began.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn finish(hub: &Hub, rollout: &RolloutProgress) -> Result<(), AskError> {
    if rollout.record.is_some() && rollout.phase() == RolloutPhase::Running {
        record(hub, rollout, RolloutVerb::Finish, None, None, None).await?;
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
    record(hub, rollout, verb, None, reason, rollout.evidence(at)).await.map(drop)
}

async fn record(
    hub: &Hub,
    rollout: &RolloutProgress,
    verb: RolloutVerb,
    wave: Option<WaveName>,
    reason: Option<String>,
    evidence: Option<GateEvidence>,
) -> Result<DecideAnswer, AskError> {
    let RolloutProgress { deployment, digest, file, .. } = rollout;
    let (deployment, digest, rollout) = (deployment.clone(), *digest, file.clone());
    let reason = reason.map(|reason| cut(reason, DECISION_REASON_BYTES_MAX));
    let (expected, revision) = (None, None);
    let request =
        DecideRequest { deployment, digest, rollout, verb, wave, reason, evidence, expected, revision };
    understood(&hub.publisher("decide", &request).await?)
}

/// Gives the devices of a rollout that have its content the one that they had before it.
pub(super) async fn roll_back(hub: &Hub, rollout: &RolloutProgress) -> Result<ReleaseAnswer, AskError> {
    let has = rollout.targets.iter().filter(|target| target.published == Some(rollout.digest));
    let devices = has.map(|target| target.key.clone()).collect();
    let request = ReleaseRequest {
        before: Some(rollout.digest),
        ..ReleaseRequest::new(rollout.deployment.clone(), devices)
    };
    release_all(hub, request, ROLLBACK_DEVICES_MAX).await
}

/// The rollouts that the arguments name.
async fn chosen(session: &Session<'_>, args: &DecisionArgs) -> Result<Vec<RolloutProgress>, CtlError> {
    let targets = targets(&session.hub, &args.deployment).await?;
    let mut found = progress(&args.deployment, targets, &Lines::default(), session.clock.now());
    if found.is_empty() {
        return Err(ungoverned(&args.deployment));
    }
    if let Some(file) = &args.file {
        found.retain(|rollout| rollout.file == *file);
        if found.is_empty() {
            let message = format!("no rollout of '{}' is governed by '{file}'", args.deployment);
            return Err(CtlError::Unknown { message, near: Vec::new() });
        }
    }
    Ok(found)
}

/// The waves that need approvals and have not begun.
fn waiting_for_approval(rollout: &RolloutProgress) -> impl Iterator<Item = &WaveState> {
    let record = rollout.record.as_ref();
    let has_begun = move |wave: &WaveState| record.is_some_and(|record| record.began(&wave.name).is_some());
    rollout.state.waves.iter().filter(move |wave| wave.approvals.is_some() && !has_begun(wave))
}
