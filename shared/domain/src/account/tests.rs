//! Tests the account by tables, and its sum by property.

use proptest::prelude::*;

use super::*;

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

fn ranges(list: &[(u64, u64)]) -> SeqRanges {
    list.to_vec().try_into().unwrap()
}

fn digest(text: &str) -> Digest {
    Digest::of_bytes(text.as_bytes())
}

/// One step of a device's history: (epoch, seq, head, folded, content).
type Step<'a> = (u64, u64, u64, &'a [(u64, u64)], &'a str);

fn admit(account: &ReportAccount, step: Step<'_>) -> Admission {
    let (of, number, head, folded, content) = step;
    let coalesced = ranges(folded);
    let numbers = Numbers { epoch: epoch(of), seq: seq(number), head: seq(head), coalesced: &coalesced };
    account.admit(numbers, || digest(content))
}

fn receive(account: &mut ReportAccount, step: Step<'_>) {
    let (of, number, head, folded, content) = step;
    let coalesced = ranges(folded);
    let numbers = Numbers { epoch: epoch(of), seq: seq(number), head: seq(head), coalesced: &coalesced };
    account.receive(numbers, digest(content));
}

fn account(steps: &[Step<'_>]) -> ReportAccount {
    let mut account = ReportAccount::default();
    steps.iter().for_each(|step| receive(&mut account, *step));
    account
}

#[test]
fn every_report_is_admitted_for_what_it_is() {
    let known = account(&[(5, 1, 1, &[], "a"), (5, 7, 9, &[(4, 6)], "g")]);
    let fork = Admission::Fork { held: digest("g"), other: digest("other") };
    let table: [(Step<'_>, Admission); 10] = [
        ((5, 2, 9, &[], "b"), Admission::New),
        ((5, 8, 9, &[], "h"), Admission::New),
        ((5, 7, 9, &[(4, 6)], "g"), Admission::Duplicate),
        ((5, 7, 40, &[], "g"), Admission::Duplicate),
        ((5, 7, 9, &[(4, 6)], "other"), fork),
        ((5, 5, 9, &[], "e"), Admission::Duplicate),
        // The device sent it, then coalesced it before the receipt came: the numbers that it declares now must
        // not stay missing.
        ((5, 7, 9, &[(2, 6)], "g"), Admission::Amended),
        ((6, 1, 1, &[], "x"), Admission::NewEpoch { known: epoch(5) }),
        ((4, 1, 1, &[], "x"), Admission::OldEpoch { known: epoch(5) }),
        ((4, 7, 7, &[], "g"), Admission::OldEpoch { known: epoch(5) }),
    ];
    for (step, admission) in table {
        assert_eq!(admit(&known, step), admission, "{step:?}");
    }
}

#[test]
fn the_first_epoch_of_a_device_is_no_amnesia() {
    assert_eq!(admit(&ReportAccount::default(), (1_700_000_000, 4, 9, &[], "x")), Admission::New);
}

#[test]
fn a_number_of_a_closed_epoch_is_a_duplicate_and_no_clone() {
    let known = account(&[(5, 1, 1, &[], "a"), (6, 1, 1, &[], "b")]);
    assert_eq!(admit(&known, (5, 1, 1, &[], "a")), Admission::Duplicate);
    assert_eq!(admit(&known, (5, 2, 2, &[], "c")), Admission::OldEpoch { known: epoch(6) });
}

#[test]
fn a_good_report_replaces_a_bad_one_and_never_the_reverse() {
    let mut known = account(&[(5, 1, 3, &[], "a")]);
    known.quarantine(epoch(5), &SeqRanges::span(2, 2));
    known.quarantine(epoch(5), &SeqRanges::span(1, 1));
    let expected = Account { received: 1, coalesced: 0, quarantined: 1, missing: ranges(&[(3, 3)]) };
    assert_eq!(known.at_head(3), expected);
    assert_eq!(admit(&known, (5, 2, 3, &[], "b")), Admission::New);
    receive(&mut known, (5, 2, 3, &[], "b"));
    let expected = Account { received: 2, coalesced: 0, quarantined: 0, missing: ranges(&[(3, 3)]) };
    assert_eq!(known.at_head(3), expected);
}

#[test]
fn a_quarantined_report_counts_only_once_its_epoch_is_open() {
    let mut known = ReportAccount::default();
    known.quarantine(epoch(9), &SeqRanges::span(1, 1));
    assert_eq!((known.epoch(), known.head(), known.receipt(0, 0)), (None, 0, None));
    receive(&mut known, (9, 2, 2, &[], "b"));
    assert_eq!(known.at_head(2), Account { received: 1, quarantined: 1, ..Account::default() });
    known.quarantine(epoch(9), &SeqRanges::span(1 << 50, 1 << 50));
    assert_eq!((known.head(), known.receipt(0, 0).unwrap().through), (2, 2));
    known.quarantine(epoch(9), &SeqRanges::span(3, 3));
    assert_eq!(known.receipt(0, 0).unwrap().through, 2, "nothing good has spoken of it");
    assert_eq!(known.receipt(3, 0).unwrap().through, 3);
    assert_eq!(known.at_head(2), Account { received: 1, quarantined: 1, ..Account::default() });
}

#[test]
fn strange_epochs_never_push_out_the_current_one() {
    let mut known = account(&[(5, 1, 1, &[], "a")]);
    (10..30).for_each(|strange| known.quarantine(epoch(strange), &SeqRanges::span(1, 1)));
    (1..4).for_each(|strange| known.quarantine(epoch(strange), &SeqRanges::span(1, 1)));
    assert!(known.pages.len() <= EPOCHS_KEPT);
    assert_eq!(admit(&known, (5, 1, 1, &[], "a")), Admission::Duplicate);
    assert_eq!(known.at_head(1).received, 1);
}

#[test]
fn numbers_whose_facts_have_aged_out_are_learnt_from_a_liveness_fact() {
    let told = Account { received: 90, coalesced: 6, quarantined: 3, missing: ranges(&[(40, 40)]) };
    let mut known = ReportAccount::default();
    known.learn(epoch(5), 100, Some(&told));
    assert_eq!(known.at_head(100), told);
    assert_eq!(admit(&known, (5, 39, 100, &[], "x")), Admission::Duplicate);
    assert_eq!(admit(&known, (5, 40, 100, &[], "x")), Admission::New);
    receive(&mut known, (5, 40, 101, &[], "x"));
    known.learn(epoch(5), 100, Some(&told));
    let expected = Account { received: 91, coalesced: 6, quarantined: 3, missing: ranges(&[(101, 101)]) };
    assert_eq!(known.at_head(101), expected);
}

#[test]
fn a_device_that_scatters_its_numbers_is_refused_until_holes_close() {
    let mut known = ReportAccount::default();
    for number in 0..PIECES_MAX as u64 {
        receive(&mut known, (1, 2 * number + 2, 9_999, &[], "x"));
    }
    assert_eq!(admit(&known, (1, 9_001, 9_999, &[], "y")), Admission::Scattered);
    assert_eq!(admit(&known, (1, 3, 9_999, &[], "y")), Admission::New);
    assert_eq!(admit(&known, (1, 9_001, 9_999, &[(1, 9_000)], "y")), Admission::New);
    let many: Vec<(u64, u64)> = (1..=PIECES_MAX as u64).map(|at| (at * 2, at * 2)).collect();
    assert_eq!(admit(&ReportAccount::default(), (1, 9_001, 9_999, &many, "y")), Admission::Scattered);
}

#[test]
fn a_receipt_covers_held_numbers_and_asks_up_to_a_given_head() {
    let known = account(&[(5, 1, 9, &[], "a"), (5, 4, 9, &[], "d")]);
    let receipt = known.receipt(0, 0).unwrap();
    assert_eq!((receipt.through, &receipt.missing), (4, &ranges(&[(2, 3)])));
    let receipt = known.receipt(0, 9).unwrap();
    assert_eq!((receipt.through, &receipt.missing), (9, &ranges(&[(2, 3), (5, 9)])));
}

#[test]
fn a_receipt_with_too_many_holes_speaks_less_far() {
    let mut known = ReportAccount::default();
    let top = 2 * (RECEIPT_RANGES_MAX as u64 + 10);
    (1..=top)
        .filter(|number| number % 2 == 0)
        .for_each(|number| receive(&mut known, (5, number, top, &[], "x")));
    let receipt = known.receipt(0, 0).unwrap();
    assert_eq!(receipt.missing.len(), RECEIPT_RANGES_MAX);
    assert_eq!(receipt.through, 2 * RECEIPT_RANGES_MAX as u64);
    assert!((1..=receipt.through).all(|number| receipt.covers(number) == (number % 2 == 0)));
}

#[test]
fn the_last_number_there_is_does_no_harm() {
    let last = muster_contract::limits::COUNTER_MAX;
    let mut known = account(&[(last, last, last, &[], "a")]);
    assert_eq!(admit(&known, (last, last, last, &[], "a")), Admission::Duplicate);
    known.quarantine(epoch(last), &SeqRanges::span(last, last));
    assert_eq!(known.at_head(last).missing, ranges(&[(1, last - 1)]));
    assert_eq!(known.receipt(0, last).unwrap().through, last);
}

#[derive(Debug, Clone)]
enum Event {
    Report { number: u64, folded: u64, ahead: u64 },
    Bad(u64),
    Heard(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u64..40, 0u64..5, 0u64..5).prop_map(|(number, folded, ahead)| Event::Report { number, folded, ahead }),
        1 => (1u64..40).prop_map(Event::Bad),
        1 => (1u64..45).prop_map(Event::Heard),
    ]
}

proptest! {
    #[test]
    fn head_is_the_sum_of_its_four_parts_in_any_order_of_events(
        (events, shuffled) in prop::collection::vec(event(), 1..60)
            .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle())),
    ) {
        let run = |events: &[Event]| {
            let mut account = ReportAccount::default();
            for event in events {
                match *event {
                    Event::Report { number, folded, ahead } => {
                        let coalesced = SeqRanges::span(number.saturating_sub(folded).max(1), number - 1);
                        let head = seq(number + ahead);
                        let numbers = Numbers { epoch: epoch(1), seq: seq(number), head, coalesced: &coalesced };
                        match account.admit(numbers, || digest("x")) {
                            // A duplicate's head is accepted, but the duplicate does not count as received.
                            Admission::Duplicate => account.learn(epoch(1), number + ahead, None),
                            _ => account.receive(numbers, digest("x")),
                        }
                    }
                    Event::Bad(number) => account.quarantine(epoch(1), &SeqRanges::span(number, number)),
                    Event::Heard(head) => account.learn(epoch(1), head, None),
                }
                let head = account.head();
                let account = account.at_head(head);
                let sum = account.received + account.coalesced + account.quarantined + account.missing.count();
                prop_assert_eq!(sum, head);
            }
            Ok(account)
        };
        let one = run(&events)?;
        let other = run(&shuffled)?;
        prop_assert_eq!(one.head(), other.head());
        prop_assert_eq!(one.missing(50), other.missing(50));
        let quarantined = |account: &ReportAccount| account.at_head(account.head()).quarantined;
        prop_assert_eq!(quarantined(&one), quarantined(&other));
    }
}
