//! Tests rejected reports: their payloads, requeues and drops, and facts that LEDGER never stores.

use muster_contract::RequestedBy;
use muster_contract::quarantine::QuarantineDecision;

use super::content::Contents;
use super::*;

#[test]
fn a_requeued_report_is_evaluated_as_of_when_it_came() {
    let mut hub = Hub::new();
    hub.report(&with(status(1, 1, 3), "status", json!({"state": "exploded"})));
    hub.report(&status(1, 3, 3));
    let account = |hub: &Hub| {
        let account = hub.intake.devices[1].confirmed().account.at_head(3);
        (account.received, account.quarantined, account.missing.count())
    };
    assert_eq!(account(&hub), (1, 1, 1));
    let held = hub.rejected[0].clone();
    // The report is still invalid: it stays, and nothing changes.
    let now = at(90_000);
    hub.intake.requeue(quarantined(Some(&press()), &held, 1), VerdictRequest::default(), now);
    let decision = hub.intake.next_decision().unwrap();
    assert!(decision.result.as_ref().is_err_and(|words| words.contains("exploded")), "{decision:?}");
    assert!(hub.intake.next_publication().is_none());
    // A report that a newer ingest can parse is accepted, late, and with the time at which it came.
    let payload = status(1, 1, 3).to_string();
    let mended =
        RejectedReport { payload_base64: RejectedReport::encode_payload(payload.as_bytes()), ..held.clone() };
    let count = hub.liveness().len();
    let contact = hub.intake.devices[1].contact.last_at;
    let request = VerdictRequest {
        reason: Some("mended".to_owned()),
        requested_by: Some(RequestedBy::new("UA", "anna", None)),
    };
    for verdict in [QuarantineDecision::LetIn, QuarantineDecision::AlreadyIn] {
        hub.intake.requeue(quarantined(Some(&press()), &mended, 1), request.clone(), now);
        assert_eq!(hub.intake.next_decision(), None, "LEDGER does not have it");
        hub.arrive();
        assert_eq!(hub.intake.next_decision(), Some(Decision { quarantine_seq: 1, result: Ok(verdict) }));
    }
    assert_eq!(account(&hub), (2, 0, 1));
    let accepted = hub.statuses().into_iter().find(|fact| fact.seq.get() == 1).unwrap();
    assert!(accepted.late && accepted.received_at == held.received_at, "{accepted:?}");
    assert_eq!((hub.liveness().len(), hub.intake.devices[1].contact.last_at), (count, contact));
    // A report without a valid sender cannot be evaluated; every report can be dropped, and stays accounted for.
    hub.intake.requeue(quarantined(None, &mended, 1), VerdictRequest::default(), now);
    assert!(hub.intake.next_decision().unwrap().result.is_err());
    let before = account(&hub);
    hub.intake.drop_rejected(quarantined(None, &mended, 9), VerdictRequest::default(), now);
    hub.arrive();
    assert_eq!(
        hub.intake.next_decision(),
        Some(Decision { quarantine_seq: 9, result: Ok(QuarantineDecision::Dropped) })
    );
    assert_eq!(account(&hub), before);
    hub.restart();
    assert_eq!(account(&hub), (2, 0, 1));
}

