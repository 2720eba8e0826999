//! Tests the intake by stories: what devices do, and which facts LEDGER gets.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_contract::desired::DesiredState;
use muster_contract::fact::{
    DeadlineKind, Fact, IncidentKind, Liveness, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::quarantine::RejectedReport;
use muster_contract::report::Report;
use muster_contract::subjects::{LedgerSubject, origin};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Seq, SeqRanges, State, Timestamp};
use serde_json::{Value, json};

use super::ledger_state::DeviceLedgerState;
use super::limits::{OVERDUE_KEPT, REJECTED_PAYLOADS_KEPT, STANDINGS_KEPT, UNRESOLVED_KEPT};
use super::pending_rejections::{FULL_PAUSE, UNAVAILABLE_PAUSE};
use super::*;

mod deadlines;
mod evidence;
mod failures;
mod floods;
mod forks;
mod model;
mod owners;
mod pulse;
mod quarantine;
mod quota;
mod receipts;
mod refusals;
mod snapshot;
mod time;
mod tokens;
mod views;
mod window;

/// An intake with its LEDGER; every publication arrives at once unless a test says otherwise.
struct Hub {
    intake: IntakeState,
    /// The reports in QUARANTINE, unless it has no room.
    rejected: Vec<RejectedReport>,
    /// Their message ids: QUARANTINE stores each once.
    rejected_ids: BTreeSet<String>,
    no_room: Option<NotStored>,
    ledger: Vec<(LedgerSubject, Fact, Timestamp)>,
    now: Timestamp,
    position: u64,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn press() -> DeviceKey {
    "plant7/press-4".parse().unwrap()
}

fn status(epoch: u64, seq: u64, head: u64) -> Value {
    json!({
        "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": epoch, "seq": seq, "head": head,
        "observedAt": at(1_000).to_string(), "deployment": "web", "generation": 3,
        "digest": format!("sha256:{}", "0".repeat(64)),
        "status": {"state": "installing"}, "components": [{"name": "c", "state": "installing"}],
        "current": seq == head,
    })
}

fn with(mut report: Value, field: &str, value: Value) -> Value {
    report[field] = value;
    report
}

const fn quarantined<'a>(
    key: Option<&'a DeviceKey>,
    report: &'a RejectedReport,
    quarantine_seq: u64,
) -> QuarantinedReport<'a> {
    QuarantinedReport { key, report, quarantine_seq }
}

fn desired(generation: u64, retired: bool) -> DesiredState {
    let entry = json!({
        "id": "web", "name": "Web", "applicationId": "web", "targetGeneration": generation,
        "digest": format!("sha256:{}", "0".repeat(64)),
        "profile": {"type": "process",
            "components": [{"name": "c", "properties": {"command": "true", "timeout": "60s"}}]},
    });
    let entries: Vec<Value> = if retired { vec![] } else { vec![entry] };
    serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation, "retired": retired,
        "issuedAt": at(0).to_string(), "source": {"kind": "git", "revision": "a"}, "deployments": entries,
    }))
    .unwrap()
}

impl Hub {
    fn new() -> Self {
        let now = at(1_000);
        let intake = IntakeState::new(Rules::default(), now);
        Self {
            intake,
            rejected: Vec::new(),
            rejected_ids: BTreeSet::new(),
            no_room: None,
            ledger: Vec::new(),
            now,
            position: 0,
        }
    }

    fn send(&mut self, payload: &[u8], subject: &str) -> Outcome {
        self.position += 1;
        let arrival = IncomingReport {
            origin: origin(subject).unwrap(),
            parsed: Report::parse(payload),
            payload,
            position: self.position,
            stored_at: self.now,
            now: self.now,
        };
        let outcome = self.intake.apply_report(arrival);
        self.store_rejected().unwrap_or(outcome)
    }

