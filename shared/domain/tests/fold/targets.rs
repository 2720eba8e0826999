//! Tests the targets: the denominator of every count, as devices come and go, and without any.

use crate::ledger;
use crate::ledger::{Ledger, Look, Said, key};
use crate::scenarios;
use muster_contract::State::{Failed, Installed, Installing, Removed};
use muster_contract::query::Output;
use muster_contract::status::{Deployed, Ready, StatusQuery};
use muster_contract::view::{Bounds, DeploymentView, Split, Verdict};
use muster_contract::why::EvidenceKind;
use muster_domain::fold::{Fleet, Page};

const PRESS: &str = "plant7/press-4";
const DRILL: &str = "plant7/drill-1";
const OVEN: &str = "plant9/oven-2";

fn counts(view: &DeploymentView) -> Vec<(&'static str, Split)> {
    view.counts.iter().map(|(standing, split)| (standing.as_str(), *split)).collect()
}

fn fresh(fresh: u64) -> Split {
    Split { fresh, ..Split::default() }
}

#[test]
fn m25_an_empty_target_set_is_no_success() {
    let ledger = scenarios::m25_empty_target_set();
    let upto = |entries: usize| Ledger { entries: ledger.entries[..entries].to_vec() }.fold();
    assert_eq!(upto(4).deployment("web").verdict, Verdict::Removing);
    let fleet = ledger.fold();
    assert!(!fleet.has_deployment("web"));
    assert!(fleet.fleet_view().tally.deployments.is_empty());
    assert!(Fleet::default().fleet_view().tally.deployments.is_empty());

    // A comparison with the time before shows that nothing targets it now, and the facts that did it.
    let diff = fleet.diff(&upto(3), &"web".parse().unwrap(), None, &Page { after: None, limit: 9 }).unwrap();
    assert_eq!((diff.from.verdict, diff.to.verdict), (Verdict::Converged, Verdict::Empty));
    assert_eq!((diff.to.targets, diff.to.converged), (0, Bounds { lo: 0, hi: 0 }));
}

#[test]
fn m25_a_known_site_or_group_without_targets_is_empty_and_no_success() {
    let mut ledger = Ledger::default();
    ledger.labelled(PRESS, 1, &[("web", 1)], &[("region", "north")]).fresh(PRESS, 1, 0);
    ledger.status(PRESS, "web", &Said::default()).labelled(OVEN, 1, &[], &[("region", "south")]);
    let fleet = ledger.fresh(OVEN, 1, 0).fold();
    let ready = |site: &str| {
        let (id, site) = (Some("web".parse().unwrap()), vec![site.parse().unwrap()]);
        let query = StatusQuery { id, site, ..StatusQuery::default() };
        let rollup = fleet.status_answer(&query, None, 9).map(|answer| answer.rollup);
        rollup.map(|rollup| (rollup.targets, rollup.deployed_status, rollup.ready_status))
    };
    assert_eq!(ready("plant7").unwrap(), (1, Some(Deployed::Applied), Some(Ready::Ready)));
    assert_eq!(ready("plant9").unwrap(), (0, Some(Deployed::Empty), Some(Ready::Empty)));
    assert!(ready("plant8").is_err(), "a site that nobody knows is none without targets");

    let page = Page { after: None, limit: 9 };
    let groups = fleet.groups_answer(&"region".parse().unwrap(), None, &page).unwrap().groups;
    let verdicts: Vec<_> = groups.iter().map(|line| (line.value.as_str(), line.part.part.verdict)).collect();
    assert_eq!(verdicts, [("north", Verdict::Converged), ("south", Verdict::Empty)]);
}

#[test]
fn m28_a_target_counts_once_published_and_counts_always_add_up() {
    let mut ledger = Ledger::default();
    for number in 0..9 {
        ledger.desired(&format!("plant7/press-{number}"), 1, &[("web", 1)]);
    }
    for (number, state) in [(1, Installing), (2, Failed), (3, Installed), (1, Installed), (4, Removed)] {
        let seq = 1 + u64::from((number, state) == (1, Installed));
        let said = Said { seq, components: &[("main", state)], ..Said::default() };
        ledger.status(&format!("plant7/press-{number}"), "web", &said);
    }
    let mut fleet = Fleet::default();
    for (at, entry) in ledger.entries.iter().enumerate() {
        fleet.apply(ledger::position(at), &entry.subject, entry.fact.clone());
        let view = fleet.deployment("web");
        assert_eq!(view.targets, 9.min(at as u64 + 1));
        assert_eq!(view.counts.values().map(|split| split.total()).sum::<u64>(), view.targets);
    }
}

