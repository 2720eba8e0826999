//! Incidents of the hub itself, which every answer about the present begins with.

use muster_contract::incident::{HubIncident, IncidentsAnswer};
use muster_contract::query::Query;

use crate::ask::understood;
use crate::render;
use crate::session::Session;

/// The incidents of the hub that are shown now; none where nobody tells, as a rollup of an earlier release or a federation.
pub async fn of_hub(session: &Session<'_>) -> Vec<HubIncident> {
    let answer = session.hub.query("incidents", &Query::default()).await;
    let answer = answer.and_then(|answer| understood::<IncidentsAnswer>(&answer));
    answer.map(|answer| answer.incidents).unwrap_or_default()
}

/// Says them above the answer, on standard error: an answer for a program stays as it is.
pub async fn say(session: &mut Session<'_>) {
    let incidents = of_hub(session).await;
    let words = render::incident::of_hub(&incidents, session.clock.now());
    if !words.is_empty() {
        session.terminal.say(&words);
    }
}
