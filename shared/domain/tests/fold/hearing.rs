//! Tests that a hub which does not hear a partition calls nothing converged: views, answers, `why`, notices and
//! parts say so, with one cause.

use crate::ledger::{Ledger, Look, Said, key, stored_at};
use crate::moments;
use muster_contract::defined::ViewDefinition;
use muster_contract::notify::Subscription;
use muster_contract::partition::partition_of;
use muster_contract::pulse::UnheardPartition;
use muster_contract::query::{Output, Query};
use muster_contract::status::StatusQuery;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{Bounds, Freshness, Split, Verdict};
use muster_contract::why::EvidenceKind;
use muster_contract::{DeploymentId, DeviceKey, SiteId, Timestamp};
use muster_domain::fold::{Fleet, Merge, Outcome, Page, Shown};
use serde_json::json;

const PRESS: &str = "plant7/press-4";
const DRILL: &str = "plant7/drill-1";
const OVEN: &str = "plant9/oven-2";
const ALL: Page<DeviceKey> = Page { after: None, limit: usize::MAX };

fn web() -> DeploymentId {
    "web".parse().unwrap()
}

fn partition(device: &str) -> u16 {
    partition_of(&key(device))
}

fn unheard(device: &str, since: Timestamp) -> UnheardPartition {
    UnheardPartition { hub: None, partition: partition(device), since, ledger_seq: None }
}

/// All of them run it, fresh and known.
fn running(devices: &[&str]) -> Ledger {
    let mut ledger = Ledger::default();
    for device in devices {
        ledger.labelled(device, 1, &[("web", 1)], &[("line", "one")]);
        ledger.status(device, "web", &Said::default()).fresh(device, 1, 1);
    }
    ledger
}

#[test]
fn a_stopped_partition_is_nothing_converged_until_it_is_heard_again() {
    let mut ledger = running(&[PRESS, DRILL]);
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Converged);
    ledger.stopped(PRESS, stored_at(4));
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::ConvergedStale, Bounds { lo: 1, hi: 2 }));
    assert_eq!(view.hub.unheard, [unheard(PRESS, stored_at(4))]);
    for hub in [fleet.site("plant7").tally.hub, fleet.fleet_view().tally.hub] {
        assert_eq!(hub, view.hub);
    }
    let group = fleet.group_view(&"line".parse().unwrap(), &"one".parse().unwrap()).unwrap();
    assert_eq!((group.tally.hub, group.tally.devices), (view.hub, Split { fresh: 1, stale: 1, never: 0 }));
    ledger.resumed(PRESS);
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.hub.is_whole()), (Verdict::Converged, true));
}

#[test]
fn a_reasserted_stop_is_no_news_and_one_with_another_time_is() {
    let mut ledger = running(&[PRESS, OVEN]);
    ledger.stopped(PRESS, stored_at(4)).stopped(PRESS, stored_at(4)).stopped(PRESS, stored_at(5));
    let mut fleet = Fleet::default();
    let outcomes = ledger.fold_into(&mut fleet, 0);
    assert_eq!(outcomes[6..], [Outcome::Applied, Outcome::Duplicate, Outcome::Applied]);
    assert_eq!(fleet.deployment("web").hub.unheard, [unheard(PRESS, stored_at(5))]);
    fleet.drain_changed_views();
    ledger.resumed(OVEN).stopped(PRESS, stored_at(6));
    assert_eq!(ledger.fold_into(&mut fleet, 9), [Outcome::Duplicate, Outcome::Applied]);
    let changed = fleet.drain_changed_views();
    let key = |text: &str| ViewKey::parse(text).unwrap();
    let named = ["deployment.web", "fleet", "group.line.one", "site.plant7"].map(key);
    assert_eq!(changed, named.into(), "no view of the other site says so");
}