#[test]
fn m29_the_denominator_follows_a_device_that_leaves_the_fleet() {
    let mut ledger = scenarios::m29_target_retired();
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!((view.targets, view.verdict, view.errors.len()), (1, Verdict::Converged, 0));
    assert!(fleet.site_view(&"plant9".parse().unwrap()).is_none());
    let line = fleet.device_answer(&key(PRESS), Output::All).unwrap();
    assert!(line.device.retired && line.deployments.is_empty() && line.device.standings.is_empty());
    assert_eq!(fleet.fleet_view().tally.devices, fresh(1));

    ledger.status(PRESS, "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(ledger.fold().deployment("web").targets, 1, "also if it goes on talking");
    ledger.desired(PRESS, 3, &[("web", 1)]);
    assert_eq!(ledger.fold().deployment("web").targets, 2, "and back, if it is wanted again");
}

#[test]
fn m29_a_device_untargeted_midway_leaves_the_targets_at_once() {
    let mut ledger = Ledger::default();
    for device in [PRESS, DRILL] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 0);
    }
    ledger.status(PRESS, "web", &Said::default());
    ledger.status(DRILL, "web", &Said { components: &[("main", Installing)], ..Said::default() });
    let before = ledger.fold();
    let view = before.deployment("web");
    assert_eq!((view.targets, view.leaving, view.verdict), (2, 0, Verdict::Progressing));
    ledger.desired(DRILL, 2, &[]);
    let after = ledger.fold();
    let view = after.deployment("web");
    assert_eq!((view.targets, view.leaving, view.verdict), (1, 1, Verdict::Converged));
    assert_eq!((counts(&view), view.converged), (vec![("installed", fresh(1))], Bounds { lo: 1, hi: 1 }));

    let page = Page { after: None, limit: 9 };
    let diff = after.diff(&before, &"web".parse().unwrap(), None, &page).unwrap();
    let change = &diff.devices[0];
    assert_eq!((diff.changed, change.key.clone()), (1, key(DRILL)));
    assert!(change.to.as_ref().unwrap().leaving && !change.from.as_ref().unwrap().leaving);
    let facts: Vec<_> = change.facts.iter().map(|fact| (fact.kind, fact.ledger_seq)).collect();
    assert_eq!(facts, [(EvidenceKind::Desired, ledger.entries.len() as u64)], "the event that did it");
    assert_eq!(change.facts[0].generation.unwrap().get(), 2);
}

#[test]
fn an_invented_deployment_is_no_target_and_goes_with_its_removal() {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[("web", 1)]).fresh(PRESS, 1, 0).status(PRESS, "web", &Said::default());
    let views = |fleet: &Fleet| fleet.view_keys().len();
    let before = views(&ledger.fold());
    let names: Vec<String> = (0..100).map(|number| format!("invented-{number}")).collect();
    let is_targeted = |fleet: &Fleet, id: &str| fleet.is_targeted(&id.parse().unwrap());
    let mut seq = 1;
    for (components, there) in [(&[("main", Installed)], true), (&[("main", Removed)], false)] {
        for name in &names {
            seq += 1;
            ledger.status(PRESS, name, &Said { seq, components, ..Said::default() });
        }
        let fleet = ledger.fold();
        assert!(is_targeted(&fleet, "web"));
        assert!(names.iter().all(|name| !is_targeted(&fleet, name) && fleet.has_deployment(name) == there));
        assert_eq!(views(&fleet), before + if there { names.len() } else { 0 });
    }
    // Rows kept against late reports go once LEDGER holds none that could come.
    let mut fleet = ledger.fold();
    let held =
        |fleet: &Fleet| serde_json::to_string(&fleet.record(&key(PRESS))).unwrap().contains("invented");
    assert!(held(&fleet));
    let after = ledger::position(ledger.entries.len());
    let next_month = after.stored_at + jiff::SignedDuration::from_hours(24 * 32);
    let at = muster_domain::fold::Position { stored_at: next_month, ..after };
    let entry = ledger.desired(PRESS, 2, &[("web", 1)]).entries.last().unwrap().clone();
    fleet.apply(at, &entry.subject, entry.fact);
    assert!(!held(&fleet));
}

#[test]
fn a_removal_has_its_generation_so_no_later_order_counts_as_removed() {
    let (id, press) = ("web".parse().unwrap(), key(PRESS));
    let mut ledger = Ledger::default();
    let said = |seq, generation, state| Said { seq, generation, components: state, ..Said::default() };
    ledger.desired(PRESS, 2, &[("web", 2)]).fresh(PRESS, 1, 0);
    assert_eq!(ledger.fold().removed(&id, &press), None);
    ledger.status(PRESS, "web", &said(1, 2, &[("web", Installed)]));
    ledger.desired(PRESS, 3, &[]).status(PRESS, "web", &said(2, 3, &[("web", Removed)]));
    let fleet = ledger.fold();
    assert!(fleet.rollout_line(&id, &press).is_none(), "a removed deployment has no line");
    assert_eq!(fleet.removed(&id, &press).map(|generation| generation.get()), Some(3));
    ledger.desired(PRESS, 4, &[("web", 4)]).desired(PRESS, 5, &[]);
    let fleet = ledger.fold();
    assert!(fleet.rollout_line(&id, &press).is_none());
    assert_eq!(fleet.removed(&id, &press).map(|generation| generation.get()), Some(3), "not of document 5");
    assert!(fleet.heard(&press).unwrap().is_complete);
    ledger.beat(PRESS, 1, 7).fresh(PRESS, 1, 7);
    assert!(!ledger.fold().heard(&press).unwrap().is_complete, "reports are missing");
}