#[test]
fn an_unstorable_report_is_quarantined_and_holds_up_no_other() {
    let mut hub = Hub::new();
    let other = "plant7/press-5".parse().unwrap();
    let (mine, theirs) = ("muster.report.3.plant7.press-4", "muster.report.3.plant7.press-5");
    let payload = status(1, 1, 2).to_string();
    hub.send(payload.as_bytes(), mine);
    hub.send(status(1, 1, 1).to_string().as_bytes(), theirs);
    hub.send(status(1, 2, 2).to_string().as_bytes(), mine);
    let mut made = Vec::new();
    while let Some(publication) = hub.intake.next_publication() {
        made.push(publication);
    }
    let refuse = |hub: &mut Hub, payload: &str| {
        assert_eq!(hub.intake.cause_of_oldest(), Some(0));
        let arrival = IncomingReport {
            origin: origin(mine).unwrap(),
            parsed: Report::parse(payload.as_bytes()),
            payload: payload.as_bytes(),
            position: 1,
            stored_at: hub.now,
            now: hub.now,
        };
        let refused = hub.intake.replace_unstorable("too large", Some(arrival));
        hub.store_rejected();
        refused
    };
    // The first fact of each device comes with its first liveness fact.
    let statuses = made.iter().filter(|made| made.fact.kind() == "StatusFact").count();
    assert_eq!(statuses, 3);
    refuse(&mut hub, &payload).unwrap();
    assert_eq!(hub.intake.drain_settled(), 0);
    (1..made.len()).for_each(|_| hub.intake.confirm());
    assert_eq!(hub.intake.drain_settled(), 0, "the first message waits for its record");
    let record = hub.intake.next_publication().unwrap();
    assert_eq!(record.fact.kind(), "QuarantineFact");
    // LEDGER refuses the record as well: a shorter one replaces it, and after that there is no shorter one.
    refuse(&mut hub, &payload).unwrap();
    assert_eq!(hub.intake.next_publication().unwrap().fact.kind(), "StatusFact");
    refuse(&mut hub, &payload).unwrap();
    let shorter = hub.intake.next_publication().unwrap();
    assert!(shorter.payload.len() < record.payload.len());
    assert_eq!(refuse(&mut hub, &payload), Err(Unrecordable));
    hub.intake.confirm();
    assert_eq!(hub.intake.drain_settled(), 3);
    let account = |key: &DeviceKey| {
        let account = &hub.intake.devices[hub.intake.indexes[key]].confirmed().account;
        let account = account.at_head(account.head());
        (account.received, account.quarantined, account.missing.count())
    };
    assert_eq!(account(&press()), (1, 1, 0));
    assert_eq!(account(&other), (1, 0, 0));
    // It comes again: LEDGER refuses again, and one record is enough.
    assert_eq!(hub.send(payload.as_bytes(), mine), Outcome::Late);
    hub.intake.next_publication().unwrap();
    refuse(&mut hub, &payload).unwrap();
    assert!(hub.intake.next_publication().is_none());
    assert_eq!(hub.intake.drain_settled(), 1);
}

#[test]
fn a_requeued_report_that_ledger_cannot_store_stays_in_quarantine() {
    let mut hub = Hub::new();
    hub.report(&with(status(1, 1, 2), "status", json!({"state": "exploded"})));
    hub.report(&status(1, 2, 2));
    let account = |hub: &Hub| {
        let account = hub.intake.devices[1].confirmed().account.at_head(2);
        (account.received, account.quarantined)
    };
    let payload = RejectedReport::encode_payload(status(1, 1, 2).to_string().as_bytes());
    let mended = RejectedReport { payload_base64: payload, ..hub.rejected[0].clone() };
    // The same report twice: the second one is a duplicate of a fact that LEDGER will never have.
    for of in [1, 2] {
        hub.intake.requeue(quarantined(Some(&press()), &mended, of), VerdictRequest::default(), hub.now);
    }
    let made: Vec<_> =
        std::iter::from_fn(|| hub.intake.next_publication()).map(|made| made.fact.kind()).collect();
    assert_eq!(made, ["StatusFact"], "no verdict goes before the fact is in LEDGER");
    hub.intake.replace_unstorable("too large", None).unwrap();
    for of in [1, 2] {
        let decision = hub.intake.next_decision().unwrap();
        assert!(
            decision.quarantine_seq == of && decision.result.is_err_and(|words| words.contains("too large"))
        );
    }
    assert_eq!((hub.intake.next_decision(), hub.intake.in_flight(), account(&hub)), (None, 0, (1, 1)));
    // Once LEDGER stores the fact, the report is accepted.
    hub.intake.requeue(quarantined(Some(&press()), &mended, 1), VerdictRequest::default(), hub.now);
    hub.arrive();
    assert_eq!(
        hub.intake.next_decision(),
        Some(Decision { quarantine_seq: 1, result: Ok(QuarantineDecision::LetIn) })
    );
    assert_eq!(account(&hub), (2, 0));
}