    /// QUARANTINE answers every report that waits for it.
    fn store_rejected(&mut self) -> Option<Outcome> {
        let mut outcome = None;
        while let Some(rejection) = self.intake.next_rejection() {
            let stored = self.no_room.map_or(Ok(()), Err);
            outcome = self.intake.apply_store_answer(rejection.ticket, stored, self.now).first().copied();
            // UPLINK refuses a report whose document would be too large.
            let report = || serde_json::from_slice(&rejection.payload).unwrap();
            if stored.is_ok() && self.rejected_ids.insert(rejection.id.clone()) {
                self.rejected.push(report());
            }
        }
        outcome
    }

    fn report(&mut self, report: &Value) -> Outcome {
        let outcome = self.send(report.to_string().as_bytes(), "muster.report.3.plant7.press-4");
        self.arrive();
        outcome
    }

    fn beat(&mut self, epoch: u64, head: u64, unsent: u64) {
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": epoch, "head": head, "unsent": unsent,
            "generation": 0, "agentVersion": "1",
        });
        self.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), self.now, self.now);
        self.arrive();
    }

    fn pass(&mut self, seconds: i64) {
        self.now = at(self.now.as_second() + seconds);
        self.intake.tick(self.now, Watermarks::all(self.now));
        self.arrive();
    }

    /// Time passes while the device sends complete heartbeats.
    fn live(&mut self, seconds: i64, epoch: u64, head: u64) {
        for _ in 0..seconds / 10 {
            self.now = at(self.now.as_second() + 10);
            self.beat(epoch, head, 0);
            self.intake.tick(self.now, Watermarks::all(self.now));
            self.arrive();
        }
    }

    fn arrive(&mut self) {
        while let Some(publication) = self.intake.next_publication() {
            let fact = parsed(&publication);
            self.ledger.push((publication.subject, fact, self.now));
            self.intake.confirm();
        }
    }

    /// The process dies and another one reads LEDGER.
    fn restart(&mut self) {
        self.intake = IntakeState::new(Rules::default(), self.now);
        self.ledger.iter().for_each(|(subject, fact, at)| self.intake.restore(subject, fact, *at));
    }

    fn statuses(&self) -> Vec<&StatusFact> {
        self.facts(|fact| if let Fact::Status(fact) = fact { Some(fact) } else { None })
    }

    fn liveness(&self) -> Vec<&LivenessFact> {
        self.facts(|fact| if let Fact::Liveness(fact) = fact { Some(fact) } else { None })
    }

    fn states(&self) -> Vec<Liveness> {
        self.liveness().iter().map(|fact| fact.state).collect()
    }

    fn quarantine(&self) -> Vec<&QuarantineFact> {
        self.facts(|fact| if let Fact::Quarantine(fact) = fact { Some(fact) } else { None })
    }

    fn incidents(&self) -> Vec<&IncidentKind> {
        self.facts(|fact| if let Fact::Incident(fact) = fact { Some(&fact.what) } else { None })
    }

    fn facts<'a, T>(&'a self, pick: impl Fn(&'a Fact) -> Option<T>) -> Vec<T> {
        self.ledger.iter().filter_map(|(_, fact, _)| pick(fact)).collect()
    }

    fn receipt(&mut self) -> Option<(u64, String)> {
        let receipts = self.intake.drain_due_receipts(self.now, 10);
        assert!(receipts.len() <= 1, "{receipts:?}");
        receipts.first().map(|(_, receipt)| (receipt.through, receipt.missing.to_string()))
    }
}

/// The fact that a reader of LEDGER parses: every publication can be parsed.
fn parsed(publication: &Publication) -> Fact {
    let fact = Fact::parse(&publication.subject, &publication.payload).unwrap();
    assert_eq!(fact, publication.fact);
    fact
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

#[test]
fn a_report_becomes_one_fact_however_often_it_comes() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&status(1, 1, 1)), Outcome::New);
    assert_eq!(hub.report(&status(1, 1, 1)), Outcome::Duplicate);
    hub.restart();
    assert_eq!(hub.report(&with(status(1, 1, 7), "current", json!(false))), Outcome::Duplicate);
    assert_eq!(hub.statuses().len(), 1);
    assert_eq!(hub.statuses()[0].received_at, at(1_000));
}

