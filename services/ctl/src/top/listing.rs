//! The rows of the shown list or page, from the newest answers and the filter. Pure.
//!
//! A missing answer gives no rows and always the cause, so that it differs from an empty list.

mod page;
mod sites;

use std::cmp::Reverse;

use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::query::{DeploymentsAnswer, DeviceLine, DevicesAnswer};
use muster_contract::rollout::{HeldChange, OpenRollout};
use muster_contract::view::{DeploymentView, Verdict};

use super::fleet_screen::{FleetScreen, Part, Staleness};
use super::view::{ListRow, Subject, Tab, Target, View};
use crate::names::ShownNames;
use crate::render;
use crate::render::colour::{DIM, MOVING, UNSURE};
use crate::render::format::{age, clean, freshness, grouped};
use crate::render::table::{Cell, Table};
use crate::rollout::HeldChanges;

/// A list or a text.
#[derive(Debug, Default)]
pub struct Listing {
    /// Lines above the rows that do not move.
    pub head: Vec<String>,
    /// Titles of the columns.
    pub columns: Option<String>,
    /// The rows that pass the filter.
    pub rows: Vec<ListRow>,
    /// The line below the rows.
    pub note: Option<String>,
    /// Rows without the filter.
    pub total: usize,
    /// Rows that the answer does not hold.
    pub omitted: u64,
    /// Words in place of rows.
    pub empty: String,
    /// Why the answer is out of date, or missing.
    pub staleness: Option<Staleness>,
    /// A text scrolls; in a list a row is selected.
    pub is_text: bool,
}

impl Listing {
    /// The shown list or page, fitted to a width.
    pub(super) fn of(view: &View, fleet_screen: &FleetScreen, width: usize, now: Timestamp) -> Self {
        let (filter, names) = (view.filter.to_lowercase(), fleet_screen.names());
        match &view.subject {
            Subject::Page(Target::Incident(seq)) => {
                page::incident(&fleet_screen.incidents, *seq, &filter, now)
            }
            Subject::Page(_) => page::page(&view.content, &names, &filter, width, now),
            Subject::Tab(tab) => match tab {
                Tab::Deployments => {
                    known(&fleet_screen.deployments, now, |answer| deployments(answer, &filter, width, now))
                }
                Tab::Silent => {
                    let devices = fleet_screen.fleet.get().map(|fleet| fleet.tally.devices);
                    let all = devices.map(|devices| devices.stale + devices.never);
                    known(&fleet_screen.silent, now, |answer| silent(answer, all, &filter, width, now))
                }
                Tab::Rollouts => known(&fleet_screen.rollouts, now, |changes| {
                    rollouts(changes, &names, &filter, width, now)
                }),
                Tab::Incidents => {
                    known(&fleet_screen.incidents, now, |found| incidents(found, &filter, width, now))
                }
                Tab::Sites => known(&fleet_screen.sites, now, |all| sites::list(all, &filter, width, now)),
            },
        }
    }

    /// A text of several lines.
    fn text(text: &str, filter: &str) -> Self {
        let lines: Vec<_> = text.lines().collect();
        let rows = lines.iter().filter(|line| is_found(line, filter));
        let rows = rows.map(|line| ListRow { text: (*line).to_owned(), target: None }).collect();
        Self { rows, total: lines.len(), is_text: true, ..Self::default() }
    }

    /// The rows of a table, with the page behind each.
    fn table(table: Table, targets: Vec<Target>, total: usize, width: usize) -> Self {
        if targets.is_empty() {
            return Self { total, empty: "No row passes the filter.".to_owned(), ..Self::default() };
        }
        let text = table.within(Some(width)).to_string();
        let mut lines = text.lines().map(str::to_owned);
        let (columns, note) = (lines.next(), text.lines().nth(targets.len() + 1).map(str::to_owned));
        let rows = lines.zip(targets).map(|(text, target)| ListRow { text, target: Some(target) }).collect();
        Self { columns, rows, note, total, ..Self::default() }
    }
}

/// The text passes the filter.
fn is_found(text: &str, filter: &str) -> bool {
    filter.is_empty() || text.to_lowercase().contains(filter)
}

/// The rows of an answer, if there is one, with its staleness.
fn known<T>(part: &Part<T>, now: Timestamp, rows: impl FnOnce(&T) -> Listing) -> Listing {
    let listing = part.get().map_or_else(
        || Listing { empty: "Asking the hub; nothing is known yet.".to_owned(), ..Listing::default() },
        rows,
    );
    Listing { staleness: part.staleness(now), ..listing }
}

fn urgency(verdict: Verdict) -> usize {
    Verdict::WORST_FIRST.iter().position(|worse| *worse == verdict).unwrap_or_default()
}

