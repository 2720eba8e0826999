//! What one device may add to the hub: deployments and epochs, and what it can make the border remember.

use std::collections::BTreeSet;

use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, EPOCH_RISES_PER_HOUR, UNSOLICITED_DEFAULT};
use proptest::prelude::*;

use super::*;
use crate::account::{EPOCHS_KEPT, PIECES_MAX};

const DAY: i64 = 24 * 60 * 60;

/// A document with these deployments.
pub(super) fn document(generation: u64, deployments: &[String]) -> DesiredState {
    let entry = |id: &String| {
        json!({
            "id": id, "name": id, "applicationId": id, "targetGeneration": generation,
            "digest": format!("sha256:{}", "0".repeat(64)),
            "profile": {"type": "process", "components": [{"name": "c", "properties": {"command": "true"}}]},
        })
    };
    let entries: Vec<Value> = deployments.iter().map(entry).collect();
    serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation, "retired": false,
        "issuedAt": at(0).to_string(), "source": {"kind": "git", "revision": "a"}, "deployments": entries,
    }))
    .unwrap()
}

fn ids(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}{at}")).collect()
}

fn of(deployment: &str, state: &str, seq: u64) -> Value {
    let report = with(status(1, seq, seq), "deployment", json!(deployment));
    let report = with(report, "components", json!([{"name": "c", "state": state}]));
    with(report, "status", json!({"state": state}))
}

/// A device that is well, or not, with its documents.
struct Story {
    hub: Hub,
    seq: u64,
}

impl Story {
    fn new() -> Self {
        Self { hub: Hub::new(), seq: 0 }
    }

    fn desire(&mut self, generation: u64, deployments: &[String]) {
        let document = document(generation, deployments);
        self.hub.border.desire(&press(), &document, self.hub.now);
        let subject = LedgerSubject::Desired(press());
        self.hub.ledger.push((subject, Fact::Desired(document), self.hub.now));
    }

    fn say(&mut self, deployment: &str, state: &str) -> Outcome {
        self.seq += 1;
        self.hub.report(&of(deployment, state, self.seq))
    }

    fn say_of_generation(&mut self, deployment: &str, generation: u64) -> Outcome {
        self.seq += 1;
        self.hub.report(&with(of(deployment, "installed", self.seq), "generation", json!(generation)))
    }

    fn account(&self) -> (u64, u64, u64) {
        let device = &self.hub.border.devices[1];
        let account = device.confirmed().cursor.account(device.head());
        (account.received, account.quarantined, account.missing.count())
    }

    fn last_reason(&self) -> String {
        self.hub.quarantine().last().unwrap().reason.clone()
    }
}