#[test]
fn a_report_older_than_a_received_one_of_its_deployment_is_late() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&status(1, 9, 9)), Outcome::New);
    assert_eq!(hub.report(&status(1, 2, 9)), Outcome::Late);
    assert_eq!(hub.report(&with(status(1, 3, 9), "deployment", json!("other"))), Outcome::New);
    assert_eq!(hub.statuses().iter().map(|fact| fact.late).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn no_report_is_settled_before_ledger_has_everything_up_to_it() {
    let mut hub = Hub::new();
    let subject = "muster.report.3.plant7.press-4";
    for number in 1..=3 {
        hub.send(status(1, number, 3).to_string().as_bytes(), subject);
    }
    hub.send(status(1, 2, 3).to_string().as_bytes(), subject);
    let made = hub.intake.in_flight();
    let mut settled = Vec::new();
    for _ in 0..made {
        hub.intake.confirm();
        settled.push(hub.intake.drain_settled());
    }
    // Report 1, its liveness fact, reports 2 and 3; the duplicate of 2 is settled with what was before it.
    assert_eq!(settled, [0, 1, 1, 2]);
    assert_eq!(hub.intake.unsettled(), 0);
}

#[test]
fn ledger_decides_about_facts_with_an_unknown_outcome() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    let subject = "muster.report.3.plant7.press-4";
    let (two, three) = (status(1, 2, 3).to_string(), status(1, 3, 3).to_string());
    hub.send(two.as_bytes(), subject);
    hub.send(three.as_bytes(), subject);
    // The second arrived without an answer, the third did not arrive.
    let arrived = hub.intake.next_publication().unwrap();
    hub.intake.rewind();
    assert_eq!((hub.intake.in_flight(), hub.intake.unsettled()), (0, 0));
    hub.intake.restore(&arrived.subject, &parsed(&arrived), hub.now);
    assert_eq!(hub.send(two.as_bytes(), subject), Outcome::Duplicate);
    assert_eq!(hub.send(three.as_bytes(), subject), Outcome::New);
}

#[test]
fn a_poison_report_is_kept_with_its_reason_and_its_neighbours_pass() {
    let mut hub = Hub::new();
    let poison = with(status(1, 2, 3), "generation", json!("three"));
    assert_eq!(hub.report(&status(1, 1, 3)), Outcome::New);
    assert_eq!(hub.report(&poison), Outcome::Quarantined);
    assert_eq!(hub.report(&status(1, 3, 3)), Outcome::New);
    let kept = hub.quarantine()[0].clone();
    assert!(
        kept.reason.contains("generation") && kept.reason.contains("correct the sender"),
        "{}",
        kept.reason
    );
    assert_eq!((kept.epoch, kept.seq, kept.count_for_device), (Some(epoch(1)), Some(seq(2)), 1));
    assert_eq!(kept.subject, "muster.report.plant7.press-4");
    assert_eq!(hub.rejected[0].payload().unwrap(), poison.to_string().as_bytes());
    assert_eq!(hub.receipt(), Some((3, String::new())), "its number is accounted for");
}

#[test]
fn a_receipt_covers_a_poison_number_once_a_heartbeat_names_it() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    assert_eq!(hub.receipt(), Some((1, String::new())));
    hub.report(&with(status(1, 1 << 50, 1 << 50), "generation", json!("?")));
    hub.report(&with(status(1, 2, 2), "generation", json!("?")));
    hub.now = at(1_002);
    assert_eq!(hub.receipt(), Some((1, String::new())));
    hub.beat(1, 2, 0);
    hub.now = at(1_004);
    assert_eq!(hub.receipt(), Some((2, String::new())));
}

