//! The hubs of a federation.

use muster_contract::Timestamp;
use muster_contract::parts::{HubLine, HubList};

use super::colour::{UNSURE, WELL};
use super::format::{age, as_of, plural};
use super::table::{Cell, Table};

/// The hubs, each in a line.
pub fn list(answer: &HubList, now: Timestamp) -> String {
    let mut table = Table::new(&["HUB", "HEARD", "LAST ANSWER", ">SITES", "READ"]);
    answer.hubs.iter().for_each(|hub| table.row(row(hub, now)));
    format!("{}\n{}\n", table.within(None), footer(&answer.hubs))
}

fn row(hub: &HubLine, now: Timestamp) -> [Cell; 5] {
    let dash = || "-".to_owned();
    [
        hub.name.as_str().into(),
        if hub.heard { Cell::styled("yes", WELL) } else { Cell::styled("no", UNSURE) },
        hub.heard_at.map_or_else(dash, |at| age(now, at)).into(),
        Cell::count(hub.sites),
        hub.as_of.map_or_else(dash, |read| as_of(read, now)).into(),
    ]
}

fn footer(hubs: &[HubLine]) -> String {
    let silent = hubs.iter().filter(|hub| !hub.heard).count() as u64;
    let all = plural(hubs.len() as u64, "hub");
    match silent {
        0 => format!("{all}, all heard."),
        _ => {
            format!("{all}, {silent} not heard: their devices count as stale and unknown until they answer.")
        }
    }
}
