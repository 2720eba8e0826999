//! Gathers the rollouts of a deployment, which must be governed by one; otherwise the error says what is wrong with its name.

use muster_client::rollout::{Gathered, gathered};
use muster_contract::DeploymentId;
use muster_contract::near::near;
use muster_domain::rollout::RolloutProgress;

use crate::error::CtlError;
use crate::session::Session;
use crate::suggestions::known_deployments;

/// The rollouts of a deployment.
///
/// # Errors
/// No publisher or query service answers, the query service lags behind LEDGER, or no rollout governs the deployment.
pub(super) async fn rollouts(
    session: &Session<'_>,
    id: &DeploymentId,
) -> Result<Vec<RolloutProgress>, CtlError> {
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
