//! A batch is the reports in it: whatever reports a device sends, and however it packs them, ingest makes the same facts, the same
//! account and the same receipt of them as of single messages. The session is the real one; LEDGER and QUARANTINE answer at once.

use std::collections::BTreeSet;

use fastrand::Rng;
use muster_bus::{Link, Stored, Trace};
use muster_contract::headers::REPORTS;
use muster_contract::packed::{pack, unpack};
use muster_contract::{Epoch, Seq};
use muster_domain::intake::{IntakeState, NotStored, Rules};
use muster_ingest::ledger_publisher::HighWater;
use muster_ingest::metrics::Metrics;
use muster_ingest::session::{
    Conditions, Effect, FactAnswer, Input, ReportDelivery, SessionCore, SessionStart,
};
use muster_tests::server::device;

use super::*;

const CASES: u64 = 300;
const LINK: Link = Link::Up { since_count: 1 };

/// A message of UPLINK.
#[derive(Debug, Clone, PartialEq)]
struct Message {
    payload: Vec<u8>,
    reports: Option<String>,
    position: u64,
}

impl ReportDelivery for Message {
    fn subject(&self) -> &str {
        "muster.report.3.plant7.press-4"
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.reports.as_deref().filter(|_| name == REPORTS)
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

fn now() -> Timestamp {
    "2026-11-25T06:00:00Z".parse().unwrap()
}

/// A report without the fields of the envelope: a good one of one of two contents, one that breaks a rule, or none at all.
fn element(rng: &mut Rng, seq: u64) -> Value {
    let state = ["installing", "installed", "failed"][rng.usize(..3)];
    let deployment = ["web", "db", "log"][seq as usize % 3];
    let mut report = json!({
        "kind": "StatusReport", "observedAt": format!("2026-11-25T05:00:0{}Z", rng.u8(..2)),
        "deployment": deployment, "generation": 1,
        "digest": Digest::of_bytes(b"web").to_string(), "status": {"state": state},
        "components": [{"name": "main", "state": state}], "current": rng.bool(),
    });
    match rng.u8(..12) {
        0 => report["generation"] = json!("?"),
        1 => report["status"] = json!({"state": "pending"}),
        2 => report["deployment"] = json!(format!("invented-{}", rng.u8(..40))),
        3 if seq > 3 => report["coalesced"] = json!([[seq - 2, seq - 1]]),
        4 => report = json!({}),
        _ => {}
    }
    report
}

/// The messages of a device, packed and as single ones: the same reports in the same order.
fn messages(rng: &mut Rng) -> (Vec<Message>, Vec<Message>) {
    let (mut packed, mut single) = (Vec::new(), Vec::new());
    for _ in 0..rng.usize(1..8) {
        let seqs: BTreeSet<u64> = (0..rng.usize(2..30)).map(|_| rng.u64(1..60)).collect();
        let (epoch, head) = (rng.u64(1..3), rng.u64(60..70));
        let elements: Vec<_> =
            seqs.iter().map(|seq| (Seq::new(*seq).unwrap(), element(rng, *seq).to_string())).collect();
        let Some(text) = pack(Epoch::new(epoch).unwrap(), Seq::new(head).unwrap(), &elements) else {
            continue;
        };
        let reports = unpack(&text).unwrap();
        let message = |payload: Vec<u8>, reports: Option<String>| Message { payload, reports, position: 0 };
        packed.push(message(text, Some(reports.len().to_string())));
        single.extend(reports.into_iter().map(|report| message(report, None)));
    }
    for messages in [&mut packed, &mut single] {
        messages.iter_mut().zip(1..).for_each(|(message, position)| message.position = position);
    }
    (packed, single)
}

/// The outcome of messages: facts, the ids of reports stored in QUARANTINE, the receipt, and the number of devices.
fn outcome(messages: Vec<Message>, room: u64) -> (Vec<String>, Vec<String>, Option<Receipt>, usize) {
    let mut intake = IntakeState::new(Rules { unsolicited: 20, ..Rules::default() }, now());
    let high_water = HighWater::default();
    let start = SessionStart { now: now(), link: LINK, high_water, read_through: 0, reasserted_through: 0 };
    let mut core = SessionCore::new(&mut intake, start, Metrics::default().partition(3), Rng::with_seed(1));
    let conditions =
        Conditions { now: now(), link: LINK, ledger_seen_over: LINK, heartbeats_through: Some(now()) };
    let (count, mut facts, mut rejected, mut acknowledged) = (messages.len(), Vec::new(), Vec::new(), 0);
    let mut unanswered = 0;
    core.handle(&mut intake, Input::Reports(messages, None), now());
    loop {
        let answer = match core.next_effect(&mut intake, &conditions) {
            Some(Effect::Publish(publication, _)) => {
                let fact = String::from_utf8(publication.payload).unwrap();
                facts.push(format!("{} {fact}", publication.subject));
                unanswered += 1;
                continue;
            }
            Some(Effect::StoreRejected(rejection)) => {
                rejected.push(rejection.id);
                let answer = if rejected.len() as u64 > room { Err(NotStored::Full) } else { Ok(()) };
                Input::RejectionAnswer(rejection.ticket, answer)
            }
            Some(Effect::ReadDocuments(key)) => Input::DocumentsRead(key, true),
            Some(Effect::Settle(_)) => {
                acknowledged += 1;
                continue;
            }
            Some(Effect::Acknowledge(_)) => {
                acknowledged += 1;
                continue;
            }
            Some(_) => continue,
            None if unanswered > 0 => {
                unanswered -= 1;
                let sequence = facts.len() as u64 - unanswered;
                Input::FactAnswer(FactAnswer::Stored(Stored { sequence, duplicate: false }))
            }
            None if intake.unsettled() > 0 => Input::Stop,
            None => break,
        };
        core.handle(&mut intake, answer, now());
    }
    assert_eq!(acknowledged, count, "every message is acknowledged");
    intake.owe_receipt_to(&device("press-4"));
    let receipt = intake.drain_due_receipts(now(), 1).pop().map(|(_, receipt)| receipt);
    (facts, rejected, receipt, intake.devices())
}

#[test]
fn a_batch_is_the_reports_in_it_however_they_are_packed() {
    let mut kinds = BTreeSet::new();
    for seed in 0..CASES {
        let mut rng = Rng::with_seed(seed);
        let (packed, single) = messages(&mut rng);
        let room = rng.u64(0..40);
        let (together, alone) = (outcome(packed, room), outcome(single, room));
        assert_eq!(together, alone, "seed {seed}");
        kinds.extend(together.0.iter().filter_map(|fact| fact.split('.').nth(1).map(str::to_owned)));
    }
    for kind in ["status", "quarantine", "incident", "liveness"] {
        assert!(kinds.contains(kind), "no case has a fact of {kind}: {kinds:?}");
    }
}
