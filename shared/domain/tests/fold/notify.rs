//! Tests that notices contain exactly the changes, over arbitrary ledgers: no change is missed, none is
//! invented, and a subscription that is not concerned gets nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::ledgers;
use crate::ledger::{Ledger, Said, position};
use muster_contract::changes::Changed;
use muster_contract::fact::Fact;
use muster_contract::notify::{NoticeStatus, Stood, Subscription, TellOn};
use muster_contract::query::Output;
use muster_contract::status::{Axis, StatusQuery, TargetStatus};
use muster_contract::{DeploymentId, DeviceKey, State};
use muster_domain::fold::{ChangeRecord, Fleet, NothingToTell};
use proptest::prelude::*;

/// How every standing is that passes a subscription's filters, by the lines of the status query.
fn stands(fleet: &Fleet, about: &Subscription) -> BTreeMap<(DeviceKey, DeploymentId), Stood> {
    stands_of(&lines(fleet), about)
}

/// All lines of the status query.
fn lines(fleet: &Fleet) -> Vec<TargetStatus> {
    let query = StatusQuery { output: Output::All, ..StatusQuery::default() };
    fleet.status_answer(&query, None, usize::MAX).unwrap().targets
}

fn stands_of(lines: &[TargetStatus], about: &Subscription) -> BTreeMap<(DeviceKey, DeploymentId), Stood> {
    let passes = |line: &TargetStatus| {
        let Subscription { id, app, site, device, component, .. } = about;
        let mut components = line.components.iter().map(|part| &part.name);
        id.as_ref().is_none_or(|id| *id == line.deployment)
            && (app.is_empty() || line.app.as_ref().is_some_and(|of| app.contains(of)))
            && (site.is_empty() || site.contains(&line.key.site))
            && (device.is_empty() || device.iter().any(|path| path.0 == line.key))
            && (component.is_empty() || components.any(|name| component.contains(name)))
    };
    let stood = |line: &TargetStatus| {
        let (standing, freshness, known) = (line.standing, line.freshness, line.known);
        let (leaving, overdue) = (line.leaving, line.overdue);
        let stood = Stood { standing, freshness, known, leaving, overdue };
        ((line.key.clone(), line.deployment.clone()), stood)
    };
    lines.iter().filter(|line| passes(line)).map(stood).collect()
}

/// The same ledgers, of which every third generation has web be another application with another component.
fn varied_ledgers() -> impl Strategy<Value = Ledger> {
    ledgers().prop_map(|mut ledger| {
        for entry in &mut ledger.entries {
            let Fact::Desired(desired) = &mut entry.fact else { continue };
            let turned = desired.generation.get() % 3 == 0;
            for entry in desired.deployments.iter_mut().filter(|entry| turned && entry.id.as_str() == "web") {
                entry.application_id = "com.example.other".to_owned();
                entry.profile.components[0].name = "side".parse().unwrap();
                entry.digest = entry.content_digest();
            }
        }
        ledger
    })
}

fn named(name: &str) -> Subscription {
    Subscription { output: Output::All, ..Subscription::named(name.parse().unwrap()) }
}

/// Subscriptions of each kind, and of kinds together: a deployment or none, then one filter of each sort or none.
fn subscriptions() -> Vec<Subscription> {
    let ids = [None, Some("web"), Some("db")].map(|id| id.map(|id| id.parse().unwrap()));
    let places = [None, Some("north"), Some("south"), Some("north/a"), Some("south/b")];
    let names = [None, Some("com.example.web"), Some("com.example.other"), Some("main"), Some("side")];
    let mut all = Vec::new();
    for id in ids {
        for place in places {
            for name in names {
                let mut about = Subscription { id: id.clone(), ..named("some") };
                match place {
                    Some(path) if path.contains('/') => about.device.push(path.parse().unwrap()),
                    Some(site) => about.site.push(site.parse().unwrap()),
                    None => {}
                }
                match name {
                    Some(app) if app.contains('.') => about.app.push(app.to_owned()),
                    Some(component) => about.component.push(component.parse().unwrap()),
                    None => {}
                }
                all.push(about);
            }
        }
    }
    all
}

