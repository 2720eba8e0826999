//! `muster rollout approve|pause|resume|stop|rollback|retry`: decisions of a person about the rollouts of a deployment, and
//! their history. The publisher records them; a decision that is repeated changes nothing.

use muster_contract::limits::ROLLBACK_DEVICES_MAX;
use muster_contract::rollout::{
    DecideAnswer, DecideRequest, GateEvidence, ReleaseAnswer, ReleaseRequest, RolloutRecord, RolloutVerb,
};
use muster_contract::{DeploymentId, WaveName};
use muster_domain::rollout::{RolloutProgress, WaveState};
use serde::Serialize;

use super::gather::{rollouts, targets};
use super::release_all;
use crate::ask::{AskError, Hub, understood};
use crate::config::DecisionArgs;
use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;

/// A recorded decision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decided {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The decision.
    pub verb: RolloutVerb,
    /// The answer of the publisher.
    #[serde(flatten)]
    pub answer: DecideAnswer,
    /// The devices that a rollback reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<ReleaseAnswer>,
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

/// Records a decision about each rollout of a deployment, or about one of them; true if no device was refused.
///
/// # Errors
/// No publisher or query service answers, no rollout governs the deployment, or the decision is not possible in the state of
/// a rollout; decisions about others stand.
pub(super) async fn decide(
    session: &mut Session<'_>,
    args: DecisionArgs,
    verb: RolloutVerb,
) -> Result<bool, CtlError> {
    let mut decided = Vec::new();
    for rollout in chosen(session, &args).await? {
        let answer = record(&session.hub, &rollout, verb, None, args.reason.clone(), None).await?;
        let devices = match verb {
            RolloutVerb::Rollback => Some(take_back(&session.hub, &rollout).await?),
            _ => None,
        };
        decided.push(Decided { deployment: rollout.deployment, verb, answer, devices });
    }
    let refused = decided.iter().filter_map(|decided| decided.devices.as_ref());
    let is_well = refused.into_iter().all(|answer| answer.refused.is_empty());
    settled(session.show_own(&decided, |decided, _| render::rollout::decided(decided))).map(|()| is_well)
}

/// Approves a wave of each rollout of a deployment that has one, or of one of them.
///
/// # Errors
/// As [`decide`], or no wave needs approval.
pub(super) async fn approve(
    session: &mut Session<'_>,
    args: DecisionArgs,
    wave: Option<WaveName>,
) -> Result<bool, CtlError> {
    let mut decided = Vec::new();
    for rollout in chosen(session, &args).await? {
        let Some(name) = wave.clone().or_else(|| next_to_approve(&rollout)) else { continue };
        let answer = approve_wave(&session.hub, &rollout, name, args.reason.clone()).await?;
        decided.push(Decided {
            deployment: rollout.deployment,
            verb: RolloutVerb::Approve,
            answer,
            devices: None,
        });
    }
    if decided.is_empty() {
        let message = format!(
            "no wave of '{}' waits for approval: `muster rollout show` lists the waves",
            args.deployment
        );
        return Err(CtlError::Name(message));
    }
    settled(session.show_own(&decided, |decided, _| render::rollout::decided(decided))).map(|()| true)
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

/// Records that a wave begins, with the evidence of the wave before it.
///
/// # Errors
/// As [`approve_wave`].
pub(super) async fn begin(hub: &Hub, rollout: &RolloutProgress, at: usize) -> Result<(), AskError> {
    let wave = rollout.state.waves.get(at).filter(|wave| wave.tally.released == 0);
    if let Some(name) = wave.and_then(|wave| wave.name.parse().ok()) {
        let evidence = rollout.evidence(at.saturating_sub(1));
        record(hub, rollout, RolloutVerb::Begin, Some(name), None, evidence).await?;
    }
    Ok(())
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
    let request = DecideRequest { deployment, digest, rollout, verb, wave, reason, evidence };
    understood(&hub.publisher("decide", &request).await?)
}

/// Gives the devices of a rollout that have its content the one that they had before it.
async fn take_back(hub: &Hub, rollout: &RolloutProgress) -> Result<ReleaseAnswer, AskError> {
    let has = rollout.targets.iter().filter(|target| target.published == Some(rollout.digest));
    let devices = has.map(|target| target.key.clone()).collect();
    let request = ReleaseRequest {
        deployment: rollout.deployment.clone(),
        digest: None,
        before: Some(rollout.digest),
        force: false,
        devices,
    };
    release_all(hub, request, ROLLBACK_DEVICES_MAX).await
}

/// The rollouts that the arguments name.
async fn chosen(session: &Session<'_>, args: &DecisionArgs) -> Result<Vec<RolloutProgress>, CtlError> {
    let mut found = rollouts(session, &args.deployment).await?;
    if let Some(file) = &args.file {
        found.retain(|rollout| rollout.file == *file);
        if found.is_empty() {
            let message = format!("no rollout of '{}' is governed by '{file}'", args.deployment);
            return Err(CtlError::Unknown { message, near: Vec::new() });
        }
    }
    Ok(found)
}

/// The first wave that needs approvals and has not begun.
fn next_to_approve(rollout: &RolloutProgress) -> Option<WaveName> {
    let waits = |wave: &&WaveState| {
        wave.tally.released == 0 && wave.approvals.is_some_and(|count| count.given < count.needed)
    };
    rollout.state.waves.iter().find(waits).and_then(|wave| wave.name.parse().ok())
}
