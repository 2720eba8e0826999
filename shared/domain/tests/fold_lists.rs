//! Tests that every list, with and without each of its filters, is what a naive count of all facts gives, and that a site
//! means that site: its counts, its verdict, its pages.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod fleets;
mod ledger;
#[allow(dead_code, reason = "the views of places are counted in another test")]
mod naive;

use fleets::ledgers_of_a_deaf_hub;
use ledger::Ledger;
use muster_contract::query::{DeviceLine, Query};
use muster_contract::status::StatusQuery;
use muster_contract::view::{DeploymentView, Freshness, Verdict};
use muster_contract::{DeviceKey, SiteId};
use muster_domain::fold::{Fleet, Page, StatusRefusal};
use naive::World;
use proptest::prelude::*;
use proptest::sample::subsequence;

const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
/// Codes that the ledgers report, and one that nobody does.
const CODES: [&str; 4] = ["DiskFull", "Exit1", "nobody-has-it", "unspecified"];

/// Versions of agents in the ledgers, and one that nobody has.
const VERSIONS: [&str; 3] = ["0.1.0", "0.2.0", "9.9.9"];

/// Any filters of a list, in any combination; most leave most of them out.
fn queries() -> impl Strategy<Value = Query> {
    let sites = prop_oneof![Just(Vec::new()), subsequence(vec!["north", "south"], 1..=2)];
    let verdicts = prop_oneof![2 => Just(Vec::new()), 1 => subsequence(Verdict::ALL.to_vec(), 1..5)];
    let codes = prop_oneof![2 => Just(Vec::new()), 1 => subsequence(CODES.to_vec(), 1..3)];
    let heard = vec![Freshness::Fresh, Freshness::Stale, Freshness::Never];
    let heard = prop_oneof![2 => Just(Vec::new()), 1 => subsequence(heard, 1..3)];
    let lacking = prop_oneof![2 => Just(None), 1 => (0..DEPLOYMENTS.len()).prop_map(Some)];
    let versions = prop_oneof![2 => Just(Vec::new()), 1 => subsequence(VERSIONS.to_vec(), 1..3)];
    let filters = (sites, verdicts, codes, heard, lacking, versions);
    filters.prop_map(|(sites, verdicts, codes, heard, lacking, versions)| Query {
        site: sites.into_iter().map(|site| site.parse::<SiteId>().unwrap()).collect(),
        verdict: verdicts.into_iter().collect(),
        error: codes.into_iter().map(str::to_owned).collect(),
        freshness: heard.into_iter().collect(),
        version: versions.into_iter().map(str::to_owned).collect(),
        not_running: lacking.map(|at| DEPLOYMENTS[at].parse().unwrap()),
        ..Query::default()
    })
}

/// A list is refused for a site or deployment that the fleet does not know, and for nothing else.
fn unknown<T>(refusal: &StatusRefusal) -> Option<T> {
    assert!(matches!(refusal, StatusRefusal::Unknown(_)), "{refusal:?}");
    None
}

/// All pages of the deployments; none where a site is unknown.
fn deployments(fleet: &Fleet, query: &Query, limit: usize) -> Option<Vec<DeploymentView>> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = match fleet.deployments_answer(query, &Page { after, limit }) {
            Ok(page) => page,
            Err(refusal) => return unknown(&refusal),
        };
        rows.extend(page.deployments);
        match page.next {
            Some(next) => after = Some(next.parse().unwrap()),
            None => return Some(rows),
        }
    }
}

/// All pages of the devices; none where a name is unknown. Only a list without a filter but sites has retired devices, which the
/// naive count leaves out.
fn devices(fleet: &Fleet, query: &Query, limit: usize) -> Option<Vec<DeviceLine>> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = match fleet.devices_answer(query, &Page { after, limit }) {
            Ok(page) => page,
            Err(refusal) => return unknown(&refusal),
        };
        assert!(!is_filtered(query) || page.devices.iter().all(|line| !line.retired));
        rows.extend(page.devices.into_iter().filter(|line| !line.retired));
        match page.next {
            Some(next) => after = Some(next.parse().unwrap()),
            None => return Some(rows),
        }
    }
}

fn is_filtered(query: &Query) -> bool {
    !query.freshness.is_empty()
        || !query.error.is_empty()
        || !query.version.is_empty()
        || query.not_running.is_some()
}

fn check(ledger: &Ledger, query: &Query, limit: usize) -> Result<(), TestCaseError> {
    let (fleet, world) = (ledger.fold(), World::of(&ledger.entries));
    if let Some(rows) = deployments(&fleet, query, limit) {
        prop_assert_eq!(&rows, &world.listed_deployments(query), "{:?}", query);
        for view in &rows {
            let site = query.site.iter().cloned().collect();
            let one = StatusQuery { id: Some(view.deployment.clone()), site, ..StatusQuery::default() };
            let status = fleet.status_answer(&one, None, 1).unwrap();
            let counts = (status.verdict, status.rollup.targets, status.rollup.leaving);
            prop_assert_eq!(counts, (Some(view.verdict), view.targets, view.leaving), "{:?}", one);
        }
    }
    if let Some(lines) = devices(&fleet, query, limit) {
        for line in &lines {
            let shown = (line.changed_at, line.last_heard_at, !line.message.is_empty());
            prop_assert_eq!(shown, world.line_of(&line.key), "{}", line.key);
        }
        let keys: Vec<DeviceKey> = lines.into_iter().map(|line| line.key).collect();
        prop_assert_eq!(keys, world.listed_devices(query), "{:?}", query);
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_list_with_any_filters_is_a_naive_count(
        ledger in ledgers_of_a_deaf_hub(), queries in proptest::collection::vec(queries(), 8), limit in 1usize..4,
    ) {
        for query in &queries {
            check(&ledger, query, limit)?;
        }
    }
}
