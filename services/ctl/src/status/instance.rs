//! `--instance`: an older revision of a deployment, as it stood when the next one superseded it. `muster.query.actions` lists
//! the revisions; the state of one is a point of the past like any other. The service that answers knows whether LEDGER or
//! a checkpoint still leads to that point.

use muster_client::revision::last_of;
use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::query::Query;

use crate::ask::{AskError, understood};
use crate::error::CtlError;
use crate::history::patiently;
use crate::session::Session;
use crate::suggestions::with_near_deployments;

/// The words if no service answers.
const OF_ONE_HUB: &str = "no muster-rollup tells the revisions of a deployment: is one running? --instance is of one hub, because \
                          each has a LEDGER of its own; over several hubs name a time (--at)";

/// The sequence of LEDGER at which an instance was last in force; none where it is in force still.
///
/// # Errors
/// When nobody answers, or no action or more than one goes by this name.
pub(super) async fn ended(
    session: &mut Session<'_>,
    id: &DeploymentId,
    instance: &str,
) -> Result<Option<u64>, CtlError> {
    let query = Query { id: Some(id.clone()), ..Query::default() };
    let answer = match patiently(session, "actions", &query).await {
        Ok(answer) => understood::<ActionsAnswer>(&answer)?,
        // A federation has no such question.
        Err(AskError::NoService { .. }) => return Err(CtlError::Usage(OF_ONE_HUB.to_owned())),
        Err(error) => return Err(with_near_deployments(session, error, id).await),
    };
    last_of(&answer, instance)
        .map_err(|unknown| CtlError::Unknown { message: unknown.message, near: unknown.near })
}
