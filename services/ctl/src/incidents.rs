//! Incidents of the hub itself, which every answer about the present begins with.

use muster_service::error::chain;

use crate::render;
use crate::session::Session;

/// Prints the hub's incidents on standard error above the answer, or that they are unknown. Answers for programs do not change.
pub(crate) async fn print_incidents(session: &mut Session<'_>) {
    let words = match session.hub.incidents().await {
        Ok(incidents) => render::incident::of_hub(&incidents, session.clock.now()),
        Err(error) => render::incident::unknown(&chain(&error)) + "\n",
    };
    if !words.is_empty() {
        session.terminal.print_note(&words);
    }
}
