//! Rollouts for a person: what waits for a release, how far each wave is and was, decisions and whether they follow from their
//! evidence, and the next step.
//!
//! It holds no state. The publisher knows the content of each device, the query service the evidence about it, and
//! [`muster_domain::rollout`] decides; so a request that is interrupted, or made twice, releases nothing twice.

mod approvals;
mod decide;
mod explain;
mod gather;
mod operations;
mod past;
mod point_in_time;
mod snapshot;
mod verify;

use std::collections::BTreeMap;

use muster_contract::limits::RELEASE_DEVICES_MAX;
use muster_contract::rollout::{ReleaseAnswer, ReleaseRequest};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{Blocked, Outlook, RolloutProgress, Step, outlook};
use serde::Serialize;

use crate::ask::{AskError, Hub, understood};

pub use approvals::{
    ApprovalRequest, ApprovalState, RequestKey, approvals_of, read_approvals, under_way, waiting_wave,
};
pub use decide::{Decided, DecisionRequest, approve, decide, pause_all, reject};
pub use explain::{BlockingRule, DeviceGroup, Predicate, RolloutDeadline, RolloutWhy, explain};
pub use gather::{
    Gathered, HeldChanges, approvable, gathered, held_changes, rollouts_at, rollouts_of, targets, targets_by,
    version,
};
pub use operations::{RolloutOperations, operations, operations_listed};
pub use point_in_time::{RolloutsThen, UnknownThen, rollouts_then};
pub use snapshot::{RolloutSnapshot, RolloutWord, RolloutsFrame, WaveBar};
pub use verify::{Verification, VerifiedDecision, VerifiedRollout, VerifyResult, verify};

/// A rollout, with what is known of its course.
#[derive(Debug, Serialize)]
pub struct Previewed {
    /// The rollout.
    #[serde(flatten)]
    pub rollout: RolloutProgress,
    /// Its devices that are not heard, its budget and its end.
    pub outlook: Outlook,
}

/// The rollouts of a deployment with what is known of their course.
pub fn previewed(gathered: Gathered, now: Timestamp) -> Vec<Previewed> {
    let Gathered { rollouts, lines, .. } = gathered;
    let one = |rollout: RolloutProgress| Previewed { outlook: outlook(&rollout, &lines, now), rollout };
    rollouts.into_iter().map(one).collect()
}

/// A step that was taken, or why none was.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTaken {
    /// The rollout before the step.
    pub rollout: RolloutProgress,
    /// The wave whose gate was forced before the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced: Option<String>,
    /// The answer of the publisher, if the step is a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<ReleaseAnswer>,
}

impl StepTaken {
    /// Whether the step released to all of its devices, or the rollout is done.
    pub fn is_well(&self) -> bool {
        match (&self.rollout.state.step, &self.answer) {
            (Step::Done, _) => true,
            (Step::Release { .. }, Some(answer)) => answer.refused.is_empty(),
            _ => false,
        }
    }
}

/// Takes the next step of each rollout of a deployment, with the approval that it needs; none if no rollout governs it. With a reason
/// in `force`, a gate that is shut or has failed counts as open first, by a decision that is recorded.
///
/// # Errors
/// No publisher or query service answers; a release that was made before stands.
pub async fn next(
    hub: &Hub,
    id: &DeploymentId,
    force: Option<&str>,
    now: Timestamp,
) -> Result<Vec<StepTaken>, AskError> {
    let mut rollouts = rollouts_at(hub, id, now).await?;
    let mut forced = BTreeMap::new();
    if let Some(reason) = force {
        for rollout in &rollouts {
            if let Some(wave) = decide::force(hub, rollout, reason).await? {
                forced.insert((rollout.file.clone(), rollout.digest), wave);
            }
        }
    }
    if !forced.is_empty() {
        rollouts = rollouts_at(hub, id, now).await?;
    }
    if approve_next(hub, &rollouts).await? {
        rollouts = rollouts_at(hub, id, now).await?;
    }
    let mut steps = Vec::new();
    for rollout in rollouts {
        let answer = take_step(hub, &rollout).await?;
        let forced = forced.remove(&(rollout.file.clone(), rollout.digest));
        steps.push(StepTaken { rollout, forced, answer });
    }
    Ok(steps)
}

/// Takes the next step of a rollout as the planner does; the answer, if it is a release.
async fn take_step(hub: &Hub, rollout: &RolloutProgress) -> Result<Option<ReleaseAnswer>, AskError> {
    match &rollout.state.step {
        Step::Release { wave, targets, needs_approval: false } => {
            decide::record_begin(hub, rollout, *wave).await?;
            let devices = targets.iter().map(|at| rollout.targets[*at].key.clone()).collect();
            let request = ReleaseRequest {
                digest: Some(rollout.digest),
                revision: Some(rollout.revision.clone()),
                ..ReleaseRequest::new(rollout.deployment.clone(), devices)
            };
            release_all(hub, request, RELEASE_DEVICES_MAX).await.map(Some)
        }
        Step::RollBack { targets } => {
            let devices = targets.iter().map(|at| rollout.targets[*at].key.clone()).collect();
            decide::roll_back(hub, rollout, devices).await.map(Some)
        }
        Step::Fail { wave, because, verb } => {
            decide::fail(hub, rollout, *wave, *because, *verb).await.map(|()| None)
        }
        Step::Done => decide::finish(hub, rollout).await.map(|()| None),
        Step::Ready { wave } => decide::ready(hub, rollout, *wave).await.map(|()| None),
        // The planner asks checks: it has the rights and the secret.
        Step::Release { .. } | Step::Check { .. } | Step::Wait { .. } | Step::Held { .. } => Ok(None),
    }
}

/// Approves the waves that would be next if they were approved. True if it has recorded something.
async fn approve_next(hub: &Hub, rollouts: &[RolloutProgress]) -> Result<bool, AskError> {
    let mut is_changed = false;
    for rollout in rollouts {
        if let Step::Ready { wave } = rollout.state.step {
            decide::ready(hub, rollout, wave).await?;
        }
        if let Step::Release { wave, needs_approval: true, .. }
        | Step::Ready { wave }
        | Step::Wait { wave, because: Blocked::Approval } = rollout.state.step
            && let Some(name) = rollout.state.waves.get(wave).and_then(|wave| wave.name.parse().ok())
        {
            decide::approve_wave(hub, rollout, name, None).await?;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// Releases to any number of devices, in requests with at most `max` of them.
///
/// # Errors
/// The publisher does not answer, or cannot release. Some devices may have the content: ask again.
pub async fn release_all(hub: &Hub, request: ReleaseRequest, max: usize) -> Result<ReleaseAnswer, AskError> {
    let mut whole = ReleaseAnswer { released: Vec::new(), refused: Vec::new() };
    for some in request.devices.chunks(max) {
        let part = ReleaseRequest { devices: some.to_vec(), ..request.clone() };
        let answer: ReleaseAnswer = understood(&hub.publisher("release", &part).await?)?;
        whole.released.extend(answer.released);
        whole.refused.extend(answer.refused);
    }
    Ok(whole)
}
