//! Gathers the rollouts of a deployment: its targets from the publisher, and the lines of its view from the query service.

use std::collections::BTreeMap;

use muster_contract::near::near;
use muster_contract::query::{DeploymentAnswer, Output, PAGE_MAX, Query};
use muster_contract::rollout::{Rollout, TargetsAnswer, TargetsQuery};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{Lines, RolloutProgress, progress};

use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::error::CtlError;
use crate::session::Session;
use crate::status::known_deployments;

/// The rollouts of a deployment, with what they were judged by.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The rollouts.
    pub rollouts: Vec<RolloutProgress>,
    /// The last accepted commit.
    pub revision: String,
    /// Each `rollout.yaml`, by its path.
    pub files: BTreeMap<String, Rollout>,
    /// The lines of the deployment's view.
    pub lines: Lines,
}

/// The rollouts of a deployment.
///
/// # Errors
/// No publisher or query service answers, the query service lags behind LEDGER, or no rollout governs the deployment.
pub async fn rollouts(session: &Session<'_>, id: &DeploymentId) -> Result<Vec<RolloutProgress>, CtlError> {
    governed(session, id).await.map(|gathered| gathered.rollouts)
}

/// The same, with what they were judged by.
///
/// # Errors
/// As [`rollouts`].
pub(super) async fn governed(session: &Session<'_>, id: &DeploymentId) -> Result<Gathered, CtlError> {
    let gathered = gathered(&session.hub, id, session.clock.now()).await?;
    if gathered.rollouts.is_empty() {
        return Err(ungoverned(session, id).await);
    }
    Ok(gathered)
}

/// The error of a deployment without a rollout, or of an unknown name.
pub(super) async fn ungoverned(session: &Session<'_>, id: &DeploymentId) -> CtlError {
    let known = known_deployments(session).await;
    // Without an answer nobody knows whether there is such a deployment.
    if known.is_empty() || known.iter().any(|known| known == id.as_str()) {
        let message =
            format!("no rollout.yaml governs a device that shall run '{id}': its changes go out at once");
        return CtlError::Unknown { message, near: Vec::new() };
    }
    let near = near(id.as_str(), known.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
    let message =
        format!("no deployment '{id}' is in LEDGER, and no rollout.yaml governs a device that shall run it");
    CtlError::Unknown { message, near }
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
    gathered(hub, id, now).await.map(|gathered| gathered.rollouts)
}

/// The rollouts of a deployment with waves that need approvals; their evidence is read only if there are some.
///
/// # Errors
/// As [`rollouts_at`].
pub(super) async fn approvable(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, CtlError> {
    let targets = targets(hub, id).await?;
    let needs_approval = |rollout: &Rollout| rollout.waves.iter().any(|wave| !wave.approval.is_none());
    if !targets.rollouts.values().any(needs_approval) {
        return Ok(Vec::new());
    }
    let lines = lines(hub, id).await?;
    Ok(progress(id, targets, &lines, now))
}

/// The rollouts of a deployment, with what they were judged by.
///
/// # Errors
/// As [`rollouts_at`].
pub(super) async fn gathered(hub: &Hub, id: &DeploymentId, now: Timestamp) -> Result<Gathered, CtlError> {
    let targets = targets(hub, id).await?;
    let lines = lines(hub, id).await?;
    let (revision, files) = (targets.revision.clone(), targets.rollouts.clone());
    Ok(Gathered { rollouts: progress(id, targets, &lines, now), revision, files, lines })
}

/// All targets of a deployment that a rollout governs.
///
/// # Errors
/// No publisher answers, a new commit is accepted meanwhile, or the list does not end.
pub async fn targets(hub: &Hub, id: &DeploymentId) -> Result<TargetsAnswer, AskError> {
    targets_by(hub, id, None).await
}

/// The same by an earlier commit, or by the last accepted one.
///
/// # Errors
/// As [`targets`], or the publisher cannot read the commit.
pub(super) async fn targets_by(
    hub: &Hub,
    id: &DeploymentId,
    revision: Option<String>,
) -> Result<TargetsAnswer, AskError> {
    let mut query = TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after: None, revision };
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
    let output = Output::All;
    let mut query = Query { id: Some(id.clone()), output, limit: Some(PAGE_MAX), ..Query::default() };
    let mut lines = Lines::default();
    for _ in 0..PAGES_MAX {
        let page = match hub.query("deployment", &query).await {
            Ok(answer) => understood::<DeploymentAnswer>(&answer)?,
            Err(error) if error.not_found().is_some() => return Ok(lines),
            Err(error) => return Err(error.into()),
        };
        if hub.lag().is_some() {
            return Err(CtlError::NoEvidence);
        }
        lines.read_page(page.view.as_of.ledger_seq, query.after.is_none());
        lines.of_devices.extend(page.devices.into_iter().map(|line| (line.key.clone(), line)));
        if page.next.is_none() {
            return Ok(lines);
        }
        if page.next == query.after {
            break;
        }
        query.after = page.next;
    }
    Err(AskError::Endless { what: "devices" }.into())
}
