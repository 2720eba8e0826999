//! Tests the event-time fold case by case: late reports, missing numbers, messages in quarantine, and
//! operators' decisions on them.

use crate::ledger::{Ledger, Said, stored_at};
use crate::moments::{at_event_time, up_to};
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::view::Verdict;
use muster_contract::{DeploymentId, SeqRanges, State};

const INSTALLING: &[(&str, State)] = &[("main", State::Installing)];
const INSTALLED: &[(&str, State)] = &[("main", State::Installed)];

/// A report of a number, observed at a second, whenever it comes.
fn report(
    ledger: &mut Ledger,
    seq: u64,
    components: &[(&str, State)],
    observed: u64,
    coalesced: &[(u64, u64)],
) {
    ledger.status("north/a", "web", &Said { seq, components, coalesced, ..Said::default() });
    let Some(Fact::Status(fact)) = ledger.entries.last_mut().map(|entry| &mut entry.fact) else { panic!() };
    fact.observed_at = stored_at(observed);
}

fn web() -> DeploymentId {
    "web".parse().unwrap()
}

#[test]
fn a_backlog_adds_to_a_moment_reports_that_came_later() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    report(&mut ledger, 1, INSTALLING, 3, &[]);
    ledger.stale("north/a", 1, 1);
    for _ in 0..6 {
        ledger.stale("north/b", 1, 0);
    }
    // Installed at second 6, silent until second 11.
    report(&mut ledger, 2, INSTALLED, 6, &[]);
    let moment = stored_at(8);
    assert_eq!(
        up_to(&ledger, 8).deployment_view(&web()).unwrap().verdict,
        Verdict::Waiting,
        "as known then: at work, and silent"
    );
    let (fleet, rests) = at_event_time(&ledger, moment);
    let view = fleet.deployment_view(&web()).unwrap();
    assert_eq!(
        (view.verdict, rests.late_reports),
        (Verdict::ConvergedStale, 1),
        "and silent, as the hub knew it"
    );
    assert_eq!((rests.known_then.ledger_seq, view.as_of.ledger_seq), (8, 11));

    let (fleet, _) = at_event_time(&ledger, stored_at(5));
    assert_eq!(
        fleet.deployment_view(&web()).unwrap().verdict,
        Verdict::Waiting,
        "not before it was observed"
    );
}

#[test]
fn a_number_possibly_assigned_by_a_moment_and_absent_is_missing() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    report(&mut ledger, 1, INSTALLED, 3, &[]);
    for _ in 0..8 {
        ledger.stale("north/b", 1, 0);
    }
    report(&mut ledger, 4, INSTALLED, 20, &[]);
    // 2 and 3 may be of before or after second 10.
    let of = |ledger: &Ledger| {
        let view = at_event_time(ledger, stored_at(10)).0.deployment_view(&web()).unwrap();
        (view.verdict, view.complete.missing_reports)
    };
    assert_eq!(of(&ledger), (Verdict::Incomplete, 2));
    let before = ledger.clone();
    report(&mut ledger, 2, INSTALLED, 12, &[]);
    assert_eq!(of(&ledger), (Verdict::Converged, 0), "2 was observed later, so 3 was as well");

    // A number that was folded into a later report may have been another state.
    let mut ledger = Ledger { entries: before.entries[..11].to_vec() };
    report(&mut ledger, 3, INSTALLED, 20, &[(2, 2)]);
    assert_eq!(of(&ledger), (Verdict::Incomplete, 1));
}

/// A target that is installed by report 1, a moment at second 10, and what LEDGER stored after it.
fn after_second_10(later: impl Fn(&mut Ledger)) -> (Verdict, u64) {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    report(&mut ledger, 1, INSTALLED, 3, &[]);
    for _ in 0..7 {
        ledger.stale("north/b", 1, 0);
    }
    later(&mut ledger);
    let view = at_event_time(&ledger, stored_at(10)).0.deployment_view(&web()).unwrap();
    (view.verdict, view.complete.missing_reports)
}