#[test]
fn a_fact_that_ledger_refuses_keeps_no_report_of_another_device() {
    let mut hub = Hub::new();
    let saw: DeviceKey = "plant7/saw-1".parse().unwrap();
    hub.send(status(1, 1, 2).to_string().as_bytes(), "muster.report.3.plant7.saw-1");
    hub.arrive();
    hub.report(&exploded(1, 2));
    hub.report(&status(1, 2, 2));
    let payload = RejectedReport::encode_payload(status(1, 1, 2).to_string().as_bytes());
    let mended = RejectedReport { payload_base64: payload, ..hub.rejected[0].clone() };
    // The second report is in LEDGER already, and waits for the fact of the first one.
    hub.intake.requeue(quarantined(Some(&press()), &mended, 1), VerdictRequest::default(), hub.now);
    hub.intake.requeue(quarantined(Some(&saw), &mended, 2), VerdictRequest::default(), hub.now);
    assert_eq!(std::iter::from_fn(|| hub.intake.next_publication()).count(), 1, "the fact of the first one");
    hub.intake.replace_unstorable("too large", None).unwrap();
    let decision = hub.intake.next_decision().unwrap();
    assert!(decision.quarantine_seq == 1 && decision.result.is_err());
    hub.arrive();
    assert_eq!(
        hub.intake.next_decision(),
        Some(Decision { quarantine_seq: 2, result: Ok(QuarantineDecision::AlreadyIn) })
    );
}

/// The device's newest liveness fact: head, numbers in quarantine, and whether it names a heartbeat.
fn published(hub: &Hub) -> (u64, u64, bool) {
    let liveness = hub.liveness();
    let last = liveness.last().unwrap();
    (last.head, last.account.as_ref().unwrap().quarantined, last.beat_at.is_some())
}

#[test]
fn a_head_that_only_quarantined_numbers_reach_is_published() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 1));
    hub.pass(1);
    // It can be parsed, and breaks a rule: it names the device's head itself.
    hub.report(&with(status(1, 2, 2), "status", json!({"state": "installed"})));
    hub.pass(1);
    assert_eq!(published(&hub), (2, 1, true));
    // Only the number of this one can be read: the next heartbeat shows that the device assigned it.
    hub.report(&with(status(1, 3, 3), "status", json!({"state": "exploded"})));
    hub.pass(1);
    assert_eq!(published(&hub).0, 2);
    hub.beat(1, 3, 0);
    hub.pass(1);
    assert_eq!(published(&hub), (3, 2, true));
    let facts = hub.ledger.len();
    hub.live(300, 1, 3);
    assert_eq!(hub.ledger.len(), facts, "it is published once: {:?}", &hub.ledger[facts..]);
}

#[test]
fn the_first_heartbeat_after_an_unnumbered_message_is_published_once() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 1));
    hub.beat(1, 1, 0);
    hub.pass(10);
    let facts = hub.ledger.len();
    hub.send(b"{", "muster.report.3.plant7.press-4");
    hub.arrive();
    hub.pass(10);
    assert_eq!(hub.ledger.len(), facts + 1, "the message itself");
    hub.restart();
    hub.live(30, 1, 1);
    assert_eq!(hub.ledger.len(), facts + 2, "{:?}", &hub.ledger[facts..]);
    assert!(hub.liveness().last().unwrap().beat_at > Some(hub.quarantine()[0].received_at));
    // Dropped before any heartbeat, it needs none.
    hub.send(b"[", "muster.report.3.plant7.press-4");
    hub.arrive();
    let held = hub.rejected[1].clone();
    hub.intake.drop_rejected(quarantined(Some(&press()), &held, 9), VerdictRequest::default(), hub.now);
    hub.arrive();
    let facts = hub.ledger.len();
    hub.live(300, 1, 1);
    assert_eq!(hub.ledger.len(), facts, "{:?}", &hub.ledger[facts..]);
}

