//! The waves that wait for an approval, of every rollout.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures_util::StreamExt as _;
use muster_contract::canonical::Digest;
use muster_contract::query::{PublisherQuery, PublisherStatus};
use muster_contract::rollout::Approval;
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{ApprovalCount, Blocked, Gate, RolloutProgress, Step, WaveState};
use serde::Serialize;

use super::gather::{approvable, ask_each, git_of};
use crate::ask::{AskError, Hub, PAGES_MAX, understood};

/// A wave that waits for an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The wave.
    pub wave: String,
    /// Devices of the wave.
    pub devices: u64,
    /// Its approvals.
    pub approvals: ApprovalCount,
}

/// The key of a request: deployment, content, path and wave.
pub type RequestKey = (DeploymentId, Digest, String, String);

/// The requests for approval at one moment, and the state of the other waves.
#[derive(Debug, Default)]
pub struct ApprovalState {
    /// Those that wait.
    pub waiting: BTreeMap<RequestKey, ApprovalRequest>,
    /// Waves that have begun or may begin.
    pub approved: BTreeSet<RequestKey>,
    /// Deployments that could not be judged now.
    pub unknown: BTreeSet<DeploymentId>,
}

/// Asks once about every rollout that is under way or holds a change, and about further deployments.
///
/// # Errors
/// No publisher or query service answers, or the query service lags behind LEDGER.
pub async fn read_approvals(
    hub: &Hub,
    also: impl Iterator<Item = DeploymentId>,
    now: Timestamp,
) -> Result<ApprovalState, AskError> {
    let mut deployments = under_way(hub).await?;
    deployments.extend(also);
    approvals_of(hub, deployments, now).await
}

/// Asks once about the rollouts of these deployments.
///
/// # Errors
/// As [`read_approvals`].
pub async fn approvals_of(
    hub: &Hub,
    deployments: impl IntoIterator<Item = DeploymentId>,
    now: Timestamp,
) -> Result<ApprovalState, AskError> {
    let mut state = ApprovalState::default();
    let ask = |id| async move { (approvable(hub, &id, now).await, id) };
    let mut answers = pin!(ask_each(deployments, ask));
    while let Some((answer, id)) = answers.next().await {
        match answer {
            Ok(rollouts) => rollouts.iter().for_each(|rollout| state.add(rollout)),
            // A commit that comes in between concerns one deployment.
            Err(AskError::CommitChanged) => _ = state.unknown.insert(id),
            Err(error) => return Err(error),
        }
    }
    Ok(state)
}

/// The deployments with a held change or an open rollout.
///
/// # Errors
/// No publisher answers, it has no commit yet, or the list does not end.
pub async fn under_way(hub: &Hub) -> Result<BTreeSet<DeploymentId>, AskError> {
    let (mut deployments, mut after) = (BTreeSet::new(), String::new());
    for _ in 0..PAGES_MAX {
        let query = PublisherQuery { rollouts_after: Some(after), ..PublisherQuery::default() };
        let status: PublisherStatus = understood(&hub.publisher("status", &query).await?)?;
        let Some(git) = git_of(status)? else { return Ok(deployments) };
        after = git.rollout_deployments.last().map(ToString::to_string).unwrap_or_default();
        deployments.extend(git.rollout_deployments);
        if !git.has_more_deployments {
            return Ok(deployments);
        }
    }
    Err(AskError::Endless { what: "rollouts" })
}

/// The wave of a rollout that waits for an approval now.
pub fn waiting_wave(rollout: &RolloutProgress) -> Option<&WaveState> {
    match rollout.state.step {
        Step::Release { wave, needs_approval: true, .. }
        | Step::Wait { wave, because: Blocked::Approval } => {
            rollout.state.waves.get(wave).filter(|wave| wave.approvals.is_some())
        }
        _ => None,
    }
}

impl ApprovalState {
    /// The requests that wait.
    ///
    /// # Errors
    /// A deployment could not be judged: a list without it would look whole.
    pub fn into_waiting(self) -> Result<Vec<ApprovalRequest>, AskError> {
        if !self.unknown.is_empty() {
            return Err(AskError::CommitChanged);
        }
        Ok(self.waiting.into_values().collect())
    }

    fn add(&mut self, rollout: &RolloutProgress) {
        let RolloutProgress { deployment, digest, file, record, policy, .. } = rollout;
        let key = |wave: &str| (deployment.clone(), *digest, file.clone(), wave.to_owned());
        for (at, wave) in rollout.state.waves.iter().enumerate() {
            let Some(count) = wave.approvals else { continue };
            let is_after = policy.waves.get(at).is_some_and(|wave| wave.approval == Approval::After);
            let has_begun = || record.as_ref().is_some_and(|record| record.began(&wave.name).is_some());
            let has_passed = if is_after { wave.gate == Gate::Open } else { has_begun() };
            if has_passed || count.given >= count.needed {
                self.approved.insert(key(&wave.name));
            }
        }
        if let Some(wave) = waiting_wave(rollout)
            && let Some(approvals) = wave.approvals
        {
            let request = ApprovalRequest {
                deployment: deployment.clone(),
                digest: *digest,
                rollout: file.clone(),
                wave: wave.name.clone(),
                devices: wave.tally.targets,
                approvals,
            };
            self.waiting.insert(key(&wave.name), request);
        }
    }
}
