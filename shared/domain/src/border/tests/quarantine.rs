//! What is not let in: a second look at it, and what LEDGER will not take either.

use muster_contract::RequestedBy;
use muster_contract::quarantine::Verdict;

use super::*;

#[test]
fn a_message_in_quarantine_is_judged_again_as_of_when_it_came_and_says_nothing_of_its_device() {
    let mut hub = Hub::new();
    hub.report(&with(status(1, 1, 3), "status", json!({"state": "exploded"})));
    hub.report(&status(1, 3, 3));
    let account = |hub: &Hub| {
        let account = hub.border.devices[1].confirmed().cursor.account(3);
        (account.received, account.quarantined, account.missing.count())
    };
    assert_eq!(account(&hub), (1, 1, 1));
    let held = hub.quarantine()[0].clone();
    // Nothing has been mended: it stays, and nothing changes.
    let now = at(90_000);
    let judged = hub.border.requeue(Some(&press()), &held, 1, Because::default(), now);
    assert!(matches!(&judged, Judged::Stays(words) if words.contains("exploded")), "{judged:?}");
    assert!(hub.border.next_publication().is_none());
    // What a newer ingest can read is let in, late, and with the time at which it came.
    let payload = status(1, 1, 3).to_string();
    let mended = QuarantineFact {
        payload_base64: QuarantineFact::encode_payload(payload.as_bytes()),
        bytes: payload.len() as u64,
        ..held.clone()
    };
    let count = hub.liveness().len();
    let heard = hub.border.devices[1].heard.last_at;
    let because = Because {
        reason: Some("mended".to_owned()),
        requested_by: Some(RequestedBy::new("UA", "anna", None)),
    };
    for verdict in [Verdict::LetIn, Verdict::AlreadyIn] {
        let judged = hub.border.requeue(Some(&press()), &mended, 1, because.clone(), now);
        assert_eq!(judged, Judged::Settled(verdict));
        hub.arrive();
    }
    assert_eq!(account(&hub), (2, 0, 1));
    let let_in = hub.statuses().into_iter().find(|fact| fact.seq.get() == 1).unwrap();
    assert!(let_in.late && let_in.received_at == held.received_at, "{let_in:?}");
    assert_eq!((hub.liveness().len(), hub.border.devices[1].heard.last_at), (count, heard));
    // What is kept in part, or of nobody, cannot be judged; anything can be dropped, and stays accounted for.
    let cut = QuarantineFact { bytes: 70_000, ..mended.clone() };
    assert!(matches!(hub.border.requeue(Some(&press()), &cut, 1, Because::default(), now), Judged::Stays(_)));
    assert!(matches!(hub.border.requeue(None, &mended, 1, Because::default(), now), Judged::Stays(_)));
    let before = account(&hub);
    assert_eq!(
        hub.border.drop_held(None, &mended, 9, Because::default(), now),
        Judged::Settled(Verdict::Dropped)
    );
    hub.arrive();
    assert_eq!(account(&hub), before);
    hub.restart();
    assert_eq!(account(&hub), (2, 0, 1));
}

