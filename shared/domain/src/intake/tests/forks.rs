//! Tests numbers that come with two contents, one of which is rejected and waits in quarantine.

use muster_contract::quarantine::QuarantineDecision;

use super::*;

const SUBJECT: &str = "muster.report.3.plant7.press-4";

/// A report that cannot be read.
fn unreadable() -> Value {
    with(status(1, 1, 2), "status", json!({"state": "exploded"}))
}

/// A report whose state is not what its components make it.
fn inconsistent() -> Value {
    with(status(1, 1, 2), "status", json!({"state": "installed"}))
}

fn forks(hub: &Hub) -> Vec<&IncidentKind> {
    let is_fork = |what: &&IncidentKind| matches!(what, IncidentKind::SequenceFork { .. });
    hub.incidents().into_iter().filter(is_fork).collect()
}

fn at_later(report: Value) -> Value {
    with(report, "observedAt", json!(at(1_001).to_string()))
}

/// A report of more bytes than a fact shows of it.
fn long(report: Value) -> Value {
    with(report, "zzz", json!("z".repeat(2_000)))
}

#[test]
fn a_good_report_is_a_fork_of_a_rejected_one_with_its_number() {
    let good = status(1, 1, 2);
    let table = [unreadable(), inconsistent(), at_later(unreadable()), long(at_later(unreadable()))];
    for bad in table {
        for restarts in [false, true] {
            let mut hub = Hub::new();
            assert_eq!(hub.report(&bad), Outcome::Quarantined);
            if restarts {
                hub.restart();
            }
            assert_eq!(hub.report(&good), Outcome::New, "the good one counts");
            let found = forks(&hub);
            assert!(
                matches!(found[..], [IncidentKind::SequenceFork { epoch, seq, held, other }]
                    if (epoch.get(), seq.get()) == (1, 1) && held != other),
                "{bad} {found:?}"
            );
            assert_eq!(hub.report(&good), Outcome::Duplicate);
            assert_eq!((forks(&hub).len(), hub.statuses().len(), hub.rejected.len()), (1, 1, 1));
            // The rejected one waits for a person, and cannot replace the good one.
            let held = hub.rejected[0].clone();
            let now = hub.now;
            hub.intake.requeue(quarantined(Some(&press()), &held, 1), VerdictRequest::default(), now);
            hub.arrive();
            let decision = hub.intake.next_decision().unwrap();
            assert!(decision.result.is_err(), "{decision:?}");
        }
    }
}

#[test]
fn a_report_rejected_after_a_good_one_of_its_number_is_a_fork() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&status(1, 1, 2)), Outcome::New);
    for _ in 0..2 {
        hub.report(&inconsistent());
        hub.report(&status(1, 1, 2));
        assert_eq!((forks(&hub).len(), hub.statuses().len(), hub.rejected.len()), (1, 1, 1));
        hub.restart();
    }
}

#[test]
fn a_good_report_that_overtakes_the_answer_of_quarantine_is_a_fork() {
    let mut hub = Hub::new();
    let send = |hub: &mut Hub, report: &Value| {
        let payload = report.to_string();
        let arrival = IncomingReport {
            origin: origin(SUBJECT).unwrap(),
            parsed: Report::parse(payload.as_bytes()),
            payload: payload.as_bytes(),
            position: 1,
            stored_at: hub.now,
            now: hub.now,
        };
        hub.intake.apply_report(arrival)
    };
    assert_eq!(send(&mut hub, &inconsistent()), Outcome::Storing);
    assert_eq!(send(&mut hub, &status(1, 1, 2)), Outcome::New);
    hub.store_rejected();
    hub.arrive();
    assert_eq!((forks(&hub).len(), hub.statuses().len(), hub.rejected.len()), (1, 1, 1));
}

#[test]
fn the_same_report_is_no_fork_once_the_hub_can_accept_it() {
    // A device with a document may not report what it was never sent.
    for report in [status(1, 1, 2), long(status(1, 1, 2))] {
        let mut hub = Hub::new();
        let other = with(report.clone(), "deployment", json!("api"));
        hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
        assert_eq!(hub.report(&other), Outcome::Quarantined, "{:?}", hub.quarantine());
        let sent = ["api".parse().unwrap()];
        hub.intake.record_sent(&press(), sent.iter(), hub.now);
        // It comes again, sent later.
        let again = with(with(other, "head", json!(3)), "current", json!(false));
        assert_eq!(hub.report(&again), Outcome::New);
        assert_eq!((forks(&hub).len(), hub.quarantine().len()), (0, 1));
    }
}

#[test]
fn a_requeued_report_is_no_fork_of_itself() {
    let mut hub = Hub::new();
    hub.report(&inconsistent());
    // As an ingest of a later release reads it.
    let payload = RejectedReport::encode_payload(status(1, 1, 2).to_string().as_bytes());
    let mended = RejectedReport { payload_base64: payload, ..hub.rejected[0].clone() };
    let now = hub.now;
    hub.intake.requeue(quarantined(Some(&press()), &mended, 1), VerdictRequest::default(), now);
    hub.arrive();
    assert_eq!(hub.intake.next_decision().unwrap().result, Ok(QuarantineDecision::LetIn));
    assert_eq!(forks(&hub).len(), 0);
}

