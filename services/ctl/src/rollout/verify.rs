//! `muster rollout verify`: shows each recorded decision that rests on evidence as it is recomputed, and judges all of them by the
//! exit code.

use muster_client::rollout::verify;
use muster_contract::DeploymentId;

use super::gather::ungoverned;
use crate::error::{CtlError, settled};
use crate::history::progress;
use crate::render;
use crate::session::Session;

/// Verifies the decisions about the rollouts of a deployment; true if each recomputes to itself.
///
/// # Errors
/// A service does not answer, no rollout governs the deployment, or nothing can be said: a decision cannot be recomputed, or
/// there is none.
pub(super) async fn run(session: &mut Session<'_>, id: DeploymentId) -> Result<bool, CtlError> {
    let found = verify(&session.hub, &id, &mut progress(session.terminal)).await?;
    let Some(whole) = found else { return Err(ungoverned(session, &id).await) };
    let frame = session.frame();
    settled(session.show_own(&whole, |whole, _| render::rollout::verification(whole, frame)))?;
    match (whole.different, whole.unverifiable, whole.same) {
        (0, 0, 0) => Err(CtlError::NotVerified("no decision that rests on evidence is recorded".to_owned())),
        (0, 0, _) => Ok(true),
        (0, count, _) => Err(CtlError::NotVerified(format!(
            "{} cannot be verified",
            render::format::plural(count, "decision")
        ))),
        _ => Ok(false),
    }
}