fn deployments(answer: &DeploymentsAnswer, filter: &str, width: usize, now: Timestamp) -> Listing {
    let text = |view: &DeploymentView| {
        format!("{} {} {}", view.deployment, clean(&view.deployment_name), view.verdict.as_str())
    };
    let mut found: Vec<_> = answer.deployments.iter().filter(|view| is_found(&text(view), filter)).collect();
    found.sort_by_key(|view| (urgency(view.verdict), &view.deployment));
    let targets = found.iter().map(|view| Target::Deployment(view.deployment.clone())).collect();
    let table = render::deployment::rows(found, now);
    let total = answer.deployments.len();
    or_empty(Listing::table(table, targets, total, width), "No deployment is targeted or leaving.")
}

fn silent(answer: &DevicesAnswer, all: Option<u64>, filter: &str, width: usize, now: Timestamp) -> Listing {
    let text = |line: &DeviceLine| format!("{} {}", line.key, freshness(line.freshness));
    let found: Vec<_> = answer.devices.iter().filter(|line| is_found(&text(line), filter)).collect();
    let targets = found.iter().map(|line| Target::Device(line.key.clone())).collect();
    let total = answer.devices.len();
    let listing = Listing::table(render::device::rows(found, now), targets, total, width);
    let omitted = if answer.next.is_some() || !answer.hub.is_whole() {
        all.unwrap_or_default().saturating_sub(total as u64)
    } else {
        0
    };
    or_empty(Listing { omitted, ..listing }, "Every device is heard.")
}

/// Open rollouts without a held change.
pub(super) fn open_alone(changes: &HeldChanges) -> Vec<&OpenRollout> {
    let is_alone = |open: &&OpenRollout| {
        let is_same = |change: &HeldChange| {
            change.deployment == open.deployment
                && change.digest == Some(open.digest)
                && change.rollout == open.rollout
        };
        !changes.held.iter().any(is_same)
    };
    changes.open.iter().filter(is_alone).collect()
}

fn rollouts(
    changes: &HeldChanges,
    names: &ShownNames,
    filter: &str,
    width: usize,
    now: Timestamp,
) -> Listing {
    let mut table = Table::new(&["DEPLOYMENT", "STATE", "?>DEVICES", "?SINCE", "BY"]);
    let mut targets = Vec::new();
    let open = open_alone(changes);
    let total = changes.held.len() + open.len();
    for change in &changes.held {
        let state = match change.phase.continued_by() {
            None => "waits for a release",
            Some(_) => change.phase.words(),
        };
        let (id, name) = (&change.deployment, names.shown(&change.deployment));
        if is_found(&format!("{id} {name} {state} {}", change.rollout), filter) {
            let (devices, since) = (Cell::count(change.devices.count), age(now, change.since));
            let state = Cell::styled(state, UNSURE);
            table.row([name.as_str().into(), state, devices, since.into(), clean(&change.rollout).into()]);
            targets.push(Target::Rollout(id.clone()));
        }
    }
    for rollout in open {
        let (id, name) = (&rollout.deployment, names.shown(&rollout.deployment));
        let state = rollout.phase.words();
        if is_found(&format!("{id} {name} {state} {}", rollout.rollout), filter) {
            let file = clean(&rollout.rollout).into();
            table.row([name.as_str().into(), Cell::styled(state, MOVING), Cell::count(0), "-".into(), file]);
            targets.push(Target::Rollout(id.clone()));
        }
    }
    let listing = Listing::table(table, targets, total, width);
    let omitted = changes.omitted + changes.open_omitted;
    or_empty(Listing { omitted, ..listing }, "No change waits for a release, and no rollout is under way.")
}

fn incidents(found: &[HubIncident], filter: &str, width: usize, now: Timestamp) -> Listing {
    let mut table = Table::new(&[">LEDGER", "INCIDENT OF THE HUB", ">IN 24 H"]);
    let mut sorted: Vec<_> = found.iter().collect();
    sorted.sort_by_key(|incident| Reverse(incident.ledger_seq));
    let mut targets = Vec::new();
    for HubIncident { ledger_seq, count, incident } in sorted {
        let words = render::incident::incident(incident, now);
        if is_found(&words, filter) {
            table.row([Cell::styled(grouped(*ledger_seq), DIM), words.into(), Cell::count(*count)]);
            targets.push(Target::Incident(*ledger_seq));
        }
    }
    or_empty(Listing::table(table, targets, found.len(), width), "The hub has had no incident in 24 hours.")
}

fn or_empty(listing: Listing, words: &str) -> Listing {
    if listing.total == 0 { Listing { empty: words.to_owned(), ..listing } } else { listing }
}
