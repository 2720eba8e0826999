//! Tests the rules of order of a session one by one: each effect, and the inputs for which it waits. The simulation tests them
//! together.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_bus::{Link, Trace};
use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, Liveness};
use muster_domain::intake::{NotStored, Rules};
use serde_json::json;

use super::*;
use crate::ledger_publisher::HighWater;
use crate::metrics::Metrics;

mod batches;

const OVER: Link = Link::Up { since_count: 1 };

/// A report in UPLINK.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    payload: Vec<u8>,
    position: u64,
    headers: Vec<(&'static str, String)>,
}

impl Sent {
    /// The same message once its report is evaluated.
    fn evaluated(&self) -> EvaluatedMessage<Self> {
        EvaluatedMessage { delivery: self.clone(), reports: 1, bytes: self.payload.len() }
    }
}

impl ReportDelivery for Sent {
    fn subject(&self) -> &str {
        "muster.report.3.plant7.press-4"
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn stored_at(&self) -> Timestamp {
        now()
    }

    fn trace(&self) -> Option<Trace> {
        None
    }
}

/// A session and the intake that every call borrows.
struct Driven {
    core: SessionCore<Sent>,
    high_water: HighWater,
    intake: IntakeState,
    conditions: Conditions,
}

fn now() -> Timestamp {
    "2026-11-25T06:00:00Z".parse().unwrap()
}

fn reports(count: u64) -> Vec<Sent> {
    let report = |seq: u64| {
        json!({
            "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": seq, "head": count,
            "observedAt": now().to_string(), "deployment": "web", "generation": 1,
            "digest": Digest::of_bytes(b"web").to_string(), "status": {"state": "installed"},
            "components": [{"name": "main", "state": "installed"}], "current": seq == count,
        })
    };
    let sent =
        |seq| Sent { payload: report(seq).to_string().into(), position: 10 + seq, headers: Vec::new() };
    (1..=count).map(sent).collect()
}

impl Driven {
    fn new() -> Self {
        let mut intake = IntakeState::new(Rules::default(), now());
        let high_water = HighWater::default();
        high_water.reached(100);
        let metrics = Metrics::default().partition(3);
        let (known, reasserted_through) = (high_water.clone(), 0);
        let start =
            SessionStart { now: now(), link: OVER, high_water: known, read_through: 90, reasserted_through };
        let core = SessionCore::new(&mut intake, start, metrics, Rng::with_seed(1));
        let conditions =
            Conditions { now: now(), link: OVER, ledger_seen_over: OVER, heartbeats_through: Some(now()) };
        Self { core, high_water, intake, conditions }
    }

    /// A session that owes a receipt, which is due at the end of a standstill.
    fn after_a_standstill() -> Self {
        let mut driven = Self::new();
        driven.handle(Input::Reports(reports(1), None));
        let facts = published(&driven.effects());
        (0..facts as u64).for_each(|fact| driven.stored(101 + fact));
        driven.effects();
        driven.conditions.now = now().checked_add(STANDSTILL).unwrap();
        driven.handle(Input::ReceiptsDue);
        driven
    }

    fn handle(&mut self, input: Input<Sent>) {
        self.core.handle(&mut self.intake, input, self.conditions.now);
    }

    /// Every effect that is due.
    fn effects(&mut self) -> Vec<Effect<Sent>> {
        std::iter::from_fn(|| self.core.next_effect(&mut self.intake, &self.conditions)).collect()
    }

    fn stored(&mut self, sequence: u64) {
        self.handle(Input::FactAnswer(FactAnswer::Stored(Stored { sequence, duplicate: false })));
    }
}

fn published(effects: &[Effect<Sent>]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Publish(..))).count()
}

