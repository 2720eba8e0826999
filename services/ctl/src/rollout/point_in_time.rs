//! `muster rollout show --at`: shows the rollouts of a deployment as they stood at a time.

use muster_client::rollout::rollouts_then;
use muster_contract::{DeploymentId, Timestamp};

use super::gather::ungoverned;
use crate::error::CtlError;
use crate::history::progress;
use crate::render;
use crate::session::Session;

/// Shows the rollouts of a deployment as they stood at a time.
///
/// # Errors
/// A service does not answer, no rollout governs the deployment, or LEDGER has forgotten the time.
pub(super) async fn show(session: &mut Session<'_>, id: DeploymentId, at: Timestamp) -> Result<(), CtlError> {
    let found = rollouts_then(&session.hub, &id, at, &mut progress(session.terminal)).await?;
    let Some(found) = found else { return Err(ungoverned(session, &id).await) };
    let frame = session.frame();
    session.show_own(&found, |found, _| render::rollout::then(found, frame))
}