#[test]
fn the_cause_is_named_once_with_its_fact_and_no_device_is_called_silent() {
    let mut ledger = running(&[PRESS, DRILL]);
    ledger.stopped(PRESS, stored_at(4)).stopped(DRILL, stored_at(5));
    let fleet = ledger.fold();
    let why = fleet.why(&web(), None, &ALL).unwrap();
    assert_eq!((why.verdict, why.because, why.fresh), (Verdict::ConvergedStale, 2, Some(0)));
    let named: Vec<_> =
        why.hub.unheard.iter().map(|unheard| (unheard.partition, unheard.ledger_seq)).collect();
    let mut expected = [(partition(PRESS), Some(7)), (partition(DRILL), Some(8))];
    expected.sort_unstable();
    assert_eq!(named, expected);
    let words = why.hub.unheard[0].words();
    assert!(
        words.starts_with("the hub has not listened to partition 10 since 2026-11-20T08:00:0"),
        "{words}"
    );
    let kinds = why.standings.iter().flat_map(|because| &because.facts).map(|fact| fact.kind);
    assert!(kinds.into_iter().all(|kind| kind != EvidenceKind::Liveness), "{why:?}");
    assert!(why.silent_sites.is_empty(), "the silence is the hub's own");
    let one = fleet.why_device(&web(), &key(PRESS)).unwrap();
    assert_eq!(one.hub.unheard[0].ledger_seq, Some(7));
    let site: SiteId = "plant9".parse().unwrap();
    assert!(fleet.why(&web(), Some(&site), &ALL).is_none_or(|why| why.hub.is_whole()));
}

#[test]
fn a_site_that_fell_silent_before_the_hub_stopped_is_silent_still() {
    let mut ledger = running(&[PRESS, DRILL]);
    ledger.stale(PRESS, 1, 1).stale(DRILL, 1, 1).stopped(PRESS, stored_at(9));
    let fleet = ledger.fold();
    assert_eq!(fleet.why(&web(), None, &ALL).unwrap().silent_sites.count, 1);
    let mut ledger = running(&[PRESS, DRILL]);
    ledger.stale(DRILL, 1, 1).stopped(PRESS, stored_at(9));
    let fleet = ledger.fold();
    assert!(fleet.why(&web(), None, &ALL).unwrap().silent_sites.is_empty());
}

#[test]
fn lines_name_the_unheard_partition_and_since_when() {
    let mut ledger = running(&[PRESS, DRILL]);
    ledger.stopped(PRESS, stored_at(20));
    let fleet = ledger.fold();
    let answer = fleet.deployment_answer(&web()).unwrap();
    let status = fleet.status_answer(&StatusQuery { output: Output::All, ..StatusQuery::default() }, None, 9);
    let status = status.unwrap();
    assert_eq!(status.hub, answer.view.hub);
    let line = &status.targets[1];
    assert_eq!((line.freshness, line.last_heard_at), (Freshness::Stale, Some(stored_at(20))));
    assert!(line.message.ends_with("; the hub does not listen to it"), "{}", line.message);
    let stale = fleet
        .devices_answer(&Query { freshness: [Freshness::Stale].into(), ..Query::default() }, &ALL)
        .unwrap();
    assert_eq!((stale.devices.len(), stale.hub), (1, answer.view.hub.clone()));
    assert_eq!(fleet.device_answer(&key(PRESS), Output::Summary).unwrap().hub, answer.view.hub);
    assert!(fleet.device_answer(&key(DRILL), Output::Summary).unwrap().hub.is_whole());
    let deployments = fleet.deployments_answer(&Default::default(), &Page { after: None, limit: 9 }).unwrap();
    assert_eq!(deployments.hub, answer.view.hub);
}

#[test]
fn a_subscription_is_told_of_the_stop_also_where_no_standing_is_otherwise() {
    let mut ledger = running(&[PRESS]);
    ledger.stale(PRESS, 1, 1);
    let (mut fleet, subscription) = (ledger.fold(), Subscription::named("mine".parse().unwrap()));
    let (before, at) = (fleet.notice_state(&subscription, 9).unwrap().0, fleet.as_of().ledger_seq);
    ledger.stopped(PRESS, stored_at(4));
    ledger.fold_into(&mut fleet, at as usize);
    assert!(fleet.changed_since(at).concerns(&subscription));
    let (after, _) = fleet.notice_state(&subscription, 9).unwrap();
    assert!(fleet.changes_since(&subscription, at).listed.is_empty(), "it was stale before");
    assert_ne!(before, after);
    assert_eq!(after.hub.unheard, [unheard(PRESS, stored_at(4))]);
}