#[test]
fn a_report_is_acknowledged_once_its_facts_are_confirmed() {
    let mut driven = Driven::new();
    let sent = reports(2);
    driven.handle(Input::Reports(sent.clone(), Some(now())));
    let effects = driven.effects();
    let facts = published(&effects);
    assert!(facts >= 2 && effects.last() == Some(&Effect::PollAnswers), "{effects:?}");
    for sequence in 101..100 + facts as u64 {
        driven.stored(sequence);
        assert!(!driven.effects().iter().any(|effect| matches!(effect, Effect::Acknowledge(_))));
    }
    driven.stored(100 + facts as u64);
    let covered = [Effect::Settle(sent[0].evaluated()), Effect::Acknowledge(sent[1].evaluated())];
    assert_eq!(driven.effects(), covered, "the newest covers all before it");
    assert_eq!(driven.core.facts_unconfirmed(), 0);
}

#[test]
fn an_answer_after_a_fact_with_an_unknown_outcome_changes_nothing() {
    let mut driven = Driven::new();
    driven.handle(Input::Reports(reports(3), None));
    let facts = published(&driven.effects());
    driven.stored(101);
    driven.handle(Input::FactAnswer(FactAnswer::Unknown));
    (0..facts as u64).for_each(|fact| driven.stored(103 + fact));
    assert!(driven.core.is_lost());
    assert_eq!(driven.core.read_after(), 101, "LEDGER may hold the lost fact behind this position");
    assert_eq!(driven.effects(), []);
}

#[test]
fn no_effect_leaves_over_a_connection_before_ledger_was_checked() {
    let mut driven = Driven::new();
    driven.conditions.link = Link::Up { since_count: 2 };
    driven.handle(Input::Reports(reports(1), None));
    driven.handle(Input::SnapshotDue);
    assert_eq!(driven.effects(), []);
    driven.conditions.ledger_seen_over = driven.conditions.link;
    assert!(published(&driven.effects()) > 0);
}

#[test]
fn a_snapshot_contains_nothing_that_another_owner_may_have_written() {
    let mut driven = Driven::new();
    let position = |driven: &mut Driven| {
        driven.handle(Input::SnapshotDue);
        let effects = driven.effects();
        effects.iter().find_map(|effect| if let Effect::SaveSnapshot(at) = effect { Some(*at) } else { None })
    };
    assert_eq!(position(&mut driven), Some(90), "no fact has proved more than what was read");
    driven.handle(Input::Reports(reports(1), None));
    let facts = published(&driven.effects()) as u64;
    (1..=facts).for_each(|fact| driven.stored(100 + fact));
    let proved = 100 + facts;
    assert_eq!(position(&mut driven), Some(proved));
    // Another partition of this process was taken by a process that also took this one, and taken back.
    driven.high_water.reached(500);
    assert_eq!(position(&mut driven), Some(proved), "the other process may have written fact 400");
    driven.handle(Input::Reports(reports(2).split_off(1), None));
    assert!(published(&driven.effects()) > 0);
    assert_eq!(position(&mut driven), Some(proved), "what follows is in flight");
    driven.stored(501);
    let answered = position(&mut driven);
    assert!(answered >= Some(500), "LEDGER has stored one behind that position: {answered:?}");
}

#[test]
fn many_facts_share_answers_and_few_do_not() {
    for (count, shares) in [(3, false), (100, true)] {
        let mut driven = Driven::new();
        driven.handle(Input::Reports(reports(count), None));
        let effects = driven.effects();
        assert_eq!(effects.first() == Some(&Effect::BeginRun), shares, "{count}");
        assert_eq!(effects.iter().filter(|effect| **effect == Effect::EndRun).count(), usize::from(shares));
    }
}

#[test]
fn receipts_after_a_standstill_wait_for_the_owner_to_be_read() {
    let mut driven = Driven::after_a_standstill();
    assert_eq!(driven.effects(), [Effect::ReadOwner]);
    driven.handle(Input::OwnerRead(false));
    assert_eq!(driven.effects(), [], "another process owns the partition");
    driven.handle(Input::ReceiptsDue);
    assert_eq!(driven.effects(), [Effect::ReadOwner]);
    driven.handle(Input::OwnerRead(true));
    assert!(matches!(driven.effects()[..], [Effect::SendReceipt(..)]));
}

