//! Tests that every list, with and without each of its filters, is what a naive count of all facts gives, and that a site
//! means that site: its counts, its verdict, its pages.

use std::fmt;
use std::str::FromStr;

use crate::fleets::ledgers_of_a_deaf_hub;
use crate::ledger::Ledger;
use crate::naive::World;
use crate::naive::lists::StandingFacts;
use muster_contract::query::{DeviceLine, Output, Query};
use muster_contract::status::{Axis, StatusQuery, TargetStatus};
use muster_contract::view::{DeploymentView, Freshness, Standing, Verdict};
use muster_contract::{DeviceKey, Generation, SiteId};
use muster_domain::fold::{Fleet, Page, StatusRefusal};
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::Value;

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
    let names =
        prop_oneof![3 => Just(None), 1 => prop::sample::select(vec!["a", "b", "nowhere"]).prop_map(Some)];
    let filters = (sites, verdicts, codes, heard, lacking, versions, names);
    filters.prop_map(|(sites, verdicts, codes, heard, lacking, versions, name)| Query {
        device: name.map(|name| name.parse().unwrap()),
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

/// The rows of all pages of a list; none where a name is unknown.
fn all_pages<K, T>(
    limit: usize,
    read: impl Fn(Page<K>) -> Result<(Vec<T>, Option<String>), StatusRefusal>,
) -> Option<Vec<T>>
where
    K: FromStr<Err: fmt::Debug>,
{
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = match read(Page { after, limit }) {
            Ok(page) => page,
            Err(refusal) => return unknown(&refusal),
        };
        assert!(page.len() <= limit);
        rows.extend(page);
        match next {
            Some(next) => after = Some(next.parse().unwrap()),
            None => return Some(rows),
        }
    }
}

fn deployments(fleet: &Fleet, query: &Query, limit: usize) -> Option<Vec<DeploymentView>> {
    all_pages(limit, |page| {
        fleet.deployments_answer(query, &page).map(|answer| (answer.deployments, answer.next))
    })
}

/// Only a list without a filter but sites has retired devices, which the naive count leaves out.
fn devices(fleet: &Fleet, query: &Query, limit: usize) -> Option<Vec<DeviceLine>> {
    let mut lines = all_pages(limit, |page| {
        fleet.devices_answer(query, &page).map(|answer| (answer.devices, answer.next))
    })?;
    assert!(!is_filtered(query) || lines.iter().all(|line| !line.retired));
    lines.retain(|line| !line.retired);
    Some(lines)
}

fn by_silence(fleet: &Fleet, query: &Query, limit: usize) -> Option<Vec<DeviceKey>> {
    let lines = all_pages(limit, |page| {
        fleet.devices_by_silence(query, &page).map(|answer| (answer.devices, answer.next))
    })?;
    Some(lines.into_iter().map(|line| line.key).collect())
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
    if let Some(keys) = by_silence(&fleet, query, limit) {
        prop_assert_eq!(keys, world.devices_by_silence(query), "{:?}", query.site);
    }
    Ok(())
}

/// Any filters of a status, in any combination.
fn status_queries() -> impl Strategy<Value = StatusQuery> {
    let some = |all: Vec<&'static str>| prop_oneof![2 => Just(Vec::new()), 1 => subsequence(all, 1..=2)];
    let id = prop_oneof![2 => Just(None), 1 => (0..DEPLOYMENTS.len()).prop_map(Some)];
    let axis = prop_oneof![2 => Just(None), 1 => Just(Some(Axis::Deployed)), 1 => Just(Some(Axis::Ready))];
    let apps = some(vec!["com.example.web", "com.example.db", "com.example.log"]);
    let devices = some(vec!["north/a", "north/b", "south/a", "south/b"]);
    let standings = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(Standing::ALL.to_vec(), 1..5)];
    let heard = vec![Freshness::Fresh, Freshness::Stale, Freshness::Never];
    let heard = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(heard, 1..3)];
    let shown = (standings, heard, some(CODES.to_vec()));
    let output = prop::sample::select(vec![Output::Brief, Output::All]);
    let filters = (id, apps, some(vec!["north", "south"]), devices, some(vec!["main", "side"]), axis);
    (filters, shown, output).prop_map(|(filters, (standings, heard, codes), output)| {
        let (id, apps, sites, devices, components, axis) = filters;
        StatusQuery {
            id: id.map(|at| DEPLOYMENTS[at].parse().unwrap()),
            app: apps.into_iter().map(str::to_owned).collect(),
            site: sites.into_iter().map(|name| name.parse().unwrap()).collect(),
            device: devices.into_iter().map(|name| name.parse().unwrap()).collect(),
            component: components.into_iter().map(|name| name.parse().unwrap()).collect(),
            standing: standings.into_iter().collect(),
            freshness: heard.into_iter().collect(),
            error: codes.into_iter().map(str::to_owned).collect(),
            status: axis,
            output,
            ..StatusQuery::default()
        }
    })
}