/// The notice that a subscription would get now; none where there is none.
fn told(fleet: &Fleet, subscription: &Subscription) -> Option<muster_contract::canonical::Digest> {
    match fleet.notice_state(subscription, usize::MAX) {
        Ok((state, _)) => Some(state.digest(TellOn::Change)),
        Err(NothingToTell::Absent(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    /// From any moment to any later one, whatever the filters.
    #[test]
    fn n05_the_changes_since_a_moment_are_the_difference(ledger in varied_ledgers(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let early = Ledger { entries: ledger.entries[..cut].to_vec() };
        let (before, now) = (early.fold(), ledger.fold());
        for about in subscriptions() {
            let (was, is) = (stands(&before, &about), stands(&now, &about));
            let changes = now.changes_since(&about, before.as_of().ledger_seq);
            prop_assert!(!changes.incomplete && changes.omitted == 0);
            for change in &changes.listed {
                let place = (change.key.clone(), change.deployment.clone());
                prop_assert_eq!(change.from, was.get(&place).copied(), "{:?} {:?}", about, change);
                prop_assert_eq!(change.to, is.get(&place).copied(), "{:?} {:?}", about, change);
            }
            let places: BTreeSet<_> = was.keys().chain(is.keys()).collect();
            let different = places.into_iter().filter(|place| was.get(place) != is.get(place)).count();
            prop_assert_eq!(changes.listed.len(), different, "{:?}", about);
        }
    }

    #[test]
    fn n06_who_is_not_concerned_would_be_told_the_same(ledger in varied_ledgers(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let early = Ledger { entries: ledger.entries[..cut].to_vec() };
        let (before, now) = (early.fold(), ledger.fold());
        let touched = now.changed_since(before.as_of().ledger_seq);
        for subscription in subscriptions() {
            if !touched.concerns(&subscription) {
                prop_assert_eq!(told(&before, &subscription), told(&now, &subscription), "{:?}", subscription);
            }
        }
    }
}

/// Every change of a standing that passes, fact by fact: the sequence, the place and both sides.
type Steps = BTreeSet<(u64, DeviceKey, DeploymentId, String)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn n10_missed_changes_are_every_step_of_every_standing_once_and_in_order(
        ledger in varied_ledgers(), cut in any::<prop::sample::Index>(), skip in 0usize..9,
    ) {
        let cut = cut.index(ledger.entries.len() + 1);
        let mut fleet = Ledger { entries: ledger.entries[..cut].to_vec() }.fold();
        let mut record = ChangeRecord::begin(&fleet);
        let mut states = vec![(fleet.as_of().ledger_seq, lines(&fleet))];
        for (at, entry) in ledger.entries.iter().enumerate().skip(cut) {
            record.apply(&mut fleet, position(at), &entry.subject, entry.fact.clone()).unwrap();
            states.push((fleet.as_of().ledger_seq, lines(&fleet)));
        }
        prop_assert_eq!(record.to(), fleet.as_of());
        for about in subscriptions() {
            let mut steps = Steps::new();
            for pair in states.windows(2) {
                let (was, is) = (stands_of(&pair[0].1, &about), stands_of(&pair[1].1, &about));
                for place in was.keys().chain(is.keys()) {
                    let (from, to) = (was.get(place), is.get(place));
                    if from != to {
                        steps.insert((pair[1].0, place.0.clone(), place.1.clone(), format!("{from:?} {to:?}")));
                    }
                }
            }
            let missed = record.passing(&about, 0);
            prop_assert!(missed.is_sorted_by_key(|change| change.ledger_seq));
            prop_assert_eq!(&record.passing(&about, skip)[..], &missed[skip.min(missed.len())..]);
            let mut listed = Vec::new();
            for change in missed {
                // A verdict, or another target of the same standing.
                let Changed::Standing { key, from, to, .. } = change.what else { continue };
                if from != to {
                    let words = format!("{:?} {:?}", from.as_ref(), to.as_ref());
                    listed.push((change.ledger_seq, key, change.deployment.unwrap(), words));
                }
            }
            prop_assert_eq!(listed.len(), steps.len(), "{:?}: {:?} {:?}", about, listed, steps);
            prop_assert_eq!(listed.into_iter().collect::<Steps>(), steps, "{:?}", about);
        }
    }
}

#[test]
fn n05_what_no_longer_passes_is_gone_and_what_never_did_is_not_told() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1), ("db", 1)]).fresh("north/a", 1, 1);
    let at = ledger.fold().as_of().ledger_seq;
    ledger.status("north/a", "db", &Said::default()).desired("north/a", 2, &[("db", 1)]);
    ledger.status("north/a", "web", &Said { seq: 2, ..Said::default() });
    let fleet = ledger.fold();
    let of_web = Subscription { app: vec!["com.example.web".to_owned()], ..named("web") };
    let changes = fleet.changes_since(&of_web, at).listed;
    assert_eq!(changes.len(), 1, "nothing of db: {changes:?}");
    assert_eq!((changes[0].deployment.as_str(), changes[0].from.is_some()), ("web", true));
    let words = "what is reported only after it was let go of is of an application that nobody knows";
    assert_eq!(changes[0].to, None, "{words}");
    let of_nothing = Subscription { component: vec!["side".parse().unwrap()], ..named("side") };
    assert_eq!(fleet.changes_since(&of_nothing, at).listed, []);
    let at = fleet.as_of().ledger_seq;
    ledger.desired("north/a", 3, &[]);
    let of_db = Subscription { app: vec!["com.example.db".to_owned()], ..named("db") };
    let changes = ledger.fold().changes_since(&of_db, at).listed;
    let leaves = changes.iter().map(|change| change.to.is_some_and(|to| to.leaving)).collect::<Vec<_>>();
    assert_eq!(leaves, [true], "what was reported before is of its application still: {changes:?}");
}