#[test]
fn a_defined_view_says_so_where_a_device_counts_for_anything_in_it() {
    let definition = |select: serde_json::Value| -> ViewDefinition {
        let text = json!({ "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "mine",
            "count": "devices", "select": select });
        muster_contract::decode::parse(text.to_string().as_bytes()).unwrap()
    };
    let mut ledger = running(&[PRESS, OVEN]);
    ledger.stopped(PRESS, stored_at(4));
    for (select, says_so) in [
        (json!({}), true),
        (json!({ "sites": ["plant9"] }), false),
        (json!({ "freshness": ["fresh"] }), false),
        (json!({ "freshness": ["stale"] }), true),
    ] {
        let mut fleet = Fleet::default();
        fleet.define([definition(select.clone())]);
        while fleet.count_defined(1) {}
        ledger.fold_into(&mut fleet, 0);
        let Shown::View(view) = fleet.defined_view(&"mine".parse().unwrap()) else { panic!("counting") };
        let view = view.sign();
        assert_eq!(!view.hub.is_whole(), says_so, "{select}");
        assert!(!view.message.is_empty(), "q18: it says why: {view:?}");
    }
}

#[test]
fn a_sum_of_hubs_names_the_hub_that_does_not_listen() {
    let (mut north, south) = (running(&[PRESS]), running(&[OVEN]));
    north.stopped(PRESS, stored_at(4));
    let names = ["north", "south"].map(|name| name.parse().unwrap());
    let mut merge = Merge::new(names.clone());
    for (name, ledger) in names.iter().zip([&north, &south]) {
        let fleet = ledger.fold();
        merge.record_heard(name, stored_at(9));
        for view in fleet.view_keys() {
            match &view {
                ViewKey::Site(site) => {
                    merge.apply_site(name, site, fleet.site_view(site).as_ref()).unwrap();
                }
                other => {
                    let part = fleet.part(other, 0, usize::MAX);
                    merge.apply_parts(name, fleet.as_of(), other, part.as_ref()).unwrap();
                }
            }
        }
        merge.read_whole(name);
    }
    let expected = UnheardPartition { hub: Some(names[0].clone()), ..unheard(PRESS, stored_at(4)) };
    let view = merge.deployment_view(&web()).unwrap();
    assert_eq!((view.verdict, &view.hub.unheard), (Verdict::ConvergedStale, &vec![expected.clone()]));
    let site = merge.site_view(&"plant7".parse().unwrap()).unwrap();
    assert_eq!(site.tally.hub.unheard, std::slice::from_ref(&expected));
    assert_eq!(site.tally.digest, muster_contract::view::content_digest(&site));
    assert_eq!(merge.fleet_view().tally.hub.unheard, std::slice::from_ref(&expected));
    let group = merge.group_view(&"line".parse().unwrap(), &"one".parse().unwrap()).unwrap();
    assert_eq!(group.tally.hub.unheard, [expected]);
    let words = view.hub.unheard[0].words();
    assert!(words.starts_with("hub north has not listened to partition 15 since "), "{words}");
}

#[test]
fn hearing_at_a_moment_is_as_the_hub_knew_it_then() {
    let mut ledger = running(&[PRESS]);
    ledger.stopped(PRESS, stored_at(3)).resumed(PRESS);
    for (moment, is_whole) in [(3, true), (4, false), (5, true)] {
        let (fleet, _) = moments::at_event_time(&ledger, stored_at(moment));
        assert_eq!(fleet.deployment("web").hub.is_whole(), is_whole, "at {moment}");
    }
}
