//! Tests the quota of a device: deployments, epochs, and how much it can make the intake remember.

use std::collections::BTreeSet;

use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, EPOCH_RISES_PER_HOUR, UNSOLICITED_DEFAULT};
use muster_contract::quarantine::QuarantineDecision;
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

/// A device with its documents.
struct Story {
    hub: Hub,
    seq: u64,
}

impl Story {
    fn new() -> Self {
        Self { hub: Hub::new(), seq: 0 }
    }

    fn apply_desired(&mut self, generation: u64, deployments: &[String]) {
        let document = document(generation, deployments);
        self.hub.intake.apply_desired(&press(), &document, self.hub.now);
        let subject = LedgerSubject::Desired(press());
        self.hub.ledger.push((subject, Fact::Desired(document), self.hub.now));
    }

    fn report_state(&mut self, deployment: &str, state: &str) -> Outcome {
        self.seq += 1;
        self.hub.report(&of(deployment, state, self.seq))
    }

    fn say_of_generation(&mut self, deployment: &str, generation: u64) -> Outcome {
        self.seq += 1;
        self.hub.report(&with(of(deployment, "installed", self.seq), "generation", json!(generation)))
    }

    fn account(&self) -> (u64, u64, u64) {
        let device = &self.hub.intake.devices[1];
        let account = device.confirmed().account.at_head(device.head());
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
        assert_eq!(story.report_state(&id, "installed"), Outcome::New, "{id}");
    }
    assert_eq!(story.report_state("ninth", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("raise --unsolicited"), "{}", story.last_reason());
    assert_eq!(story.report_state("d3", "failed"), Outcome::New, "it may continue to report those");
    assert_eq!(story.report_state("d4", "removed"), Outcome::New);
    assert_eq!(
        story.report_state("tenth", "installed"),
        Outcome::Quarantined,
        "a removed one is remembered, too"
    );
    assert_eq!(story.account(), (10, 2, 0));
    story.hub.restart();
    assert_eq!(story.report_state("eleventh", "installed"), Outcome::Quarantined);
    assert_eq!(story.report_state("d4", "installed"), Outcome::New);
}

#[test]
fn a_device_with_a_document_may_report_only_what_it_was_sent() {
    let mut story = Story::new();
    story.apply_desired(3, &ids("web", 1));
    assert_eq!(story.report_state("web0", "installed"), Outcome::New);
    assert_eq!(story.report_state("other", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("requeue"), "{}", story.last_reason());
    assert_eq!(story.account(), (1, 1, 0));
    assert_eq!(story.hub.receipt(), Some((2, String::new())));
    let held = story.hub.rejected[0].clone();
    let requeue = |story: &mut Story| {
        let now = story.hub.now;
        story.hub.intake.requeue(quarantined(Some(&press()), &held, 1), VerdictRequest::default(), now);
        story.hub.arrive();
        story.hub.intake.next_decision().unwrap().result
    };
    assert!(requeue(&mut story).is_err_and(|words| words.contains("other")));
    story.apply_desired(4, &["other".to_owned()]);
    assert_eq!(requeue(&mut story), Ok(QuarantineDecision::LetIn));
    assert_eq!(story.account(), (2, 0, 0));
}

#[test]
fn a_deployment_sent_within_ledgers_window_may_be_reported() {
    let mut story = Story::new();
    story.apply_desired(3, &["old".to_owned()]);
    story.hub.now = at(story.hub.now.as_second() + 29 * DAY);
    story.apply_desired(4, &["new".to_owned()]);
    assert_eq!(story.report_state("old", "installed"), Outcome::New);
    assert_eq!(story.report_state("old", "removed"), Outcome::New);
    story.hub.restart();
    assert_eq!(story.report_state("old", "installed"), Outcome::New);
    assert_eq!(story.report_state("old", "removed"), Outcome::New);
    story.hub.now = at(story.hub.now.as_second() + 2 * DAY);
    assert_eq!(story.report_state("old", "installed"), Outcome::Quarantined, "removed, and sent 31 days ago");
    assert_eq!(story.report_state("new", "installed"), Outcome::New);
}

#[test]
fn a_deployment_with_a_standing_may_always_be_reported() {
    let mut story = Story::new();
    story.apply_desired(3, &["old".to_owned()]);
    assert_eq!(story.report_state("old", "installed"), Outcome::New);
    story.apply_desired(4, &[]);
    story.hub.now = at(story.hub.now.as_second() + 40 * DAY);
    // A device that was offline sends its newest report of each deployment first, then its backlog.
    story.seq += 1;
    let before = story.seq;
    assert_eq!(story.report_state("old", "removing"), Outcome::New);
    assert_eq!(story.report_state("old", "removed"), Outcome::New);
    assert_eq!(story.hub.report(&of("old", "failed", before)), Outcome::Late, "it opens no row");
    assert_eq!(story.account().1, 0);
}

#[test]
fn a_device_may_replace_all_of_its_deployments_at_once() {
    let mut story = Story::new();
    for generation in 1..=4 {
        let all = ids(&format!("g{generation}-"), DEPLOYMENTS_PER_DEVICE_MAX);
        story.apply_desired(generation, &all);
        for id in &all {
            assert_eq!(story.report_state(id, "pending"), Outcome::New, "{id}");
        }
        for id in ids(&format!("g{}-", generation - 1), DEPLOYMENTS_PER_DEVICE_MAX) {
            if generation > 1 {
                assert_eq!(story.report_state(&id, "removed"), Outcome::New, "{id}");
            }
        }
    }
}

#[test]
fn a_device_that_removes_nothing_opens_at_most_128_beside_its_document() {
    let mut story = Story::new();
    story.apply_desired(1, &ids("a", DEPLOYMENTS_PER_DEVICE_MAX));
    story.apply_desired(2, &ids("b", DEPLOYMENTS_PER_DEVICE_MAX));
    story.apply_desired(3, &[]);
    for id in ids("a", DEPLOYMENTS_PER_DEVICE_MAX) {
        assert_eq!(story.report_state(&id, "installed"), Outcome::New, "{id}");
    }
    assert_eq!(story.report_state("b0", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("as removed"), "{}", story.last_reason());
    assert_eq!(story.report_state("a0", "removed"), Outcome::New);
    assert_eq!(story.report_state("b0", "failed"), Outcome::New);
}

#[test]
fn a_report_for_an_unknown_newer_document_is_requested_again() {
    let mut story = Story::new();
    story.apply_desired(3, &["web".to_owned()]);
    assert_eq!(story.report_state("web", "installed"), Outcome::New);
    assert_eq!(story.say_of_generation("new", 9), Outcome::Quarantined);
    assert!(story.last_reason().contains("restored backup"), "{}", story.last_reason());
    assert_eq!(story.report_state("web", "installed"), Outcome::New);
    assert_eq!(story.account(), (2, 0, 1), "its number stays missing, so the device keeps it");
    story.apply_desired(10, &["new".to_owned()]);
    story.seq = 1;
    assert_eq!(story.say_of_generation("new", 9), Outcome::New);
    assert_eq!(story.account(), (3, 0, 0));
}

#[test]
fn while_documents_cannot_be_read_unknown_deployments_are_bounded() {
    let mut story = Story::new();
    story.apply_desired(3, &["web".to_owned()]);
    let report = Report::parse(of("other", "installed", 1).to_string().as_bytes()).unwrap();
    assert!(!story.hub.intake.needs_document(&"a/b".parse().unwrap(), &report, story.hub.now));
    assert!(story.hub.intake.needs_document(&press(), &report, story.hub.now));
    story.hub.intake.set_documents_unreadable(true);
    for (nth, id) in ids("other", UNVERIFIED_MAX).iter().enumerate() {
        // A removed one counts as well: otherwise a device could name any number of new ones.
        let state = if nth % 2 == 0 { "installed" } else { "removed" };
        assert_eq!(story.report_state(id, state), Outcome::New, "{id}");
    }
    let taken = UNVERIFIED_MAX as u64;
    assert_eq!(story.report_state("another", "installed"), Outcome::Quarantined);
    assert!(story.last_reason().contains("make DOWNLINK available"), "{}", story.last_reason());
    assert_eq!(story.account(), (taken, 0, 1), "its number is not covered, so the device keeps it");
    assert_eq!(story.report_state("web", "installed"), Outcome::New, "a target is known");
    assert_eq!(story.report_state("other0", "failed"), Outcome::New, "so is what the device has");
    assert_eq!(story.account(), (taken + 2, 0, 1));
    story.hub.intake.set_documents_unreadable(false);
    assert_eq!(story.report_state("yet-another", "installed"), Outcome::Quarantined);
    story.apply_desired(4, &["another".to_owned()]);
    story.seq = taken;
    assert_eq!(story.report_state("another", "installed"), Outcome::New, "the device sent it again");
    assert_eq!(story.account(), (taken + 3, 1, 0));
}

#[test]
fn while_documents_cannot_be_read_a_device_may_replace_all_it_has() {
    let mut story = Story::new();
    let old = ids("old", DEPLOYMENTS_PER_DEVICE_MAX);
    story.apply_desired(3, &old);
    for id in &old {
        assert_eq!(story.report_state(id, "installed"), Outcome::New, "{id}");
    }
    story.hub.intake.set_documents_unreadable(true);
    for id in ids("new", DEPLOYMENTS_PER_DEVICE_MAX) {
        assert_eq!(story.say_of_generation(&id, 4), Outcome::New, "{id}");
    }
    assert_eq!(story.say_of_generation("more", 4), Outcome::Quarantined);
    assert_eq!(story.report_state("old0", "removed"), Outcome::New);
    assert_eq!(story.say_of_generation("more", 4), Outcome::New);
}

#[test]
fn the_seventh_epoch_within_an_hour_waits_and_is_then_accepted() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&status(10, 1, 1)), Outcome::New);
    for rise in 1..=EPOCH_RISES_PER_HOUR as u64 {
        hub.pass(60);
        assert_eq!(hub.report(&status(10 + rise, 1, 1)), Outcome::New, "{rise}");
    }
    hub.pass(60);
    assert_eq!(hub.report(&status(20, 1, 1)), Outcome::Quarantined);
    let reason = &hub.quarantine()[0].reason;
    assert!(reason.contains("7th") && reason.contains("requests its reports"), "{reason}");
    assert_eq!(hub.quarantine()[0].seq, None, "its number is not covered");
    hub.restart();
    hub.beat(20, 1, 0);
    hub.pass(1);
    let amnesias = |hub: &Hub| {
        hub.incidents().iter().filter(|what| matches!(what, IncidentKind::Amnesia { .. })).count()
    };
    assert_eq!(amnesias(&hub), EPOCH_RISES_PER_HOUR, "a heartbeat opens no epoch either");
    hub.live(60 * 60, 20, 1);
    assert_eq!(amnesias(&hub), EPOCH_RISES_PER_HOUR + 1);
    let receipts = hub.intake.drain_due_receipts(hub.now, 1);
    let (epoch, missing) = (receipts[0].1.epoch.get(), receipts[0].1.missing.to_string());
    assert_eq!((epoch, missing.as_str()), (20, "1"), "the receipt requests the rejected reports");
    assert_eq!(hub.report(&status(20, 1, 1)), Outcome::New);
}