#[test]
fn what_ledger_will_never_take_goes_to_quarantine_and_holds_up_nobody() {
    let mut hub = Hub::new();
    let other = "plant7/press-5".parse().unwrap();
    let (mine, theirs) = ("muster.report.3.plant7.press-4", "muster.report.3.plant7.press-5");
    let payload = status(1, 1, 2).to_string();
    hub.send(payload.as_bytes(), mine);
    hub.send(status(1, 1, 1).to_string().as_bytes(), theirs);
    hub.send(status(1, 2, 2).to_string().as_bytes(), mine);
    let mut made = Vec::new();
    while let Some(publication) = hub.border.next_publication() {
        made.push(publication);
    }
    let refuse = |hub: &mut Hub, payload: &str| {
        assert_eq!(hub.border.cause_of_oldest(), Some(0));
        let arrival = Arrival {
            origin: origin(mine).unwrap(),
            parsed: Report::parse(payload.as_bytes()),
            payload: payload.as_bytes(),
            position: 1,
            stored_at: hub.now,
            now: hub.now,
        };
        hub.border.unstorable("too large", Some(arrival))
    };
    // The first fact of each device comes with its first liveness fact.
    let statuses = made.iter().filter(|made| made.kind == "StatusFact").count();
    assert_eq!(statuses, 3);
    refuse(&mut hub, &payload).unwrap();
    assert_eq!(hub.border.settled(), 0);
    (1..made.len()).for_each(|_| hub.border.confirm());
    assert_eq!(hub.border.settled(), 0, "the first message waits for its record");
    let record = hub.border.next_publication().unwrap();
    assert_eq!(record.kind, "QuarantineFact");
    // The record itself is refused: all begins again with a shorter one, and after that there is nothing shorter.
    refuse(&mut hub, &payload).unwrap();
    assert_eq!(hub.border.next_publication().unwrap().kind, "StatusFact");
    refuse(&mut hub, &payload).unwrap();
    let shorter = hub.border.next_publication().unwrap();
    assert!(shorter.payload.len() < record.payload.len());
    assert_eq!(refuse(&mut hub, &payload), Err(Unrecordable));
    hub.border.confirm();
    assert_eq!(hub.border.settled(), 3);
    let account = |key: &DeviceKey| {
        let cursor = &hub.border.devices[hub.border.places[key]].confirmed().cursor;
        let account = cursor.account(cursor.head());
        (account.received, account.quarantined, account.missing.count())
    };
    assert_eq!(account(&press()), (1, 1, 0));
    assert_eq!(account(&other), (1, 0, 0));
    // It comes again: LEDGER refuses again, and one record is enough.
    assert_eq!(hub.send(payload.as_bytes(), mine), Outcome::Late);
    hub.border.next_publication().unwrap();
    refuse(&mut hub, &payload).unwrap();
    assert!(hub.border.next_publication().is_none());
    assert_eq!(hub.border.settled(), 1);
}

/// What the device's newest liveness fact says: head, numbers in quarantine, and whether it knows of a heartbeat.
fn told(hub: &Hub) -> (u64, u64, bool) {
    let liveness = hub.liveness();
    let last = liveness.last().unwrap();
    (last.head, last.account.as_ref().unwrap().quarantined, last.beat_at.is_some())
}

#[test]
fn a_head_that_only_quarantined_numbers_reach_is_told_so_that_the_account_counts_them() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 1));
    hub.pass(1);
    // It can be read whole, and breaks a rule: it says itself how far the device is.
    hub.report(&with(status(1, 2, 2), "status", json!({"state": "installed"})));
    hub.pass(1);
    assert_eq!(told(&hub), (2, 1, true));
    // Of this one only the number can be read: the next heartbeat says that there is one.
    hub.report(&with(status(1, 3, 3), "status", json!({"state": "exploded"})));
    hub.pass(1);
    assert_eq!(told(&hub).0, 2);
    hub.beat(1, 3, 0);
    hub.pass(1);
    assert_eq!(told(&hub), (3, 2, true));
    let facts = hub.ledger.len();
    hub.live(300, 1, 3);
    assert_eq!(hub.ledger.len(), facts, "it is told once: {:?}", &hub.ledger[facts..]);
}

#[test]
fn a_heartbeat_after_a_message_without_a_number_is_told_once_and_no_earlier_one_is() {
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
    let held = hub.quarantine()[1].clone();
    hub.border.drop_held(Some(&press()), &held, 9, Because::default(), hub.now);
    hub.arrive();
    let facts = hub.ledger.len();
    hub.live(300, 1, 1);
    assert_eq!(hub.ledger.len(), facts, "{:?}", &hub.ledger[facts..]);
}

#[test]
fn what_may_be_news_is_said_again_until_it_is_read_or_dropped() {
    let day = 24 * 60 * 60;
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.report(&status(1, 1, 3));
    hub.report(&with(status(1, 2, 3), "status", json!({"state": "exploded"})));
    hub.report(&with(status(1, 3, 3), "status", json!({"state": "exploded twice"})));
    let held: Vec<QuarantineFact> = hub.quarantine().into_iter().cloned().collect();
    hub.border.drop_held(Some(&press()), &held[0], 9, Because::default(), hub.now);
    hub.arrive();
    let said_again = |hub: &mut Hub| {
        let old = hub.now.as_second() - 20 * day;
        let elders: Vec<_> = hub.ledger.iter().filter(|(_, _, at)| at.as_second() <= old).cloned().collect();
        elders.iter().for_each(|(subject, fact, _)| _ = hub.border.grow_old(subject, fact, hub.now));
        hub.arrive();
        let again = hub.quarantine().into_iter().filter(|fact| fact.reasserted);
        again.map(|fact| (fact.seq.unwrap().get(), fact.received_at)).collect::<Vec<_>>()
    };
    for restarts in [false, true] {
        hub.now = at(hub.now.as_second() + 20 * day);
        if restarts {
            hub.restart();
        }
        let again = said_again(&mut hub);
        assert!(again.iter().all(|again| *again == (3, held[1].received_at)), "{again:?}");
        assert_eq!(again.len(), 1 + usize::from(restarts), "once in twenty days");
    }
    // A second look, after a fix, ends it.
    let payload = status(1, 3, 3).to_string();
    let mended = QuarantineFact {
        payload_base64: QuarantineFact::encode_payload(payload.as_bytes()),
        bytes: payload.len() as u64,
        ..held[1].clone()
    };
    hub.border.requeue(Some(&press()), &mended, 9, Because::default(), hub.now);
    hub.arrive();
    hub.now = at(hub.now.as_second() + 20 * day);
    assert_eq!(said_again(&mut hub).len(), 2);
}

