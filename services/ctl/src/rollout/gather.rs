//! Gathers the rollouts of a deployment: its targets from the publisher, and the lines of its view from the query service.

use muster_contract::query::{DeploymentAnswer, Output, PAGE_MAX, Query};
use muster_contract::rollout::{TargetsAnswer, TargetsQuery};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{Lines, RolloutProgress, progress};

use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::error::CtlError;
use crate::session::Session;

/// The rollouts of a deployment.
///
/// # Errors
/// No publisher or query service answers, the query service lags behind LEDGER, or no rollout governs the deployment.
pub async fn rollouts(session: &Session<'_>, id: &DeploymentId) -> Result<Vec<RolloutProgress>, CtlError> {
    let rollouts = rollouts_at(&session.hub, id, session.clock.now()).await?;
    if rollouts.is_empty() {
        return Err(ungoverned(id));
    }
    Ok(rollouts)
}

/// The error of a deployment without a rollout.
pub(super) fn ungoverned(id: &DeploymentId) -> CtlError {
    let message =
        format!("no rollout.yaml governs a device that shall run '{id}': its changes go out at once");
    CtlError::Unknown { message, near: Vec::new() }
}

/// The rollouts of a deployment as of `now`; none if no rollout governs it.
///
/// # Errors
/// No publisher or query service answers, or the query service lags behind LEDGER.
pub async fn rollouts_at(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, CtlError> {
    with_lines(hub, id, now).await.map(|(rollouts, _)| rollouts)
}

/// The rollouts of a deployment, and the lines of its view that led to them.
pub(super) async fn with_lines(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<(Vec<RolloutProgress>, Lines), CtlError> {
    let targets = targets(hub, id).await?;
    let lines = lines(hub, id).await?;
    Ok((progress(id, targets, &lines, now), lines))
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
async fn lines(hub: &Hub, id: &DeploymentId) -> Result<Lines, CtlError> {
    let query = Query { id: Some(id.clone()), output: Output::All, ..Query::default() };
    let answer = match hub.pages("deployment", "devices", query).await {
        Ok(answer) => understood::<DeploymentAnswer>(&answer)?,
        Err(error) if error.not_found().is_some() => return Ok(Lines::default()),
        Err(error) => return Err(error.into()),
    };
    if hub.lag().is_some() {
        let message =
            "muster-rollup has not read all of LEDGER, so no gate can be judged; `muster status` says why";
        return Err(CtlError::Name(message.to_owned()));
    }
    let of_devices = answer.devices.into_iter().map(|line| (line.key.clone(), line)).collect();
    Ok(Lines { ledger_seq: answer.view.as_of.ledger_seq, of_devices })
}