#[test]
fn a_quarantined_message_is_reasserted_until_it_is_resolved() {
    let day = 24 * 60 * 60;
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 3));
    hub.report(&with(status(1, 2, 3), "status", json!({"state": "exploded"})));
    hub.report(&with(status(1, 3, 3), "status", json!({"state": "exploded twice"})));
    let held = hub.rejected.clone();
    hub.intake.drop_rejected(quarantined(Some(&press()), &held[0], 9), VerdictRequest::default(), hub.now);
    hub.arrive();
    let reassert_old = |hub: &mut Hub| {
        let until = hub.now.as_second() - 20 * day;
        let old: Vec<_> = hub.ledger.iter().filter(|(_, _, at)| at.as_second() <= until).cloned().collect();
        old.iter().for_each(|(subject, fact, _)| _ = hub.intake.reassert_if_old(subject, fact, hub.now));
        hub.arrive();
        let again = hub.quarantine().into_iter().filter(|fact| fact.reasserted);
        again.map(|fact| (fact.seq.unwrap().get(), fact.received_at)).collect::<Vec<_>>()
    };
    for restarts in [false, true] {
        hub.now = at(hub.now.as_second() + 20 * day);
        if restarts {
            hub.restart();
        }
        let again = reassert_old(&mut hub);
        assert!(again.iter().all(|again| *again == (3, held[1].received_at)), "{again:?}");
        assert_eq!(again.len(), 1 + usize::from(restarts), "once in twenty days");
    }
    // A requeue after a fix ends the uncertainty.
    let payload = status(1, 3, 3).to_string();
    let mended = RejectedReport {
        payload_base64: RejectedReport::encode_payload(payload.as_bytes()),
        ..held[1].clone()
    };
    hub.intake.requeue(quarantined(Some(&press()), &mended, 9), VerdictRequest::default(), hub.now);
    hub.arrive();
    hub.now = at(hub.now.as_second() + 20 * day);
    assert_eq!(reassert_old(&mut hub).len(), 2);
}

#[test]
fn a_device_that_cannot_store_reports_is_published_at_once() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 1));
    let beat = |hub: &mut Hub, storing: bool| {
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": 1, "unsent": 0,
            "generation": 0, "agentVersion": "1", "storing": storing,
        });
        hub.now = at(hub.now.as_second() + 1);
        hub.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), hub.now, hub.now);
        hub.arrive();
    };
    let said = |hub: &Hub| hub.liveness().iter().map(|fact| fact.storing).collect::<Vec<_>>();
    (0..3).for_each(|_| beat(&mut hub, false));
    assert_eq!(said(&hub), [true, false]);
    // Another process knows it from LEDGER, and repeats it with its other facts.
    hub.restart();
    hub.pass(91);
    assert_eq!((hub.states().last(), said(&hub).last()), (Some(&Liveness::Stale), Some(&false)));
    (0..3).for_each(|_| beat(&mut hub, true));
    assert_eq!(said(&hub), [true, false, false, true]);
}

#[test]
fn an_impossible_epoch_closes_none_and_leaves_the_next_one_free() {
    use muster_contract::limits::{COUNTER_MAX, EPOCH_BELIEVED_MAX};
    let mut hub = Hub::new();
    hub.report(&status(7, 1, 1));
    for far in [EPOCH_BELIEVED_MAX + 1, COUNTER_MAX] {
        assert_eq!(hub.report(&status(far, 1, 1)), Outcome::Quarantined);
        hub.beat(far, 1, 0);
        hub.pass(2);
    }
    assert!(hub.quarantine().iter().all(|fact| fact.reason.contains("correct the sender")));
    // A number above every limit is not even read.
    assert_eq!(hub.report(&status(COUNTER_MAX + 1, 1, 1)), Outcome::Quarantined);
    let words = &hub.quarantine()[2].reason;
    assert!(words.contains("epoch") && words.contains("9007199254740991"), "{words}");
    assert!(hub.incidents().is_empty(), "{:?}", hub.incidents());
    assert_eq!(hub.report(&status(7, 2, 2)), Outcome::New);
    // Another sender uses the highest accepted epoch: the device still has the next one, and so on.
    for next in EPOCH_BELIEVED_MAX..EPOCH_BELIEVED_MAX + 3 {
        assert_eq!(hub.report(&status(next, 1, 1)), Outcome::New, "{next}");
    }
}

