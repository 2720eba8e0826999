//! Floods of rejected messages: how many facts and incidents they make, and that every message is counted.

use super::*;

/// Reports of an epoch that is over, one a second, as from a device that was restored or cloned.
fn flood(hub: &mut Hub, seqs: std::ops::RangeInclusive<u64>) {
    for number in seqs {
        hub.report(&status(4, number, number));
        hub.pass(1);
    }
}

#[test]
fn a_flood_makes_a_bounded_number_of_facts_that_count_every_message() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    flood(&mut hub, 1..=600);
    hub.pass(BATCH_EVERY.as_secs() as i64);
    let kept = hub.quarantine();
    let most = 600 / 60 * (FACTS_PER_MINUTE as usize + 6) + 1;
    assert!(kept.len() <= most, "{} facts, and {most} are allowed", kept.len());
    assert_eq!(kept.last().unwrap().count_for_device, 600);
    let mut numbers = SeqRanges::new();
    for fact in &kept {
        let (of, seqs) = fact.numbers().unwrap();
        assert_eq!((of, seqs.count()), (epoch(4), fact.others + 1));
        assert_eq!(numbers.extend(&seqs), seqs.count(), "no number is counted twice");
    }
    assert_eq!(numbers, SeqRanges::span(1, 600));
    let sum = kept.iter().find(|fact| fact.others > 0).unwrap();
    assert!(sum.reason.contains("epoch 4 is over") && sum.reason.contains("came faster"), "{}", sum.reason);
    assert_eq!(hub.incidents().len(), 1, "one clone");
    // An intake that is restored from LEDGER knows all of them.
    let before = kept.len();
    hub.restart();
    flood(&mut hub, 1..=600);
    hub.pass(BATCH_EVERY.as_secs() as i64);
    assert_eq!(hub.quarantine().len(), before);
    assert_eq!((hub.intake.drain_settled(), hub.intake.unsettled()), (600, 0));
}

#[test]
fn a_flood_of_many_old_epochs_makes_a_bounded_number_of_incidents() {
    let mut hub = Hub::new();
    hub.report(&status(500, 1, 1));
    (1..=100).for_each(|old| _ = hub.report(&status(old, 1, 1)));
    hub.pass(BATCH_EVERY.as_secs() as i64);
    assert_eq!(hub.incidents().len(), FACTS_PER_MINUTE as usize);
}

#[test]
fn a_batched_message_is_settled_only_when_ledger_has_the_batch() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    (1..=12).for_each(|number| _ = hub.report(&status(4, number, 12)));
    assert_eq!(hub.report(&status(5, 2, 2)), Outcome::New, "nobody's facts wait");
    assert_eq!(hub.statuses().len(), 2);
    hub.intake.drain_settled();
    assert_eq!(hub.intake.unsettled(), 3, "two wait for a sum, and the good one for them");
    assert_eq!(hub.report(&status(4, 12, 12)), Outcome::Repeated);
    hub.now = at(hub.now.as_second() + BATCH_EVERY.as_secs() as i64);
    hub.intake.tick(hub.now, Watermarks::all(hub.now));
    assert_eq!((hub.intake.drain_settled(), hub.intake.unsettled()), (0, 4), "it is in flight");
    hub.arrive();
    assert_eq!((hub.intake.drain_settled(), hub.intake.unsettled()), (4, 0));
    // The outcome is unknown: all messages come again.
    (20..=40).for_each(|number| _ = hub.report(&status(4, number, 40)));
    hub.intake.rewind();
    assert_eq!(hub.intake.unsettled(), 0);
    let again = (20..=40).filter(|number| hub.report(&status(4, *number, 40)) == Outcome::Batched);
    assert_eq!(again.count(), 21);
}

#[test]
fn a_batched_message_holds_up_no_more_than_the_bus_delivers() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    (1..=11).for_each(|number| _ = hub.report(&status(4, number, 11)));
    hub.intake.drain_settled();
    for number in 2..=2 * UNSETTLED_MAX as u64 {
        assert_eq!(hub.report(&status(5, number, number)), Outcome::New);
        hub.intake.drain_settled();
        assert!(hub.intake.unsettled() <= UNSETTLED_MAX, "{} at {number}", hub.intake.unsettled());
    }
}

#[test]
fn rejections_stay_within_their_bound_while_ledger_does_not_answer() {
    for is_slow in [false, true] {
        let (mut hub, messages) = (Hub::new(), 3 * UNSETTLED_MAX as u64);
        hub.report(&status(1, 1, 1));
        for number in 1..=messages {
            // Every second number of several epochs: the batches need as many facts and ranges as they can.
            let bad =
                with(status(number % 6 + 1, 2 * number, 1 << 30), "status", json!({"state": "exploded"}));
            hub.send(bad.to_string().as_bytes(), "muster.report.3.plant7.press-4");
            if !is_slow {
                hub.arrive();
                hub.intake.drain_settled();
            }
        }
        hub.arrive();
        hub.pass(BATCH_EVERY.as_secs() as i64);
        let (facts, most) =
            (hub.quarantine().len() as u64, rejection_facts_max(messages, BATCH_EVERY.as_secs()));
        assert!(facts <= most, "{facts} facts, above {most}, LEDGER slow: {is_slow}");
        let told: u64 = hub.quarantine().iter().map(|fact| fact.others + 1).sum();
        assert_eq!(told, messages, "each is counted");
    }
}

#[test]
fn many_batched_messages_are_published_at_once_and_accounted_for() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    let count = BATCH_MESSAGES_MAX as u64 + 20;
    for number in 2..=count {
        hub.report(&with(status(1, number, count), "status", json!({"state": "exploded"})));
    }
    assert!(hub.quarantine().iter().any(|fact| fact.others + 1 == BATCH_MESSAGES_MAX as u64));
    hub.pass(BATCH_EVERY.as_secs() as i64);
    hub.intake.drain_settled();
    let account = hub.intake.devices[1].confirmed().account.at_head(count);
    assert_eq!((account.received, account.quarantined, account.missing.count()), (1, count - 1, 0));
    assert_eq!(hub.intake.unsettled(), 0);
}