#[test]
fn a_requeue_keeps_a_forks_other_content_after_the_first_is_forgotten() {
    let mut hub = Hub::new();
    hub.report(&unreadable());
    hub.report(&status(1, 1, 2));
    (2..100).for_each(|number| _ = hub.report(&status(1, number, 100)));
    // As an ingest of a later release reads it.
    let payload = RejectedReport::encode_payload(at_later(status(1, 1, 2)).to_string().as_bytes());
    let mended = RejectedReport { payload_base64: payload, ..hub.rejected[0].clone() };
    for restarts in [false, true] {
        if restarts {
            hub.restart();
        }
        let now = hub.now;
        hub.intake.requeue(quarantined(Some(&press()), &mended, 1), VerdictRequest::default(), now);
        hub.arrive();
        let decision = hub.intake.next_decision().unwrap();
        assert!(decision.result.as_ref().is_err_and(|words| words.contains("two contents")), "{decision:?}");
    }
}

#[test]
fn a_second_rejected_content_of_a_number_is_kept_and_a_fork() {
    let contents = [inconsistent(), at_later(unreadable()), long(at_later(inconsistent()))];
    for restarts in [false, true] {
        let mut hub = Hub::new();
        assert_eq!(hub.report(&unreadable()), Outcome::Quarantined);
        for (index, other) in contents.iter().enumerate() {
            if restarts {
                hub.restart();
            }
            hub.pass(1);
            assert_eq!(hub.report(other), Outcome::Quarantined, "{other}");
            assert_eq!(
                hub.report(&with(other.clone(), "head", json!(9))),
                Outcome::Repeated,
                "sent again, later"
            );
            assert_eq!((hub.rejected.len(), forks(&hub).len()), (index + 2, index + 1));
        }
        assert_eq!(hub.report(&unreadable()), Outcome::Repeated);
        assert_eq!((hub.rejected.len(), forks(&hub).len()), (4, 3));
    }
}

#[test]
fn a_second_rejected_content_is_kept_though_a_batch_has_its_number_only() {
    let number = |seq: u64, generation: u64| {
        let report = with(status(1, seq, 40), "generation", json!(generation));
        with(report, "status", json!({"state": "installed"}))
    };
    let mut hub = Hub::new();
    (1..=30).for_each(|seq| _ = hub.report(&number(seq, 3)));
    assert_eq!(hub.rejected.len(), 30);
    assert_eq!(hub.report(&number(25, 4)), Outcome::Repeated, "its number waits in a batch");
    hub.pass(BATCH_EVERY.as_secs() as i64);
    assert_eq!(hub.report(&number(26, 4)), Outcome::Repeated, "LEDGER has its number in a batch");
    hub.restart();
    assert_eq!(hub.report(&number(27, 4)), Outcome::Repeated);
    let facts = hub.quarantine().len();
    (1..=30).for_each(|seq| assert_eq!(hub.report(&number(seq, 3)), Outcome::Repeated));
    assert_eq!((hub.rejected.len(), hub.quarantine().len()), (33, facts), "each content is kept once");
}

#[test]
fn a_second_content_that_finds_no_room_is_counted_as_not_kept() {
    let mut hub = Hub::new();
    hub.report(&unreadable());
    hub.no_room = Some(NotStored::Full);
    assert_eq!(hub.report(&inconsistent()), Outcome::Quarantined);
    assert_eq!(hub.quarantine().iter().map(|fact| fact.not_kept).sum::<u64>(), 1);
}

#[test]
fn a_report_after_its_rejected_one_was_dropped_is_no_fork() {
    let mut hub = Hub::new();
    hub.report(&unreadable());
    let held = hub.rejected[0].clone();
    hub.intake.drop_rejected(quarantined(Some(&press()), &held, 1), VerdictRequest::default(), hub.now);
    hub.arrive();
    assert_eq!(hub.report(&status(1, 1, 2)), Outcome::New);
    assert_eq!(forks(&hub).len(), 0);
}

#[test]
fn a_flood_of_forks_of_one_number_makes_a_bounded_number_of_incidents() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    (2..100)
        .for_each(|generation| _ = hub.report(&with(status(1, 1, 1), "generation", json!(generation + 2))));
    hub.pass(BATCH_EVERY.as_secs() as i64);
    assert_eq!(forks(&hub).len(), FACTS_PER_MINUTE as usize);
}

#[test]
fn one_number_with_two_contents_is_a_fork_kept_once() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    let other = with(status(1, 1, 1), "generation", json!(4));
    assert_eq!(hub.report(&other), Outcome::Quarantined);
    assert_eq!(hub.report(&other), Outcome::Repeated);
    hub.restart();
    assert_eq!(hub.report(&other), Outcome::Repeated);
    assert_eq!(hub.report(&with(status(1, 1, 1), "generation", json!(5))), Outcome::Quarantined);
    assert_eq!(hub.statuses().len(), 1);
    assert_eq!(hub.incidents().len(), 2);
    assert!(matches!(hub.incidents()[0], IncidentKind::SequenceFork { epoch, seq, held, other }
        if (epoch.get(), seq.get()) == (1, 1) && held != other));
    assert_eq!(hub.receipt(), Some((1, String::new())));
}