#[test]
fn a_device_without_a_document_may_report_eight_deployments() {
    let mut story = Story::new();
    for id in ids("d", UNSOLICITED_DEFAULT) {
        assert_eq!(story.say(&id, "installed"), Outcome::New, "{id}");
    }
    assert_eq!(story.say("ninth", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("raise --unsolicited"), "{}", story.last_reason());
    assert_eq!(story.say("d3", "failed"), Outcome::New, "it may go on with those");
    assert_eq!(story.say("d4", "removed"), Outcome::New);
    assert_eq!(story.say("tenth", "installed"), Outcome::Quarantined, "a removed one is remembered, too");
    assert_eq!(story.account(), (10, 2, 0));
    story.hub.restart();
    assert_eq!(story.say("eleventh", "installed"), Outcome::Quarantined);
    assert_eq!(story.say("d4", "installed"), Outcome::New);
}

#[test]
fn a_device_with_a_document_may_report_only_what_it_was_sent() {
    let mut story = Story::new();
    story.desire(3, &ids("web", 1));
    assert_eq!(story.say("web0", "installed"), Outcome::New);
    assert_eq!(story.say("other", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("requeue"), "{}", story.last_reason());
    assert_eq!(story.account(), (1, 1, 0));
    assert_eq!(story.hub.receipt(), Some((2, String::new())));
    let held = story.hub.quarantine()[0].clone();
    let requeue = |story: &mut Story| {
        let now = story.hub.now;
        let judged = story.hub.border.requeue(Some(&press()), &held, 1, Because::default(), now);
        story.hub.arrive();
        judged
    };
    assert!(matches!(requeue(&mut story), Judged::Stays(words) if words.contains("other")));
    story.desire(4, &["other".to_owned()]);
    assert!(matches!(requeue(&mut story), Judged::Settled(_)));
    assert_eq!(story.account(), (2, 0, 0));
}

#[test]
fn what_was_sent_within_ledgers_window_may_be_reported_also_after_a_restart() {
    let mut story = Story::new();
    story.desire(3, &["old".to_owned()]);
    story.hub.now = at(story.hub.now.as_second() + 29 * DAY);
    story.desire(4, &["new".to_owned()]);
    assert_eq!(story.say("old", "installed"), Outcome::New);
    assert_eq!(story.say("old", "removed"), Outcome::New);
    story.hub.restart();
    assert_eq!(story.say("old", "installed"), Outcome::New);
    assert_eq!(story.say("old", "removed"), Outcome::New);
    story.hub.now = at(story.hub.now.as_second() + 2 * DAY);
    assert_eq!(story.say("old", "installed"), Outcome::Quarantined, "removed, and sent 31 days ago");
    assert_eq!(story.say("new", "installed"), Outcome::New);
}

#[test]
fn what_still_stands_may_be_reported_however_long_ago_it_was_sent() {
    let mut story = Story::new();
    story.desire(3, &["old".to_owned()]);
    assert_eq!(story.say("old", "installed"), Outcome::New);
    story.desire(4, &[]);
    story.hub.now = at(story.hub.now.as_second() + 40 * DAY);
    // A device that was away sends its newest report of each deployment first, then its backlog.
    story.seq += 1;
    let before = story.seq;
    assert_eq!(story.say("old", "removing"), Outcome::New);
    assert_eq!(story.say("old", "removed"), Outcome::New);
    assert_eq!(story.hub.report(&of("old", "failed", before)), Outcome::Late, "it opens no row");
    assert_eq!(story.account().1, 0);
}

#[test]
fn a_device_may_replace_all_of_its_deployments_at_once() {
    let mut story = Story::new();
    for generation in 1..=4 {
        let all = ids(&format!("g{generation}-"), DEPLOYMENTS_PER_DEVICE_MAX);
        story.desire(generation, &all);
        for id in &all {
            assert_eq!(story.say(id, "pending"), Outcome::New, "{id}");
        }
        for id in ids(&format!("g{}-", generation - 1), DEPLOYMENTS_PER_DEVICE_MAX) {
            if generation > 1 {
                assert_eq!(story.say(&id, "removed"), Outcome::New, "{id}");
            }
        }
    }
}

#[test]
fn a_device_that_removes_nothing_opens_no_more_than_128_beside_its_document() {
    let mut story = Story::new();
    story.desire(1, &ids("a", DEPLOYMENTS_PER_DEVICE_MAX));
    story.desire(2, &ids("b", DEPLOYMENTS_PER_DEVICE_MAX));
    story.desire(3, &[]);
    for id in ids("a", DEPLOYMENTS_PER_DEVICE_MAX) {
        assert_eq!(story.say(&id, "installed"), Outcome::New, "{id}");
    }
    assert_eq!(story.say("b0", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("as removed"), "{}", story.last_reason());
    assert_eq!(story.say("a0", "removed"), Outcome::New);
    assert_eq!(story.say("b0", "failed"), Outcome::New);
}

#[test]
fn a_report_for_a_newer_document_than_the_hub_has_is_asked_for_again() {
    let mut story = Story::new();
    story.desire(3, &["web".to_owned()]);
    assert_eq!(story.say("web", "installed"), Outcome::New);
    assert_eq!(story.say_of_generation("new", 9), Outcome::Quarantined);
    assert!(story.last_reason().contains("restored backup"), "{}", story.last_reason());
    assert_eq!(story.say("web", "installed"), Outcome::New);
    assert_eq!(story.account(), (2, 0, 1), "its number stays missing, so the device keeps it");
    story.desire(10, &["new".to_owned()]);
    story.seq = 1;
    assert_eq!(story.say_of_generation("new", 9), Outcome::New);
    assert_eq!(story.account(), (3, 0, 0));
}

#[test]
fn while_documents_cannot_be_read_unknown_deployments_are_bounded() {
    let mut story = Story::new();
    story.desire(3, &["web".to_owned()]);
    let report = Report::parse(of("other", "installed", 1).to_string().as_bytes()).unwrap();
    assert!(!story.hub.border.needs_document(&"a/b".parse().unwrap(), &report, story.hub.now));
    assert!(story.hub.border.needs_document(&press(), &report, story.hub.now));
    story.hub.border.documents_unreadable(true);
    for (nth, id) in ids("other", UNVERIFIED_MAX).iter().enumerate() {
        // A removed one counts as well: otherwise a device could name new ones without end.
        let state = if nth % 2 == 0 { "installed" } else { "removed" };
        assert_eq!(story.say(id, state), Outcome::New, "{id}");
    }
    let taken = UNVERIFIED_MAX as u64;
    assert_eq!(story.say("another", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("make DOWNLINK answer"), "{}", story.last_reason());
    assert_eq!(story.account(), (taken, 0, 1), "its number is not covered, so the device keeps it");
    assert_eq!(story.say("web", "installed"), Outcome::New, "a target is known");
    assert_eq!(story.say("other0", "failed"), Outcome::New, "so is what the device has");
    assert_eq!(story.account(), (taken + 2, 0, 1));
    story.hub.border.documents_unreadable(false);
    assert_eq!(story.say("yet-another", "installed"), Outcome::Quarantined);
    story.desire(4, &["another".to_owned()]);
    story.seq = taken;
    assert_eq!(story.say("another", "installed"), Outcome::New, "the device sent it again");
    assert_eq!(story.account(), (taken + 3, 1, 0));
}

#[test]
fn while_documents_cannot_be_read_a_device_may_replace_all_it_has() {
    let mut story = Story::new();
    let old = ids("old", DEPLOYMENTS_PER_DEVICE_MAX);
    story.desire(3, &old);
    for id in &old {
        assert_eq!(story.say(id, "installed"), Outcome::New, "{id}");
    }
    story.hub.border.documents_unreadable(true);
    for id in ids("new", DEPLOYMENTS_PER_DEVICE_MAX) {
        assert_eq!(story.say_of_generation(&id, 4), Outcome::New, "{id}");
    }
    assert_eq!(story.say_of_generation("more", 4), Outcome::Quarantined);
    assert_eq!(story.say("old0", "removed"), Outcome::New);
    assert_eq!(story.say_of_generation("more", 4), Outcome::New);
}

#[test]
fn the_seventh_epoch_within_an_hour_waits_and_is_then_taken_in_by_itself() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&status(10, 1, 1)), Outcome::New);
    for rise in 1..=EPOCH_RISES_PER_HOUR as u64 {
        hub.pass(60);
        assert_eq!(hub.report(&status(10 + rise, 1, 1)), Outcome::New, "{rise}");
    }
    hub.pass(60);
    assert_eq!(hub.report(&status(20, 1, 1)), Outcome::Quarantined);
    let reason = &hub.quarantine()[0].reason;
    assert!(reason.contains("7th") && reason.contains("by itself"), "{reason}");
    assert_eq!(hub.quarantine()[0].seq, None, "its number is not covered");
    hub.restart();
    hub.beat(20, 1, 0);
    hub.pass(1);
    let amnesias = |hub: &Hub| {
        hub.incidents().iter().filter(|what| matches!(what, IncidentKind::Amnesia { .. })).count()
    };
    assert_eq!(amnesias(&hub), EPOCH_RISES_PER_HOUR, "also a heartbeat waits");
    hub.live(60 * 60, 20, 1);
    assert_eq!(amnesias(&hub), EPOCH_RISES_PER_HOUR + 1);
    let receipts = hub.border.take_receipts(hub.now, 1);
    let (epoch, missing) = (receipts[0].1.epoch.get(), receipts[0].1.missing.to_string());
    assert_eq!((epoch, missing.as_str()), (20, "1"), "the device is asked for what was refused");
    assert_eq!(hub.report(&status(20, 1, 1)), Outcome::New);
}

/// What one device can make the border remember.
fn check_bounds(border: &Border) {
    for device in &border.devices {
        assert!(device.sent.len() <= SENT_KEPT);
        for memory in [device.confirmed(), device.latest()] {
            let size = memory.size();
            assert!(size.standings <= STANDINGS_KEPT, "{size:?}");
            assert!(size.overdue <= OVERDUE_KEPT, "{size:?}");
            assert!(size.open_messages <= OPEN_KEPT, "{size:?}");
            assert!(size.gap_pieces <= PIECES_MAX + 1, "{size:?}");
            let (pages, pieces) = memory.cursor.size();
            assert!(pages <= EPOCHS_KEPT && pieces <= 3 * EPOCHS_KEPT * (PIECES_MAX + 1), "{pages} {pieces}");
        }
    }
}

/// Something a hostile device sends.
#[derive(Debug, Clone)]
struct Shot {
    epoch: u64,
    seq: u64,
    deployment: u16,
    removed: bool,
    poison: bool,
    beat: bool,
    pause: u8,
    /// The hub cannot read its documents.
    unreadable: bool,
}

fn shot() -> impl Strategy<Value = Shot> {
    (1u64..20, 1u64..9_000, 0u16..400, any::<bool>(), 0u8..8, 0u8..8, 0u8..120, 0u8..4).prop_map(
        |(epoch, seq, deployment, removed, poison, beat, pause, unreadable)| Shot {
            epoch,
            seq,
            deployment,
            removed,
            poison: poison == 0,
            beat: beat == 0,
            pause,
            unreadable: unreadable > 0,
        },
    )
}

fn rises_within_an_hour(hub: &Hub) -> usize {
    let rises: BTreeSet<(i64, Epoch)> = hub
        .facts(|fact| if let Fact::Incident(fact) = fact { Some(fact) } else { None })
        .into_iter()
        .filter_map(|fact| match fact.what {
            IncidentKind::Amnesia { epoch, .. } => Some((fact.at.as_second(), epoch)),
            _ => None,
        })
        .collect();
    let within = |from: i64| rises.iter().filter(|(at, _)| (from..from + 3_600).contains(at)).count();
    rises.iter().map(|(at, _)| within(*at)).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn whatever_a_device_sends_its_quota_holds(
        shots in prop::collection::vec(shot(), 1..600),
        sent in prop::option::of(0u16..60),
        restart in 0usize..600,
        reads_fail in any::<bool>(),
    ) {
        let mut hub = Hub::new();
        let sent_ids: Vec<String> = (0..sent.unwrap_or(0)).map(|id| format!("d{id}")).collect();
        if sent.is_some() {
            hub.ledger.push((LedgerSubject::Desired(press()), Fact::Desired(document(3, &sent_ids)), hub.now));
            hub.border.desire(&press(), &document(3, &sent_ids), hub.now);
        }
        for (nth, shot) in shots.iter().enumerate() {
            let state = if shot.removed { "removed" } else { "installed" };
            let report = of(&format!("d{}", shot.deployment), state, shot.seq);
            let report = with(report, "epoch", json!(shot.epoch));
            let report = if shot.poison { with(report, "generation", json!("?")) } else { report };
            hub.border.documents_unreadable(reads_fail && shot.unreadable);
            if shot.beat { hub.beat(shot.epoch, shot.seq, 0) } else { _ = hub.report(&report) }
            hub.pass(i64::from(shot.pause));
            if nth == restart {
                hub.restart();
                hub.border.sent(&press(), [].iter(), hub.now);
                if sent.is_some() {
                    hub.border.desire(&press(), &document(3, &sent_ids), hub.now);
                }
            }
            check_bounds(&hub.border);
        }
        let spoken: BTreeSet<&DeploymentId> = hub.statuses().iter().map(|fact| &fact.deployment).collect();
        let is_unknown = |id: &&&DeploymentId| !sent_ids.contains(&id.to_string());
        let unknown = spoken.iter().filter(is_unknown).count();
        let most = match (reads_fail, sent) {
            (true, _) => UNVERIFIED_MAX,
            (false, None) => UNSOLICITED_DEFAULT,
            (false, Some(_)) => 0,
        };
        prop_assert!(unknown <= most, "{unknown} above {most}: {spoken:?}");
        prop_assert!(rises_within_an_hour(&hub) <= EPOCH_RISES_PER_HOUR);
    }

    /// An honest device reports deployments of documents that it was sent, in any order, and forgets its memory now and then.
    #[test]
    fn an_honest_device_is_never_refused(
        steps in prop::collection::vec((0u8..12, 0usize..40, 0u8..90), 1..150),
    ) {
        let (mut hub, mut known, mut generation) = (Hub::new(), Vec::<String>::new(), 0);
        let (mut epoch, mut seq) = (5, 0);
        for (kind, number, minutes) in steps {
            match kind {
                0..3 => {
                    generation += 1;
                    let all: Vec<String> = (0..number).map(|at| format!("d{}", (at + 3 * generation) % 60)).collect();
                    let document = document(generation as u64, &all);
                    hub.ledger.push((LedgerSubject::Desired(press()), Fact::Desired(document.clone()), hub.now));
                    hub.border.desire(&press(), &document, hub.now);
                    known.extend(all);
                }
                3 => {
                    // A failing memory: not more often than every twelve minutes.
                    hub.pass(720);
                    (epoch, seq) = (epoch + 1, 0);
                }
                4 => {
                    let mut documents = hub.ledger.iter().filter_map(|(_, fact, at)| match fact {
                        Fact::Desired(document) => Some((document.clone(), *at)),
                        _ => None,
                    });
                    let newest = documents.next_back();
                    hub.restart();
                    newest.iter().for_each(|(document, at)| hub.border.desire(&press(), document, *at));
                }
                _ if known.is_empty() => {}
                _ => {
                    seq += 1;
                    let state = if number % 3 == 0 { "removed" } else { "installed" };
                    let report = of(&known[known.len() - 1 - number % known.len()], state, seq);
                    prop_assert_ne!(hub.report(&with(report, "epoch", json!(epoch))), Outcome::Quarantined);
                }
            }
            hub.pass(i64::from(minutes) * 60);
        }
        prop_assert!(hub.quarantine().is_empty());
    }
}

#[test]
fn a_device_that_sends_every_second_number_takes_a_bounded_part_of_memory() {
    let mut hub = Hub::new();
    let mut outcomes = Vec::new();
    for nth in 0..PIECES_MAX as u64 + 200 {
        outcomes.push(hub.report(&with(status(1, 2 * nth + 1, 2 * nth + 1), "deployment", json!("web"))));
    }
    check_bounds(&hub.border);
    let taken = outcomes.iter().filter(|outcome| **outcome == Outcome::New).count();
    assert_eq!(taken, PIECES_MAX);
    hub.restart();
    check_bounds(&hub.border);
}
