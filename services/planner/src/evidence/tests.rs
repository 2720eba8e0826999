//! When evidence is of the present, and the time of judgements by it.

use muster_domain::fold::Position;

use super::*;

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(1_000 + at).unwrap()
}

fn pulses(ledger_seq: u64, at: i64) -> LedgerEvent {
    pulses_with(ledger_seq, at, true)
}

fn pulses_with(ledger_seq: u64, at: i64, current: bool) -> LedgerEvent {
    pulses_since(ledger_seq, at, (current, None))
}

/// Pulses, whether they are current, and since when none is.
fn pulses_since(ledger_seq: u64, at: i64, (current, since): (bool, Option<i64>)) -> LedgerEvent {
    let pulse = |partition: u16| -> LedgerFact {
        let position = Position { ledger_seq: ledger_seq + u64::from(partition), stored_at: second(at) };
        let pulse = PulseFact {
            api_version: Default::default(),
            kind: Default::default(),
            owner: "hub/1/a".to_owned(),
            at: second(at),
            lease_seconds: 30,
            current,
            unproven_since: since.map(second),
        };
        (position, Some((LedgerSubject::Hub(partition), Fact::Pulse(pulse))))
    };
    LedgerEvent::Facts((0..PARTITIONS).map(pulse).collect())
}

fn end(last_seq: u64, at: i64, asked_at: Instant) -> LedgerEvent {
    LedgerEvent::End { last_seq, at: second(at), asked_at }
}

#[test]
fn evidence_is_of_the_present_only_while_the_end_of_ledger_is_read() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    let later = |seconds: u64| now + Duration::from_secs(seconds);
    assert_eq!(evidence.check_current(now), Err(Behind::Reading));
    evidence.apply(end(16, 0, now));
    assert_eq!(evidence.check_current(now), Err(Behind::Reading), "nothing is read yet");
    evidence.apply(pulses(1, 0));
    evidence.apply(end(16, 0, now));
    assert_eq!(evidence.check_current(later(5)), Ok(()));
    assert_eq!(evidence.check_current(later(6)), Err(Behind::Late), "LEDGER does not answer any more");
    evidence.apply(end(99, 6, later(6)));
    assert_eq!(evidence.check_current(later(6)), Err(Behind::Late), "LEDGER goes further");
    evidence.apply(LedgerEvent::Through(99));
    assert_eq!(evidence.check_current(later(7)), Ok(()));
}

#[test]
fn without_pulses_nothing_is_decided() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    evidence.apply(pulses(1, 0));
    evidence.apply(end(16, 0, now));
    evidence.apply(end(16, 35, now));
    assert_eq!(evidence.check_current(now), Ok(()));
    evidence.apply(end(16, 36, now));
    assert_eq!(evidence.check_current(now), Err(Behind::NoPulse(0)));
    evidence.apply(pulses(17, 36));
    assert_eq!(evidence.check_current(now), Ok(()));
}

#[test]
fn a_pulse_that_hears_nobody_yet_goes_on_with_a_pulse_and_begins_none() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    evidence.apply(pulses(1, 0));
    evidence.apply(pulses_with(17, 30, false));
    evidence.apply(end(32, 60, now));
    assert_eq!(evidence.check_current(now), Ok(()), "the pulse goes on");
    evidence.apply(pulses_with(33, 70, false));
    evidence.apply(end(48, 70, now));
    assert_eq!(evidence.check_current(now), Err(Behind::NoPulse(0)), "it was over");
    evidence.apply(pulses(49, 71));
    assert_eq!(evidence.check_current(now), Ok(()));

    let mut evidence = Evidence::default();
    evidence.apply(pulses_with(1, 0, false));
    evidence.apply(end(16, 0, now));
    let late = LEASE.as_secs().cast_signed() + 10;
    evidence.apply(pulses_with(17, late, false));
    evidence.apply(end(32, late, now));
    assert_eq!(evidence.check_current(now), Err(Behind::NoPulse(0)), "there was none");
}

#[test]
fn pulses_of_owners_that_never_hear_for_a_lease_are_evidence_for_a_while() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    evidence.apply(pulses(1, 0));
    let last = PulseFact::unproven_max(Duration::from_secs(30)).as_secs().cast_signed();
    for (turn, at) in (10..=last + 10).step_by(10).enumerate() {
        let ledger_seq = u64::from(PARTITIONS) * (turn as u64 + 1) + 1;
        evidence.apply(pulses_since(ledger_seq, at, (false, Some(10))));
        evidence.apply(end(ledger_seq + u64::from(PARTITIONS) - 1, at, now));
        assert_eq!(evidence.check_current(now), Ok(()), "after {at} s");
    }
    evidence.apply(end(1, last + 11, now));
    assert_eq!(evidence.check_current(now), Err(Behind::NoPulse(0)));
}

#[test]
fn a_partition_whose_pulses_are_all_forgotten_has_none() {
    let now = Instant::now();
    for (owned_at, decides) in [(-96, false), (-90, true)] {
        let mut evidence = Evidence::default();
        let owner = LedgerSubject::Owner { partition: 3, fence: 0 };
        let record = serde_json::json!({ "apiVersion": "muster/v1", "kind": "Ownership", "owner": "hub/1/a",
            "claimedAt": second(owned_at), "lanes": 1 });
        let fact = Fact::parse(&owner, record.to_string().as_bytes()).unwrap();
        let at = Position { ledger_seq: 1, stored_at: second(owned_at) };
        evidence.apply(LedgerEvent::Facts(vec![(at, Some((owner, fact)))]));
        evidence.apply(end(1, 0, now));
        let wanted = if decides { Ok(()) } else { Err(Behind::NoPulse(3)) };
        assert_eq!(evidence.check_current(now), wanted, "owned for {owned_at} s");
    }
}

#[test]
fn evidence_becomes_of_the_present_while_ledger_grows() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    evidence.apply(end(16, 0, now));
    evidence.apply(end(99, 1, now));
    evidence.apply(pulses(1, 0));
    assert_eq!(evidence.check_current(now), Ok(()), "the first end is read, though LEDGER is longer now");
}

#[test]
fn the_time_of_a_judgement_is_ahead_of_its_evidence_by_the_bound_at_most() {
    let (mut evidence, now) = (Evidence::default(), Instant::now());
    evidence.apply(pulses(1, 0));
    evidence.apply(end(16, 10, now));
    evidence.apply(end(99, 400, now));
    assert_eq!(evidence.judgement_time(second(14)), second(14));
    assert_eq!(evidence.judgement_time(second(400)), second(15));
}
