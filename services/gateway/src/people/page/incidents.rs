//! The incidents of the hub on the first screen.

use maud::{Markup, html};
use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;

use super::parts::{self, ago, count, none, number, unknown};
use super::side::Part;

/// The incidents of the hub within a day.
pub(super) fn panel(incidents: &Part<Vec<HubIncident>>, now: Timestamp) -> Markup {
    let rows = match incidents {
        Err(why) => unknown(why),
        Ok(incidents) if incidents.is_empty() => none("No incident of the hub within a day."),
        Ok(incidents) => {
            html! { ul.rows { @for incident in incidents { li { (self::incident(incident, now)) } } } }
        }
    };
    let total = incidents.as_ref().map(Vec::len).unwrap_or_default();
    // The command prints them above its answer.
    let command = Some("muster fleet".into());
    parts::panel(html! { "Incidents of the hub" }, html! { (number(total as u64)) }, command, rows)
}

fn incident(incident: &HubIncident, now: Timestamp) -> Markup {
    let what = serde_json::to_value(&incident.incident.what).unwrap_or_default();
    let fields: Vec<String> = what
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "type")
        .map(|(name, value)| {
            format!("{name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        })
        .collect();
    html! {
        div.head { strong { (what["type"].as_str().unwrap_or("incident")) } span.soft { (ago(incident.incident.at, now)) } }
        p.more { (fields.join(", ")) @if incident.count > 1 { " \u{b7} " (count(incident.count, "time")) " within a day" } }
    }
}