#[test]
fn the_same_poison_is_kept_once_also_after_a_restart() {
    let mut hub = Hub::new();
    for payload in ["{", "not json at all", r#"{"seq": 0}"#] {
        let sent = hub.send(payload.as_bytes(), "muster.report.3.plant7.press-4");
        hub.arrive();
        assert_eq!(sent, Outcome::Quarantined);
        hub.restart();
        let again = hub.send(payload.as_bytes(), "muster.report.3.plant7.press-4");
        assert_eq!(again, Outcome::Repeated, "{payload}");
    }
    assert_eq!(hub.quarantine().iter().map(|kept| kept.count_for_device).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn every_bad_report_has_its_own_reason() {
    let long = "x".repeat(300 * 1024);
    let wrong_state = with(status(1, 1, 1), "status", json!({"state": "installed"}));
    let table = [
        ("muster.report.3.Plant_7.press-4", status(1, 1, 1).to_string(), "'Plant_7' is not a valid site"),
        ("muster.report.3.plant7.press-4", with(status(1, 1, 1), "seq", json!(0)).to_string(), "seq"),
        (
            "muster.report.3.plant7.press-4",
            with(status(1, 1, 1), "deployment", json!("A b")).to_string(),
            "A b",
        ),
        (
            "muster.report.3.plant7.press-4",
            with(status(1, 1, 1), "kind", json!("Poem")).to_string(),
            "'Poem'",
        ),
        ("muster.report.3.plant7.press-4", wrong_state.to_string(), "it must be installing"),
        (
            "muster.report.3.plant7.press-4",
            with(status(1, 1, 1), "deployment", json!(long)).to_string(),
            "over the limit",
        ),
    ];
    for (subject, payload, words) in table {
        let mut hub = Hub::new();
        assert_eq!(hub.send(payload.as_bytes(), subject), Outcome::Quarantined);
        hub.arrive();
        let kept = hub.quarantine()[0];
        assert!(kept.reason.contains(words), "{}", kept.reason);
        assert_eq!(kept.bytes, payload.len() as u64);
        assert!(kept.payload().unwrap().len() <= 1024);
        assert_eq!(hub.rejected[0].payload().unwrap(), payload.as_bytes(), "all of it");
    }
}

#[test]
fn a_report_too_large_as_a_fact_is_quarantined_and_accounted_for() {
    let mut hub = Hub::new();
    let filling = 256 * 1024 - status(1, 1, 1).to_string().len() - 40;
    let reason = json!({"state": "installing", "error": null, "x": "y".repeat(filling)});
    assert_eq!(
        hub.report(&with(status(1, 1, 1), "status", reason)),
        Outcome::New,
        "unknown fields are left out"
    );
    let capabilities = json!({
        "apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": 1, "seq": 2, "head": 2,
        "observedAt": at(1_000).to_string(), "properties": {"numbers": vec![1e15; 30_000]}, "agentVersion": "1",
    });
    let short = capabilities.to_string().replace("1000000000000000.0", "1e15");
    assert_eq!(hub.send(short.as_bytes(), "muster.report.3.plant7.press-4"), Outcome::Quarantined);
    hub.arrive();
    assert!(hub.quarantine()[0].reason.contains("as a fact"), "{}", hub.quarantine()[0].reason);
    assert_eq!(hub.receipt(), Some((2, String::new())));
}

#[test]
fn a_reason_stays_short_whatever_the_sender_wrote() {
    let mut hub = Hub::new();
    hub.report(&with(status(1, 1, 1), "generation", json!("x".repeat(200 * 1024))));
    assert!(hub.quarantine()[0].reason.len() <= 4 * 1024);
}

#[test]
fn a_sender_without_a_valid_name_goes_to_the_unnamed_quarantine() {
    let mut hub = Hub::new();
    hub.send(b"{}", "muster.report.3.Plant_7.press-4");
    hub.arrive();
    assert_eq!(hub.ledger[0].0.to_string(), "muster.quarantine._._");
    assert_eq!(hub.quarantine()[0].subject, "muster.report.Plant_7.press-4");
    assert_eq!((hub.intake.devices(), hub.intake.receipts_owed()), (0, 0));
}

#[test]
fn a_new_epoch_is_amnesia_and_an_old_one_after_it_a_clone() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    assert_eq!(hub.report(&status(6, 1, 1)), Outcome::New);
    assert_eq!(hub.report(&status(5, 1, 1)), Outcome::Duplicate, "it was received while its epoch lasted");
    assert_eq!(hub.report(&status(5, 2, 3)), Outcome::Quarantined);
    assert_eq!(hub.report(&status(5, 2, 3)), Outcome::Repeated);
    assert_eq!(hub.report(&status(5, 3, 3)), Outcome::Quarantined);
    assert_eq!(hub.report(&status(4, 1, 1)), Outcome::Quarantined);
    let expected = [
        IncidentKind::Amnesia { known_epoch: epoch(5), epoch: epoch(6) },
        IncidentKind::Clone { known_epoch: epoch(6), epoch: epoch(5), seq: seq(2) },
        IncidentKind::Clone { known_epoch: epoch(6), epoch: epoch(4), seq: seq(1) },
    ];
    assert_eq!(hub.incidents(), expected.iter().collect::<Vec<_>>());
    assert_eq!(hub.statuses().len(), 2);
    assert!(hub.quarantine()[0].reason.contains("epoch 5 is over"));
    let receipts = hub.intake.drain_due_receipts(hub.now, 1);
    assert_eq!((receipts[0].1.epoch, receipts[0].1.through), (epoch(6), 1));
}

#[test]
fn a_heartbeat_of_a_new_epoch_waits_for_the_reports_of_the_old_one() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 2));
    hub.beat(6, 0, 0);
    hub.intake.tick(hub.now, Watermarks::all(at(1_000 - 1)));
    assert_eq!(hub.report(&status(5, 2, 2)), Outcome::New);
    hub.pass(1);
    assert_eq!(hub.incidents(), [&IncidentKind::Amnesia { known_epoch: epoch(5), epoch: epoch(6) }]);
    assert_eq!(hub.liveness().last().unwrap().epoch, epoch(6));
    assert_eq!(hub.report(&status(5, 3, 3)), Outcome::Quarantined);
}