/// The line as a question shows it, if it passes: one filter after the other, without the words and axes of the whole, which are
/// of the components that pass.
fn filtered(mut line: TargetStatus, query: &StatusQuery, world: &World) -> Option<Value> {
    let codes = world.error_codes(&line.key, &line.deployment);
    let is_shown = (query.standing.is_empty() || (!line.leaving && query.standing.contains(&line.standing)))
        && (query.freshness.is_empty() || query.freshness.contains(&line.freshness))
        && (query.error.is_empty() || codes.iter().any(|code| query.error.contains(code)));
    let passes = is_shown
        && query.id.as_ref().is_none_or(|id| *id == line.deployment)
        && (query.app.is_empty() || line.app.as_ref().is_some_and(|app| query.app.contains(app)))
        && (query.site.is_empty() || query.site.contains(&line.key.site))
        && (query.device.is_empty() || query.device.iter().any(|path| path.0 == line.key));
    line.components.retain(|part| query.component.is_empty() || query.component.contains(&part.name));
    let has_part = query.component.is_empty() || !line.components.is_empty();
    for part in &mut line.components {
        part.deployed_status.take_if(|_| query.status == Some(Axis::Ready));
        part.ready_status.take_if(|_| query.status == Some(Axis::Deployed));
    }
    if query.output == Output::Brief {
        line.components.clear();
    }
    (passes && has_part).then(|| bare(line, query))
}

/// The compared fields of a line.
fn bare(line: TargetStatus, query: &StatusQuery) -> Value {
    let mut line = serde_json::to_value(line).unwrap();
    let fields = line.as_object_mut().unwrap();
    let is_of_parts = !query.component.is_empty();
    let left_out = [
        ("deployedStatus", is_of_parts || query.status == Some(Axis::Ready)),
        ("readyStatus", is_of_parts || query.status == Some(Axis::Deployed)),
        ("kstatus", is_of_parts),
        ("strategy", is_of_parts),
        ("actuation", is_of_parts),
        ("reconcile", is_of_parts),
    ];
    left_out.iter().filter(|(_, is_left_out)| *is_left_out).for_each(|(name, _)| _ = fields.remove(*name));
    line
}

fn check_status(ledger: &Ledger, queries: &[StatusQuery]) -> Result<(), TestCaseError> {
    let fleet = ledger.fold();
    let whole = StatusQuery { output: Output::All, ..StatusQuery::default() };
    let all = fleet.status_answer(&whole, None, usize::MAX).unwrap().targets;
    let facts = |line: &TargetStatus| StandingFacts {
        key: line.key.clone(),
        deployment: line.deployment.clone(),
        standing: (!line.leaving).then_some(line.standing),
        freshness: line.freshness,
        known: line.known,
        overdue: !line.leaving && line.overdue,
    };
    let mut seen: Vec<_> = all.iter().map(facts).collect();
    seen.sort();
    let world = World::of(&ledger.entries);
    prop_assert_eq!(seen, world.standings());
    for query in queries {
        let answer = match fleet.status_answer(query, None, usize::MAX) {
            Ok(answer) => answer,
            Err(refusal) => {
                unknown::<()>(&refusal);
                continue;
            }
        };
        let wanted: Vec<_> = all.iter().cloned().filter_map(|line| filtered(line, query, &world)).collect();
        let found: Vec<_> = answer.targets.into_iter().map(|line| bare(line, query)).collect();
        prop_assert_eq!(found, wanted, "{:?}", query);
    }
    check_generations(&fleet, &all)
}

fn generation_before(generation: Generation) -> Option<Generation> {
    let number = serde_json::to_value(generation).unwrap().as_u64()?;
    serde_json::from_value(Value::from(number.checked_sub(1)?)).ok()
}

/// Targets that have not changed since a generation of their device are shown as at present, and any other is superseded.
fn check_generations(fleet: &Fleet, all: &[TargetStatus]) -> Result<(), TestCaseError> {
    for line in all.iter().filter(|line| !line.leaving) {
        let Some(wanted) = line.target_generation else { continue };
        let device = vec![line.key.to_string().parse().unwrap()];
        let query = StatusQuery {
            id: Some(line.deployment.clone()),
            device,
            generation: Some(wanted),
            output: Output::All,
            ..StatusQuery::default()
        };
        let answer = fleet.status_answer(&query, None, usize::MAX).unwrap();
        prop_assert_eq!(&answer.targets, &vec![line.clone()], "{:?}", query);
        let Some(before) = generation_before(wanted) else { continue };
        let before = StatusQuery { generation: Some(before), ..query };
        let Ok(answer) = fleet.status_answer(&before, None, usize::MAX) else { continue };
        prop_assert!(answer.targets.iter().all(|line| line.superseded), "{:?}", answer.targets);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_status_with_any_filters_has_the_targets_of_a_naive_count(
        ledger in ledgers_of_a_deaf_hub(), queries in proptest::collection::vec(status_queries(), 8),
    ) {
        check_status(&ledger, &queries)?;
    }

    #[test]
    fn every_list_with_any_filters_is_a_naive_count(
        ledger in ledgers_of_a_deaf_hub(), queries in proptest::collection::vec(queries(), 8), limit in 1usize..4,
    ) {
        for query in &queries {
            check(&ledger, query, limit)?;
        }
    }
}
