//! `muster hubs`: the hubs of a federation, and which of them answer.

use muster_contract::query::Query;

use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// The hubs.
///
/// # Errors
/// When no federation answers: it is a hub that was asked, most likely.
pub(crate) async fn list(session: &mut Session<'_>) -> Result<(), CtlError> {
    let answer = session.hub.federation("hubs", &Query::default()).await?;
    session.show(&answer, render::hubs::list)
}