#[test]
fn repeated_heartbeats_open_an_epoch_once_earlier_reports_are_in() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    hub.beat(6, 0, 0);
    let first_beat = hub.now;
    hub.now = at(first_beat.as_second() + 1);
    hub.beat(6, 0, 0);
    hub.intake.tick(hub.now, Watermarks::all(at(first_beat.as_second() - 1)));
    hub.arrive();
    assert_eq!(hub.incidents(), [] as [&IncidentKind; 0], "a report of the old epoch may wait");
    hub.intake.tick(hub.now, Watermarks::all(first_beat));
    hub.arrive();
    assert_eq!(hub.incidents(), [&IncidentKind::Amnesia { known_epoch: epoch(5), epoch: epoch(6) }]);
}

#[test]
fn a_backlog_that_has_grown_is_published_again() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 3));
    hub.pass(1);
    hub.pass(3);
    let published = |hub: &Hub| {
        hub.liveness().last().map(|fact| (fact.head, fact.account.clone().unwrap().missing.to_string()))
    };
    assert_eq!(published(&hub), Some((3, "1-3".to_owned())), "published before the first fact was confirmed");
    hub.beat(1, 9, 0);
    (0..4).for_each(|_| hub.pass(1));
    assert_eq!(published(&hub), Some((9, "2-9".to_owned())));
    let facts = hub.liveness().len();
    (0..4).for_each(|_| hub.pass(1));
    assert_eq!(hub.liveness().len(), facts, "once");
}

#[test]
fn folded_numbers_declared_by_a_second_copy_are_not_lost() {
    let mut hub = Hub::new();
    hub.report(&status(1, 4, 4));
    assert_eq!(hub.receipt(), Some((4, "1-3".to_owned())));
    assert_eq!(hub.report(&with(status(1, 4, 4), "coalesced", json!([[1, 3]]))), Outcome::Amended);
    hub.pass(1);
    assert_eq!(hub.receipt(), Some((4, String::new())));
    assert_eq!(hub.statuses().iter().map(|fact| fact.reasserted).collect::<Vec<_>>(), [false, true]);
}