#[test]
fn receipts_that_waited_for_a_connection_are_owed_again() {
    let mut driven = Driven::after_a_standstill();
    assert_eq!(driven.effects(), [Effect::ReadOwner]);
    driven.conditions.link = Link::Up { since_count: 2 };
    driven.handle(Input::OwnerRead(true));
    assert_eq!(driven.effects(), [], "LEDGER was not checked over this connection");
    assert_eq!((driven.core.receipts_unconfirmed(), driven.intake.receipts_owed()), (1, 0));
    driven.conditions.now = now().checked_add(2 * STANDSTILL).unwrap();
    driven.conditions.ledger_seen_over = driven.conditions.link;
    assert_eq!(driven.effects(), [], "another process may own the partition by now");
    assert_eq!((driven.core.receipts_unconfirmed(), driven.intake.receipts_owed()), (0, 1));
    driven.handle(Input::ReceiptsDue);
    assert_eq!(driven.effects(), [Effect::ReadOwner]);
}

impl Driven {
    /// A second passes in which reports came; a check follows. Whether it finds the device stale.
    fn second_passes(&mut self) -> bool {
        self.conditions.now = self.conditions.now.checked_add(Duration::from_secs(1)).unwrap();
        self.handle(Input::Reports(Vec::new(), Some(self.conditions.now)));
        self.handle(Input::Tick);
        let effects = self.effects();
        let is_stale = |effect: &Effect<Sent>| match effect {
            Effect::Publish(publication, _) => {
                matches!(&publication.fact, Fact::Liveness(fact) if fact.state == Liveness::Stale)
            }
            _ => false,
        };
        effects.iter().any(is_stale)
    }
}

#[test]
fn no_lease_ends_while_nothing_comes_from_presence() {
    let mut driven = Driven::new();
    driven.handle(Input::Reports(reports(1), None));
    driven.effects();
    let seconds = 2 * muster_domain::intake::Rules::default().lease.as_secs();
    assert!((0..seconds).all(|_| !driven.second_passes()), "heartbeats may have come");
    driven.conditions.heartbeats_through = Some(driven.conditions.now);
    assert!(driven.second_passes(), "none had come");
}

/// A report of a state that this ingest does not know.
fn unknown() -> Vec<Sent> {
    let mut sent = reports(1);
    let text = String::from_utf8(sent[0].payload.clone()).unwrap();
    sent[0].payload = text.replace(r#"{"state":"installed"}"#, r#"{"state":"hibernating"}"#).into();
    sent
}

fn stored_first(driven: &mut Driven, sent: &[Sent]) -> u64 {
    driven.handle(Input::Reports(sent.to_vec(), None));
    let effects = driven.effects();
    assert_eq!(published(&effects), 0, "{effects:?}");
    match &effects[..] {
        [Effect::StoreRejected(rejection)] => rejection.ticket,
        effects => panic!("{effects:?}"),
    }
}

#[test]
fn a_rejected_report_is_stored_before_its_fact_is_published() {
    let mut driven = Driven::new();
    let sent = unknown();
    let ticket = stored_first(&mut driven, &sent);
    driven.handle(Input::RejectionAnswer(ticket, Ok(())));
    let effects = driven.effects();
    assert_eq!(published(&effects), 1, "{effects:?}");
    driven.stored(101);
    assert_eq!(driven.effects(), [Effect::Acknowledge(sent[0].evaluated())]);
}

#[test]
fn a_report_without_room_in_quarantine_holds_up_nothing() {
    for reason in NotStored::ALL {
        let mut driven = Driven::new();
        let sent = unknown();
        let ticket = stored_first(&mut driven, &sent);
        driven.handle(Input::RejectionAnswer(ticket, Err(reason)));
        assert_eq!(driven.effects(), [Effect::Acknowledge(sent[0].evaluated())], "no fact says anything");
    }
}