#[test]
fn a_possible_number_quarantined_later_makes_a_moment_uncertain() {
    const KNOWN: (Verdict, u64) = (Verdict::Converged, 0);
    const DOUBT: (Verdict, u64) = (Verdict::Incomplete, 0);
    let bad = |ledger: &mut Ledger| _ = ledger.quarantine("north/a", Some((1, 2)));
    assert_eq!(after_second_10(|_| {}), KNOWN);
    assert_eq!(after_second_10(bad), DOUBT, "nobody has spoken of 2, and it may be anything");
    let spoken_of = |ledger: &mut Ledger| {
        bad(ledger);
        ledger.beat("north/a", 1, 2);
    };
    assert_eq!(after_second_10(spoken_of), DOUBT, "2 was given, and may have been by then");
    let bogus = |ledger: &mut Ledger| {
        bad(ledger);
        ledger.beat("north/a", 1, 1);
    };
    assert_eq!(after_second_10(bogus), KNOWN, "2 was not given");
    let beside = |seq, observed| {
        after_second_10(move |ledger| {
            bad(ledger);
            report(ledger, seq, INSTALLED, observed, &[]);
        })
    };
    assert_eq!(beside(3, 20), DOUBT, "3 was observed later, 2 may be of before");
    assert_eq!(beside(3, 9), KNOWN, "what 3 says holds whatever 2 said");
    assert_eq!(beside(2, 20), KNOWN, "2 came again, and was observed later");
    // In a flood, one fact covers several messages.
    let flood = |ledger: &mut Ledger| {
        ledger.quarantine_sum("north/a", Some((1, 4)), SeqRanges::span(2, 2));
        report(ledger, 3, INSTALLED, 20, &[]);
    };
    assert_eq!(after_second_10(flood), DOUBT, "4 was given later, 2 may have been before");
    let later = |ledger: &mut Ledger| {
        report(ledger, 2, INSTALLED, 20, &[]);
        ledger.quarantine_sum("north/a", Some((1, 4)), SeqRanges::span(3, 3));
    };
    assert_eq!(after_second_10(later), KNOWN, "both were given later");
}

#[test]
fn an_unnumbered_message_makes_a_moment_uncertain_until_a_heartbeat() {
    const KNOWN: (Verdict, u64) = (Verdict::Converged, 0);
    let unnumbered = |ledger: &mut Ledger| _ = ledger.quarantine("north/a", None);
    assert_eq!(after_second_10(unnumbered), (Verdict::Incomplete, 0));
    let said = |head| {
        after_second_10(move |ledger| {
            unnumbered(ledger);
            ledger.beat("north/a", 1, head);
        })
    };
    assert_eq!(said(1), KNOWN);
    assert_eq!(said(2), (Verdict::Incomplete, 1), "then it is one that is missing");
    let next = |ledger: &mut Ledger| {
        unnumbered(ledger);
        report(ledger, 2, INSTALLED, 20, &[]);
    };
    assert_eq!(after_second_10(next), KNOWN, "everything below the first later number is in");
}

#[test]
fn a_verdict_given_later_ends_the_doubt_about_a_moment() {
    for number in [Some((1, 2)), None] {
        let dropped = |ledger: &mut Ledger| {
            let received_at = ledger.next_at();
            ledger.quarantine("north/a", number).dropped("north/a", number, received_at);
            if number.is_some() {
                ledger.beat("north/a", 1, 2);
            }
        };
        assert_eq!(after_second_10(dropped), (Verdict::Converged, 0), "{number:?}");
    }
    // In quarantine by the moment already, and dropped after it.
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    report(&mut ledger, 1, INSTALLED, 3, &[]);
    let received_at = ledger.next_at();
    ledger.quarantine("north/a", None);
    let verdict =
        |ledger: &Ledger| at_event_time(ledger, stored_at(4)).0.deployment_view(&web()).unwrap().verdict;
    assert_eq!(verdict(&ledger), Verdict::Incomplete);
    ledger.dropped("north/a", None, received_at);
    assert_eq!(verdict(&ledger), Verdict::Converged);
}

#[test]
fn an_epoch_that_may_have_begun_by_a_moment_leaves_it_unknown() {
    let of = |seq, observed: u64| {
        after_second_10(move |ledger| {
            ledger.quarantine("north/a", Some((2, 1))).beat("north/a", 2, seq);
            ledger.status("north/a", "web", &Said { epoch: 2, seq, ..Said::default() });
            let Some(Fact::Status(fact)) = ledger.entries.last_mut().map(|entry| &mut entry.fact) else {
                panic!()
            };
            fact.observed_at = stored_at(observed);
        })
    };
    assert_eq!(of(2, 20), (Verdict::Incomplete, 0), "2 was observed later, 1 is in quarantine");
    let other = |ledger: &mut Ledger| {
        report(ledger, 2, INSTALLED, 20, &[]);
        ledger.quarantine("north/a", Some((2, 1))).beat("north/a", 2, 1);
    };
    assert_eq!(after_second_10(other), (Verdict::Converged, 0), "the old epoch went on after the moment");
}

#[test]
fn a_wrong_clock_is_declared() {
    let mut ledger = Ledger::default();
    ledger
        .desired("north/a", 1, &[("web", 1)])
        .incident("north/a", IncidentKind::ClockSkew { seconds: -900 });
    ledger.incident("south/b", IncidentKind::ClockSkew { seconds: 400 });
    for moment in [1, 3] {
        let (_, rests) = at_event_time(&ledger, stored_at(moment));
        assert_eq!((rests.skewed.count, rests.skew_seconds), (2, 900), "found by now, whenever");
    }
}
