//! Failures for which other systems are known, against the intake, in virtual time. The numbers are those of the catalogue.

use std::collections::BTreeMap;

use muster_contract::query::Output;
use muster_contract::status::{StatusQuery, TargetStatus};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{Bounds, Freshness, Standing, Verdict};
use proptest::prelude::*;

use super::*;
use crate::fold::{Fleet, Position};

const HOUR: i64 = 60 * 60;

fn installed(epoch: u64, seq: u64, head: u64) -> Value {
    let report = with(status(epoch, seq, head), "status", json!({"state": "installed"}));
    with(report, "components", json!([{"name": "c", "state": "installed"}]))
}

/// The state that a reader of LEDGER has.
fn folded(hub: &Hub) -> Fleet {
    let mut fleet = Fleet::default();
    for (at, (subject, fact, stored_at)) in hub.ledger.iter().enumerate() {
        let at = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
        fleet.apply(at, subject, fact.clone());
    }
    fleet
}

/// Gives a desired state to the intake and to LEDGER.
fn wish(hub: &mut Hub, key: &DeviceKey, wanted: &DesiredState) {
    hub.intake.apply_desired(key, wanted, hub.now);
    hub.ledger.push((LedgerSubject::Desired(key.clone()), Fact::Desired(wanted.clone()), hub.now));
}

/// The only line of `web`.
fn line_of_web(hub: &Hub) -> TargetStatus {
    let id = Some("web".parse().unwrap());
    let query = StatusQuery { id, output: Output::Brief, ..StatusQuery::default() };
    folded(hub).status_answer(&query, None, 10).unwrap().targets.remove(0)
}

/// The digests of all views that follow from LEDGER.
fn views(hub: &Hub) -> BTreeMap<ViewKey, String> {
    let fleet = folded(hub);
    let digest = |key: &ViewKey| fleet.digest_of(key).map(|digest| digest.to_string());
    let keys = ["deployment.web", "deployment.db", "site.plant7", "fleet"];
    let keys = keys.map(|key| ViewKey::parse(key).unwrap());
    keys.into_iter().filter_map(|key| digest(&key).map(|digest| (key, digest))).collect()
}

#[test]
fn m01_two_hours_of_silence_after_a_success_are_never_plain_green() {
    let mut hub = Hub::new();
    wish(&mut hub, &press(), &desired(3, false));
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&installed(1, 1, 1));
    hub.live(300, 1, 1);
    let web = "web".parse().unwrap();
    let view = |hub: &Hub| folded(hub).deployment_view(&web).unwrap();
    assert_eq!((view(&hub).verdict, view(&hub).converged), (Verdict::Converged, Bounds { lo: 1, hi: 1 }));
    let dark_since = hub.now;
    for minute in 1..=120 {
        hub.pass(60);
        let (view, answer) = (view(&hub), folded(&hub).device_answer(&press(), Output::All).unwrap());
        // Within the lease the hub cannot know.
        if minute > 1 {
            let split = view.counts[&Standing::Installed];
            assert_eq!(
                (view.verdict, split.fresh, split.stale),
                (Verdict::ConvergedStale, 0, 1),
                "{minute} min"
            );
            assert_eq!(view.converged, Bounds { lo: 0, hi: 1 }, "certain of none");
            assert_eq!(answer.device.last_heard_at, Some(dark_since), "the age is shown, and does not move");
            assert_eq!(answer.deployments[0].freshness, Freshness::Stale);
            let line = line_of_web(&hub);
            assert_eq!((line.freshness, line.last_heard_at), (Freshness::Stale, Some(dark_since)));
            assert_eq!(answer.deployments[0], line, "a device's own line says the same");
            assert_eq!(line.message, "is installed; the device is silent");
        }
    }
    hub.beat(1, 1, 0);
    hub.pass(1);
    assert_eq!(view(&hub).verdict, Verdict::Converged, "one heartbeat with nothing new is enough");
    assert!(line_of_web(&hub).last_heard_at > Some(dark_since));
}

#[test]
fn m05_a_cable_pulled_in_silence_makes_a_device_stale_within_its_lease() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&installed(1, 1, 1));
    hub.live(300, 1, 1);
    assert_eq!(hub.states(), [Liveness::Fresh]);
    // No process closes the connection or checks whether it is open: no message comes, and that is all.
    let pulled_at = hub.now;
    while hub.states() == [Liveness::Fresh] {
        hub.pass(1);
    }
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
    let silent = hub.now.as_second() - pulled_at.as_second();
    assert_eq!(silent, 91, "the first look after a lease of 90 s");
    assert_eq!(hub.liveness()[1].last_heard_at, pulled_at, "with the time since when");
}

#[test]
fn m07_a_link_that_flaps_each_second_changes_nothing_and_says_nothing() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&installed(1, 1, 1));
    hub.pass(5);
    let (facts, known) = (hub.ledger.len(), views(&hub));
    for _ in 0..600 {
        // Each connection begins with a heartbeat, and what was not acknowledged comes once more.
        hub.beat(1, 1, 1);
        assert_eq!(hub.report(&installed(1, 1, 1)), Outcome::Duplicate);
        hub.pass(1);
    }
    assert_eq!(hub.ledger.len(), facts, "{:?}", &hub.ledger[facts..]);
    assert_eq!(views(&hub), known);
}