fn exploded(seq: u64, head: u64) -> Value {
    with(status(1, seq, head), "status", json!({"state": "exploded"}))
}

/// The missing and the refused numbers of the newest receipt.
fn refused(hub: &mut Hub) -> Option<(String, Vec<(String, String)>)> {
    hub.pass(1);
    let (_, receipt) = hub.intake.drain_due_receipts(hub.now, 1).pop()?;
    let named = receipt.refused.iter().map(|named| (named.ranges.to_string(), named.reason.clone()));
    Some((receipt.missing.to_string(), named.collect()))
}

/// A report of the device, stored and delivered at the beginning of a test.
fn arrival(payload: &[u8]) -> IncomingReport<'_> {
    IncomingReport {
        origin: origin("muster.report.3.plant7.press-4").unwrap(),
        parsed: Report::parse(payload),
        payload,
        position: 7,
        stored_at: at(1_000),
        now: at(1_000),
    }
}

#[test]
fn no_number_is_accounted_for_before_quarantine_has_its_payload() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 3));
    let payload = exploded(2, 3).to_string().into_bytes();
    hub.intake.drain_settled();
    assert_eq!(hub.intake.apply_report(arrival(&payload)), Outcome::Storing);
    assert_eq!(hub.intake.apply_report(arrival(&payload)), Outcome::Repeated, "it is in flight");
    hub.arrive();
    assert_eq!((hub.quarantine().len(), hub.intake.drain_settled()), (0, 0));
    let rejection = hub.intake.next_rejection().unwrap();
    let content = Contents::of(None, &payload).exact().unwrap();
    assert_eq!(rejection.id, format!("plant7.press-4.rejected.1.2.{content}"));
    assert_eq!(hub.intake.next_rejection(), None);
    hub.arrive();
    assert_eq!((hub.quarantine().len(), hub.intake.drain_settled()), (0, 0), "it is not stored");
    hub.intake.apply_store_answer(rejection.ticket, Ok(()), hub.now);
    assert_eq!(hub.intake.drain_settled(), 0, "its fact is not in LEDGER");
    hub.arrive();
    assert_eq!((hub.quarantine().len(), hub.intake.drain_settled()), (1, 2));
    // Between the store and the fact the process dies: the message comes again, under the same id.
    let payload = exploded(3, 3).to_string().into_bytes();
    hub.intake.apply_report(arrival(&payload));
    let first = hub.intake.next_rejection().unwrap();
    hub.restart();
    hub.intake.apply_report(arrival(&payload));
    assert_eq!(hub.intake.next_rejection().map(|again| again.id), Some(first.id));
}