#[test]
fn after_a_restart_changes_may_be_missing_and_the_state_is_right() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 1).status(
        "north/a",
        "web",
        &Said::default(),
    );
    let fleet = ledger.fold();
    let restored = Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records());
    assert!(restored.changes_since(&named("all"), 0).incomplete);
    assert!(restored.changed_since(0).all);
    assert!(!restored.changes_since(&named("all"), fleet.as_of().ledger_seq).incomplete);
    assert_eq!(told(&restored, &named("all")), told(&fleet, &named("all")));
}

#[test]
fn n02_a_whole_is_ready_or_deployed_only_where_each_part_is() {
    let mut ledger = Ledger::default();
    for device in ["north/a", "south/b"] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1);
    }
    let status = |ledger: &Ledger, axis| {
        let about = Subscription { id: Some("web".parse().unwrap()), status: Some(axis), ..named("web") };
        ledger.fold().notice_state(&about, 10).unwrap().0.status
    };
    assert_eq!(status(&ledger, Axis::Deployed), NoticeStatus::NotDeployed);
    ledger.status("north/a", "web", &Said::default());
    assert_eq!(status(&ledger, Axis::Ready), NoticeStatus::NotReady);
    let installing: &[(&str, State)] = &[("main", State::Installing)];
    ledger.status("south/b", "web", &Said { components: installing, ..Said::default() });
    assert_eq!(status(&ledger, Axis::Deployed), NoticeStatus::Deployed);
    assert_eq!(status(&ledger, Axis::Ready), NoticeStatus::NotReady);
    ledger.status("south/b", "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(status(&ledger, Axis::Ready), NoticeStatus::Ready);
    ledger.stale("south/b", 1, 2);
    assert_eq!(status(&ledger, Axis::Ready), NoticeStatus::NotReady, "a silent device is ready for nobody");
}

#[test]
fn what_is_listed_is_bounded_and_says_how_much_is_not() {
    let mut ledger = Ledger::default();
    for number in 0..5 {
        let device = format!("north/d{number}");
        ledger.desired(&device, 1, &[("web", 1)]);
    }
    let fleet = ledger.fold();
    let about = Subscription { id: Some("web".parse().unwrap()), ..named("web") };
    let (state, omitted) = fleet.notice_state(&about, 2).unwrap();
    assert_eq!((state.targets.len(), omitted.targets, state.rollup.targets), (2, 3, 5));
    assert!(state.apps.is_empty(), "they would be of two targets alone");
}