#[test]
fn m15_late_progress_after_a_success_is_marked_and_sets_nothing_back() {
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
    hub.report(&installed(1, 2, 2));
    assert_eq!(hub.report(&status(1, 1, 2)), Outcome::Late);
    assert_eq!(hub.statuses().iter().map(|fact| fact.late).collect::<Vec<_>>(), [false, true]);
    assert_eq!(hub.receipt(), Some((2, String::new())), "it is accounted for");
    hub.live(3 * HOUR, 1, 2);
    let overdue = hub.facts(|fact| matches!(fact, Fact::Deadline(_)).then_some(()));
    assert!(overdue.is_empty(), "what was installed is not taken for unfinished: {overdue:?}");
}

#[test]
fn m32_two_hours_without_ingest_expire_nothing_and_blame_nobody() {
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 1));
    // Ingest does not run. The device goes on; UPLINK keeps its reports.
    let left_at = hub.now.as_second();
    let away = (2..=120).map(|number: u64| (number, at(left_at + 60 * number.cast_signed())));
    hub.now = at(hub.now.as_second() + 2 * HOUR);
    hub.restart();
    hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
    let back_at = hub.now;
    for (number, stored_at) in away {
        let report = with(installed(1, number, number), "observedAt", json!(stored_at.to_string()));
        let payload = report.to_string();
        let outcome = hub.intake.apply_report(IncomingReport {
            origin: origin("muster.report.3.plant7.press-4").unwrap(),
            parsed: Report::parse(payload.as_bytes()),
            payload: payload.as_bytes(),
            position: 10 + number,
            stored_at,
            now: back_at,
        });
        assert_eq!(outcome, Outcome::New);
        hub.arrive();
    }
    assert_eq!(hub.statuses().len(), 120);
    assert_eq!(hub.statuses()[2].received_at.as_second(), left_at + 180, "by when each came");
    hub.pass(1);
    assert_eq!(hub.receipt(), Some((120, String::new())));
    assert_eq!(hub.states(), [Liveness::Fresh], "the hub was deaf, not the device silent");
    assert!(hub.quarantine().is_empty() && hub.incidents().is_empty());
    assert!(hub.facts(|fact| matches!(fact, Fact::Deadline(_)).then_some(())).is_empty());
}

proptest! {
    #[test]
    fn m16_the_order_of_two_consumers_does_not_change_the_views(
        order in Just((1..=24_u64).collect::<Vec<_>>()).prop_shuffle(),
        again in prop::collection::vec(1..=24_u64, 0..12),
        turns in prop::collection::vec(prop::bool::weighted(0.2), 36),
    ) {
        let report = |number: u64| {
            let seq = number.div_ceil(2);
            let report = if number.is_multiple_of(3) { status(1, seq, 12) } else { installed(1, seq, 12) };
            let id = if seq.is_multiple_of(2) { "web" } else { "db" };
            let current = seq > 10;
            with(with(report, "deployment", json!(id)), "current", json!(current))
        };
        let keys: [DeviceKey; 2] = ["plant7/press-4", "plant7/press-5"].map(|key| key.parse().unwrap());
        let mut wanted = desired(3, false);
        let mut second = wanted.deployments[0].clone();
        second.id = "db".parse().unwrap();
        wanted.deployments.push(second);
        let play = |order: &[u64], turns: &[bool]| {
            let mut hub = Hub::new();
            keys.iter().for_each(|key| wish(&mut hub, key, &wanted));
            for (at, number) in order.iter().enumerate() {
                if turns.get(at) == Some(&true) {
// The other consumer's turn: it knows LEDGER, and receives some messages again.
                    hub.restart();
                    keys.iter().for_each(|key| hub.intake.apply_desired(key, &wanted, hub.now));
                }
                // Odd ones are of one device, even ones of the other.
                let subject = format!("muster.report.3.plant7.press-{}", 4 + number % 2);
                hub.send(report(*number).to_string().as_bytes(), &subject);
                hub.arrive();
            }
            hub
        };
        let straight: Vec<u64> = (1..=24).collect();
        let crooked: Vec<u64> = order.iter().chain(&again).copied().collect();
        let (crooked, straight) = (play(&crooked, &turns), play(&straight, &[]));
        prop_assert_eq!(views(&straight).len(), 4);
        prop_assert_eq!(views(&crooked), views(&straight));
        for key in &keys {
            let of = |(subject, fact, _): &(LedgerSubject, Fact, Timestamp)| match fact {
                Fact::Status(fact) if subject.device() == Some(key) => Some(fact.seq.get()),
                _ => None,
            };
            let mut seqs: Vec<_> = crooked.ledger.iter().filter_map(of).collect();
            seqs.sort_unstable();
            prop_assert_eq!(seqs, (1..=12).collect::<Vec<_>>(), "each once, by any owner");
        }
        prop_assert!(crooked.incidents().is_empty() && crooked.quarantine().is_empty());
    }
}