#[test]
fn a_device_that_says_it_cannot_store_is_told_of_at_once_and_when_it_can_again() {
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
        hub.border.heartbeat(&press(), &serde_json::from_value(beat).unwrap(), hub.now, hub.now);
        hub.arrive();
    };
    let said = |hub: &Hub| hub.liveness().iter().map(|fact| fact.storing).collect::<Vec<_>>();
    (0..3).for_each(|_| beat(&mut hub, false));
    assert_eq!(said(&hub), [true, false]);
    // Another process knows it from LEDGER, and says it again with whatever else it has to say.
    hub.restart();
    hub.pass(91);
    assert_eq!((hub.states().last(), said(&hub).last()), (Some(&Liveness::Stale), Some(&false)));
    (0..3).for_each(|_| beat(&mut hub, true));
    assert_eq!(said(&hub), [true, false, false, true]);
}

/// Reports of an epoch that is over, one a second, as from a device that was set back or has a double.
fn flood(hub: &mut Hub, seqs: std::ops::RangeInclusive<u64>) {
    for number in seqs {
        hub.report(&status(4, number, number));
        hub.pass(1);
    }
}

#[test]
fn a_flood_of_one_device_makes_a_bounded_number_of_facts_and_every_message_is_counted() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    flood(&mut hub, 1..=600);
    hub.pass(SUM_EVERY.as_secs() as i64);
    let kept = hub.quarantine();
    let most = 600 / 60 * (FACTS_PER_MINUTE as usize + 6) + 1;
    assert!(kept.len() <= most, "{} facts, and {most} are allowed", kept.len());
    assert_eq!(kept.last().unwrap().count_for_device, 600);
    let mut numbers = SeqRanges::new();
    for fact in &kept {
        let (of, seqs) = fact.numbers().unwrap();
        assert_eq!((of, seqs.count()), (epoch(4), fact.others + 1));
        assert_eq!(numbers.extend(&seqs), seqs.count(), "no number is in twice");
    }
    assert_eq!(numbers, SeqRanges::span(1, 600));
    let sum = kept.iter().find(|fact| fact.others > 0).unwrap();
    assert!(sum.reason.contains("epoch 4 is over") && sum.reason.contains("came faster"), "{}", sum.reason);
    assert_eq!(hub.incidents().len(), 1, "one clone");
    // Whoever reads LEDGER anew knows all of them.
    let before = kept.len();
    hub.restart();
    flood(&mut hub, 1..=600);
    hub.pass(SUM_EVERY.as_secs() as i64);
    assert_eq!(hub.quarantine().len(), before);
    assert_eq!((hub.border.settled(), hub.border.unsettled()), (600, 0));
}

#[test]
fn a_message_in_a_sum_is_settled_only_when_ledger_has_the_sum() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    (1..=12).for_each(|number| _ = hub.report(&status(4, number, 12)));
    assert_eq!(hub.report(&status(5, 2, 2)), Outcome::New, "nobody's facts wait");
    assert_eq!(hub.statuses().len(), 2);
    hub.border.settled();
    assert_eq!(hub.border.unsettled(), 3, "two wait for a sum, and the good one for them");
    assert_eq!(hub.report(&status(4, 12, 12)), Outcome::Repeated);
    hub.now = at(hub.now.as_second() + SUM_EVERY.as_secs() as i64);
    hub.border.tick(hub.now, hub.now);
    assert_eq!((hub.border.settled(), hub.border.unsettled()), (0, 4), "it is on its way");
    hub.arrive();
    assert_eq!((hub.border.settled(), hub.border.unsettled()), (4, 0));
    // Of unknown fate: all of it comes again.
    (20..=40).for_each(|number| _ = hub.report(&status(4, number, 40)));
    hub.border.rewind();
    assert_eq!(hub.border.unsettled(), 0);
    let again = (20..=40).filter(|number| hub.report(&status(4, *number, 40)) == Outcome::Summed);
    assert_eq!(again.count(), 21);
}

