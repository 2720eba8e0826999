//! Incidents of the hub itself, which every answer about the present begins with.

use muster_contract::incident::{HubIncident, IncidentsAnswer};
use muster_contract::query::Query;
use muster_service::error::chain;

use crate::ask::{AskError, understood};
use crate::render;
use crate::session::Session;

/// The incidents of the hub that are shown now.
///
/// # Errors
/// Nobody answers, as where the rollup is of an earlier release or the hub is a federation, or the answer is an error.
pub async fn of_hub(session: &Session<'_>) -> Result<Vec<HubIncident>, AskError> {
    let answer = session.hub.query("incidents", &Query::default()).await?;
    Ok(understood::<IncidentsAnswer>(&answer)?.incidents)
}

/// Prints the hub's incidents on standard error above the answer, or that they are unknown. Answers for programs do not change.
pub async fn print_incidents(session: &mut Session<'_>) {
    let words = match of_hub(session).await {
        Ok(incidents) => render::incident::of_hub(&incidents, session.clock.now()),
        Err(error) => render::incident::unknown(&chain(&error)) + "\n",
    };
    if !words.is_empty() {
        session.terminal.print_note(&words);
    }
}