#[test]
fn a_full_quarantine_leaves_numbers_missing_and_receipts_name_them() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 4));
    hub.no_room = Some(NotStored::Full);
    assert_eq!(hub.report(&exploded(2, 4)), Outcome::Refused);
    assert!(hub.intake.drain_settled() > 0 && hub.intake.unsettled() == 0, "it holds up no other report");
    let full = |seqs: &str| vec![(seqs.to_owned(), "quarantineFull".to_owned())];
    assert_eq!(refused(&mut hub), Some(("2".to_owned(), full("2"))));
    // It comes again: for a while no report is sent to QUARANTINE, and no fact is published.
    assert_eq!(hub.report(&exploded(2, 4)), Outcome::Refused);
    assert_eq!(refused(&mut hub), None);
    // A newer one above every held number is named, too.
    hub.report(&exploded(4, 4));
    hub.beat(1, 4, 0);
    assert_eq!(refused(&mut hub), Some(("2-4".to_owned(), full("2,4"))));
    assert_eq!(hub.quarantine().len(), 0);
    // An operator requests them, and there is room.
    hub.no_room = None;
    let listed = |hub: &Hub, after: Option<&DeviceKey>| hub.intake.refused_devices(after).collect::<Vec<_>>();
    assert_eq!(listed(&hub, None)[0].refused[0].ranges.to_string(), "2,4");
    assert_eq!(listed(&hub, Some(&press())), []);
    assert_eq!(hub.intake.request_refused(&press()), 2);
    assert_eq!(refused(&mut hub), Some(("2-4".to_owned(), Vec::new())));
    for number in [2, 4] {
        assert_eq!(hub.report(&exploded(number, 4)), Outcome::Quarantined);
    }
    hub.report(&status(1, 3, 4));
    assert_eq!(refused(&mut hub), Some((String::new(), Vec::new())));
    assert_eq!((hub.rejected.len(), listed(&hub, None)), (2, Vec::new()));
}

#[test]
fn an_unavailable_quarantine_is_not_asked_for_a_while() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 5));
    for number in 2..=4 {
        let payload = exploded(number, 5).to_string().into_bytes();
        assert_eq!(hub.intake.apply_report(arrival(&payload)), Outcome::Storing);
    }
    let first = hub.intake.next_rejection().unwrap();
    let outcomes = hub.intake.apply_store_answer(first.ticket, Err(NotStored::Unavailable), hub.now);
    assert_eq!(outcomes, [Outcome::Refused; 3], "the reports behind it wait for no answer of their own");
    assert_eq!((hub.intake.next_rejection(), hub.intake.rejections_pending()), (None, 0));
    assert!(hub.intake.drain_settled() > 0 && hub.intake.unsettled() == 0, "it holds up no other report");
    assert_eq!(hub.report(&exploded(5, 5)), Outcome::Refused);
    hub.now = hub.now.checked_add(UNAVAILABLE_PAUSE).unwrap();
    assert_eq!(hub.report(&exploded(2, 5)), Outcome::Quarantined);
}

#[test]
fn a_number_that_cannot_stay_missing_is_recorded_as_not_kept() {
    let mut hub = Hub::new();
    hub.no_room = Some(NotStored::Unavailable);
    hub.report(&status(5, 1, 1));
    hub.report(&status(4, 1, 1));
    hub.report(&with(status(5, 1, 1), "generation", json!(4)));
    hub.send(b"{", "muster.report.3.plant7.press-4");
    hub.send(status(1, 1, 1).to_string().as_bytes(), "muster.report.3.Plant_7.press-4");
    hub.arrive();
    let kept: Vec<_> = hub.quarantine().iter().map(|fact| fact.not_kept).collect();
    assert_eq!((kept, hub.rejected.len()), (vec![1; 4], 0));
    assert_eq!(refused(&mut hub), Some((String::new(), Vec::new())), "no number of the epoch is refused");
}

#[test]
fn an_expired_report_is_recorded_and_stays_uncertain() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 2));
    hub.report(&exploded(2, 2));
    let held = hub.rejected[0].clone();
    hub.intake.expire_rejected(quarantined(Some(&press()), &held, 1), hub.now);
    hub.arrive();
    assert_eq!(
        hub.intake.next_decision(),
        Some(Decision { quarantine_seq: 1, result: Ok(QuarantineDecision::Expired) })
    );
    let fact = Fact::Quarantine(hub.quarantine()[0].clone());
    let is_open = |hub: &Hub| hub.intake.devices[1].latest().published_since(&fact, None).is_some();
    assert!(is_open(&hub), "no decision was made");
    hub.intake.drop_rejected(quarantined(Some(&press()), &held, 1), VerdictRequest::default(), hub.now);
    assert!(!is_open(&hub));
}