#[test]
fn one_message_that_waits_for_a_sum_holds_up_no_more_than_the_bus_delivers_unacknowledged() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    (1..=11).for_each(|number| _ = hub.report(&status(4, number, 11)));
    hub.border.settled();
    for number in 2..=2 * UNSETTLED_MAX as u64 {
        assert_eq!(hub.report(&status(5, number, number)), Outcome::New);
        hub.border.settled();
        assert!(hub.border.unsettled() <= UNSETTLED_MAX, "{} at {number}", hub.border.unsettled());
    }
}

#[test]
fn refusals_stay_within_their_bound_also_while_ledger_does_not_answer() {
    for is_slow in [false, true] {
        let (mut hub, messages) = (Hub::new(), 3 * UNSETTLED_MAX as u64);
        hub.report(&status(1, 1, 1));
        for number in 1..=messages {
            // Every second number of several epochs: the sums fall into as many facts and pieces as they can.
            let bad =
                with(status(number % 6 + 1, 2 * number, 1 << 30), "status", json!({"state": "exploded"}));
            hub.send(bad.to_string().as_bytes(), "muster.report.3.plant7.press-4");
            if !is_slow {
                hub.arrive();
                hub.border.settled();
            }
        }
        hub.arrive();
        hub.pass(SUM_EVERY.as_secs() as i64);
        let (facts, most) = (hub.quarantine().len() as u64, refusal_facts_max(messages, SUM_EVERY.as_secs()));
        assert!(facts <= most, "{facts} facts, above {most}, LEDGER slow: {is_slow}");
        let told: u64 = hub.quarantine().iter().map(|fact| fact.others + 1).sum();
        assert_eq!(told, messages, "each is counted");
    }
}

#[test]
fn when_many_wait_for_a_sum_it_is_made_at_once_and_its_numbers_are_accounted_for() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    let count = SUM_MESSAGES_MAX as u64 + 20;
    for number in 2..=count {
        hub.report(&with(status(1, number, count), "status", json!({"state": "exploded"})));
    }
    assert!(hub.quarantine().iter().any(|fact| fact.others + 1 == SUM_MESSAGES_MAX as u64));
    hub.pass(SUM_EVERY.as_secs() as i64);
    hub.border.settled();
    let account = hub.border.devices[1].confirmed().cursor.account(count);
    assert_eq!((account.received, account.quarantined, account.missing.count()), (1, count - 1, 0));
    assert_eq!(hub.border.unsettled(), 0);
}

#[test]
fn an_epoch_that_no_device_can_have_closes_none_and_the_next_one_is_always_free() {
    use muster_contract::limits::{COUNTER_MAX, EPOCH_BELIEVED_MAX};
    let mut hub = Hub::new();
    hub.report(&status(7, 1, 1));
    for far in [EPOCH_BELIEVED_MAX + 1, COUNTER_MAX] {
        assert_eq!(hub.report(&status(far, 1, 1)), Outcome::Quarantined);
        hub.beat(far, 1, 0);
        hub.pass(2);
    }
    assert!(hub.quarantine().iter().all(|fact| fact.reason.contains("correct the sender")));
    // Beyond what any reader holds it is not even a number.
    assert_eq!(hub.report(&status(COUNTER_MAX + 1, 1, 1)), Outcome::Quarantined);
    let words = &hub.quarantine()[2].reason;
    assert!(words.contains("epoch") && words.contains("9007199254740991"), "{words}");
    assert!(hub.incidents().is_empty(), "{:?}", hub.incidents());
    assert_eq!(hub.report(&status(7, 2, 2)), Outcome::New);
    // Somebody takes the highest that is believed: the device still has the one after it, and so on.
    for next in EPOCH_BELIEVED_MAX..EPOCH_BELIEVED_MAX + 3 {
        assert_eq!(hub.report(&status(next, 1, 1)), Outcome::New, "{next}");
    }
}