/// The sizes of the state that one device can cause.
fn check_bounds(intake: &IntakeState) {
    for device in &intake.devices {
        assert!(device.sent.len() <= SENT_KEPT);
        for state in [device.confirmed(), device.latest()] {
            let size = state.size();
            assert!(size.standings <= STANDINGS_KEPT, "{size:?}");
            assert!(size.overdue <= OVERDUE_KEPT, "{size:?}");
            assert!(size.open_messages <= UNRESOLVED_KEPT, "{size:?}");
            assert!(size.gap_pieces <= PIECES_MAX + 1, "{size:?}");
            let (pages, pieces) = state.account.size();
            assert!(pages <= EPOCHS_KEPT && pieces <= 3 * EPOCHS_KEPT * (PIECES_MAX + 1), "{pages} {pieces}");
        }
    }
}

/// A message of a hostile device.
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
            hub.intake.apply_desired(&press(), &document(3, &sent_ids), hub.now);
        }
        for (nth, shot) in shots.iter().enumerate() {
            let state = if shot.removed { "removed" } else { "installed" };
            let report = of(&format!("d{}", shot.deployment), state, shot.seq);
            let report = with(report, "epoch", json!(shot.epoch));
            let report = if shot.poison { with(report, "generation", json!("?")) } else { report };
            hub.intake.set_documents_unreadable(reads_fail && shot.unreadable);
            if shot.beat { hub.beat(shot.epoch, shot.seq, 0) } else { _ = hub.report(&report) }
            hub.pass(i64::from(shot.pause));
            if nth == restart {
                hub.restart();
                hub.intake.record_sent(&press(), [].iter(), hub.now);
                if sent.is_some() {
                    hub.intake.apply_desired(&press(), &document(3, &sent_ids), hub.now);
                }
            }
            check_bounds(&hub.intake);
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

/// An honest device reports deployments of documents that it was sent, in any order, and loses its database now and then.
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
                    hub.intake.apply_desired(&press(), &document, hub.now);
                    known.extend(all);
                }
                3 => {
// A failing disk: not more often than every twelve minutes.
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
                    newest.iter().for_each(|(document, at)| hub.intake.apply_desired(&press(), document, *at));
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
    check_bounds(&hub.intake);
    let taken = outcomes.iter().filter(|outcome| **outcome == Outcome::New).count();
    assert_eq!(taken, PIECES_MAX);
    hub.restart();
    check_bounds(&hub.intake);
}
