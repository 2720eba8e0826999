//! Tests that the list of changes equals a comparison of all standings and verdicts before and after each fact, for any
//! sites, any deployment and between any points.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::{DEPLOYMENTS, ledgers_of_a_deaf_hub};
use crate::ledger::{Ledger, position};
use muster_contract::changes::{Changed, ChangesQuery};
use muster_contract::notify::Stood;
use muster_contract::query::{Output, Query};
use muster_contract::view::{Freshness, Verdict};
use muster_contract::{DeploymentId, DeviceKey, Generation, SiteId};
use muster_domain::fold::{ChangeRecord, Fleet, Page};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

type Standings = BTreeMap<(DeviceKey, DeploymentId), (Stood, Option<Generation>)>;

/// A change in a form that can be ordered: the fact, the deployment, the device, and both sides.
type Line = (u64, Option<DeploymentId>, Option<DeviceKey>, String);

fn standings(fleet: &Fleet, query: &Query) -> Standings {
    let page = Page { after: None, limit: usize::MAX };
    let devices = fleet.devices_answer(query, &page).map_or_else(|_| Vec::new(), |answer| answer.devices);
    let lines = devices.iter().filter_map(|line| fleet.device_answer(&line.key, Output::All));
    let rows = lines.flat_map(|answer| answer.deployments);
    let stood = rows.map(|row| {
        let (standing, freshness, known, leaving) = (row.standing, row.freshness, row.known, row.leaving);
        let stood = Stood { standing, freshness, known, leaving, overdue: false };
        ((row.key, row.deployment), (stood, row.target_generation))
    });
    stood.collect()
}

fn freshness(fleet: &Fleet, query: &Query) -> BTreeMap<DeviceKey, Freshness> {
    let page = Page { after: None, limit: usize::MAX };
    let devices = fleet.devices_answer(query, &page).map_or_else(|_| Vec::new(), |answer| answer.devices);
    let counted = devices.into_iter().filter(|line| !line.retired);
    counted.map(|line| (line.key, line.freshness)).collect()
}

fn verdicts(fleet: &Fleet, query: &Query) -> BTreeMap<DeploymentId, Verdict> {
    let page = Page { after: None, limit: usize::MAX };
    let views =
        fleet.deployments_answer(query, &page).map_or_else(|_| Vec::new(), |answer| answer.deployments);
    views.into_iter().map(|view| (view.deployment, view.verdict)).collect()
}

fn naive(ledger: &Ledger, first: usize, query: &Query) -> BTreeSet<Line> {
    let mut fleet = Fleet::default();
    let mut lines = BTreeSet::new();
    for (at, entry) in ledger.entries.iter().enumerate() {
        let before = (standings(&fleet, query), verdicts(&fleet, query));
        let freshness_before = freshness(&fleet, query);
        fleet.apply(position(at), &entry.subject, entry.fact.clone());
        if at < first {
            continue;
        }
        let after = (standings(&fleet, query), verdicts(&fleet, query));
        let seq = fleet.as_of().ledger_seq;
        for key in before.0.keys().chain(after.0.keys()) {
            let (from, to) = (before.0.get(key), after.0.get(key));
            if from != to {
                let words = said(from.map(|from| from.0), to.map(|to| to.0));
                lines.insert((seq, Some(key.1.clone()), Some(key.0.clone()), words));
            }
        }
        for (key, to) in freshness(&fleet, query) {
            let from = freshness_before.get(&key).copied();
            let runs = |standings: &Standings| standings.keys().any(|(of, _)| *of == key);
            if from != Some(to) && !runs(&before.0) && !runs(&after.0) {
                lines.insert((seq, None, Some(key), format!("{from:?} {to:?}")));
            }
        }
        for id in before.1.keys().chain(after.1.keys()) {
            let empty = Verdict::Empty;
            let (from, to) = (before.1.get(id).unwrap_or(&empty), after.1.get(id).unwrap_or(&empty));
            if from != to {
                lines.insert((seq, Some(id.clone()), None, format!("{from:?} {to:?}")));
            }
        }
    }
    lines
}

/// Both sides without the mark of a deadline, which a line of a device has otherwise.
fn said(from: Option<Stood>, to: Option<Stood>) -> String {
    let unmarked = |stood: Option<Stood>| stood.map(|stood| Stood { overdue: false, ..stood });
    format!("{:?} {:?}", unmarked(from), unmarked(to))
}

/// The kind of a fact by the second word of its subject.
fn kind_at(ledger: &Ledger, seq: u64) -> String {
    const NAMED: [&str; 8] =
        ["desired", "status", "device", "liveness", "deadline", "quarantine", "verdict", "hearing"];
    let subject = ledger.entries[seq as usize - 1].subject.to_string();
    let kind = subject.split('.').nth(1).unwrap();
    if NAMED.contains(&kind) { kind.to_owned() } else { "other".to_owned() }
}

fn recorded(ledger: &Ledger, first: usize, query: &ChangesQuery, limit: usize) -> BTreeSet<Line> {
    let mut fleet = Fleet::default();
    let (before, rest) = ledger.entries.split_at(first);
    for (at, entry) in before.iter().enumerate() {
        fleet.apply(position(at), &entry.subject, entry.fact.clone());
    }
    let mut record = ChangeRecord::begin(&fleet);
    for (at, entry) in rest.iter().enumerate() {
        record.apply(&mut fleet, position(first + at), &entry.subject, entry.fact.clone()).unwrap();
    }
    let (mut lines, mut query) = (BTreeSet::new(), query.clone());
    let mut last = 0;
    loop {
        let page = record.answer(&query, limit);
        assert!(!page.incomplete && page.changes.len() <= limit);
        for change in page.changes {
            assert!(last <= change.ledger_seq, "changes are in LEDGER's order");
            last = change.ledger_seq;
            assert_eq!(change.fact.as_str(), kind_at(ledger, change.ledger_seq), "a change names its fact");
            let (key, words) = match change.what {
                Changed::Standing { from, to, target: None, .. } if said(from, None) == said(to, None) => {
                    continue;
                }
                Changed::Standing { key, from, to, .. } => (Some(key), said(from, to)),
                Changed::Device { key, from, to } => (Some(key), format!("{from:?} {to:?}")),
                Changed::Verdict { from, to } => (None, format!("{from:?} {to:?}")),
            };
            lines.insert((change.ledger_seq, change.deployment, key, words));
        }
        match page.next {
            Some(next) => query.skip = next,
            None => return lines,
        }
    }
}

proptest! {
    #[test]
    fn changes_equal_a_comparison_before_and_after_each_fact(
        ledger in ledgers_of_a_deaf_hub(), first in any::<prop::sample::Index>(),
        sites in subsequence(vec!["north", "south"], 0..=2), id in option::of(select(&DEPLOYMENTS[..])), limit in 1usize..9,
    ) {
        let first = first.index(ledger.entries.len() + 1);
        let sites: Vec<SiteId> = sites.into_iter().map(|site| site.parse().unwrap()).collect();
        let id: Option<DeploymentId> = id.map(|id| id.parse().unwrap());
        let asked = ChangesQuery { site: sites.iter().cloned().collect(), id: id.clone(), ..ChangesQuery::default() };
        // A site that is not there yet would be refused; a list of both sites is one of the fleet.
        let query = if sites.len() == 1 { Query { site: sites[0].clone().into(), ..Query::default() } } else { Query::default() };
        let mut wanted = naive(&ledger, first, &query);
        wanted.retain(|(_, deployment, ..)| id.is_none() || id == *deployment);
        prop_assert_eq!(recorded(&ledger, first, &asked, limit), wanted);
    }
}
