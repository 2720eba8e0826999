//! Gathers the rollouts of a deployment: its targets from the publisher, and the lines of its view from the query service.

use muster_contract::query::{DeploymentAnswer, Output, PAGE_MAX, PublisherQuery, PublisherStatus, Query};
use muster_contract::rollout::{HeldChange, OpenRollout, TargetsAnswer, TargetsQuery};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{Lines, RolloutProgress, progress};
use serde::Serialize;

use crate::ask::{AskError, Hub, PAGES_MAX, understood};

/// Changes that wait for a release, and rollouts under way.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldChanges {
    /// The changes.
    pub held: Vec<HeldChange>,
    /// Further ones that the publisher does not list.
    pub omitted: u64,
    /// Rollouts that have begun and not ended.
    pub open: Vec<OpenRollout>,
}

/// The held changes, by the publisher's status.
///
/// # Errors
/// No publisher answers.
pub async fn held_changes(hub: &Hub) -> Result<HeldChanges, AskError> {
    let status: PublisherStatus = understood(&hub.publisher("status", &PublisherQuery::default()).await?)?;
    let changes = status.git.map(|git| HeldChanges {
        held: git.held,
        omitted: git.held_omitted,
        open: git.open_rollouts,
    });
    Ok(changes.unwrap_or_default())
}

/// The rollouts of a deployment as of `now`; none if no rollout governs it.
///
/// # Errors
/// No publisher or query service answers, or the query service lags behind LEDGER.
pub async fn rollouts_at(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, AskError> {
    let targets = targets(hub, id).await?;
    let lines = lines(hub, id).await?;
    Ok(progress(id, targets, &lines, now))
}

/// All targets of a deployment that a rollout governs.
///
/// # Errors
/// No publisher answers, a new commit is accepted meanwhile, or the list does not end.
pub async fn targets(hub: &Hub, id: &DeploymentId) -> Result<TargetsAnswer, AskError> {
    let mut query = TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after: None };
    let mut whole: TargetsAnswer = understood(&hub.publisher("targets", &query).await?)?;
    for _ in 0..PAGES_MAX {
        let Some(next) = whole.next.take() else { return Ok(whole) };
        if query.after.as_ref() == Some(&next) {
            break;
        }
        query.after = Some(next);
        let page: TargetsAnswer = understood(&hub.publisher("targets", &query).await?)?;
        if !whole.append(page) {
            return Err(AskError::CommitChanged);
        }
    }
    Err(AskError::Endless { what: "targets" })
}

/// The line of each device in the view of a deployment; none before LEDGER knows of the deployment.
async fn lines(hub: &Hub, id: &DeploymentId) -> Result<Lines, AskError> {
    let query = Query { id: Some(id.clone()), output: Output::All, ..Query::default() };
    let answer = match hub.pages("deployment", "devices", query).await {
        Ok(answer) => understood::<DeploymentAnswer>(&answer)?,
        Err(error) if error.not_found().is_some() => return Ok(Lines::default()),
        Err(error) => return Err(error),
    };
    if hub.lag().is_some() {
        return Err(AskError::Lagging);
    }
    let of_devices = answer.devices.into_iter().map(|line| (line.key.clone(), line)).collect();
    Ok(Lines { ledger_seq: answer.view.as_of.ledger_seq, of_devices })
}
