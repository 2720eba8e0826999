//! Tests the facts that are published because time passes, and the receipts of devices.

use super::*;

#[test]
fn a_device_is_fresh_while_it_is_heard_and_stale_after_its_lease() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    assert!(hub.states().is_empty(), "its reports may be waiting");
    hub.pass(1);
    hub.live(300, 1, 0);
    assert_eq!(hub.states(), [Liveness::Fresh]);
    hub.pass(90);
    assert_eq!(hub.states(), [Liveness::Fresh]);
    hub.pass(1);
    hub.pass(500);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
    assert_eq!(hub.liveness()[1].last_heard_at, at(1_301));
    hub.beat(1, 0, 0);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale, Liveness::Fresh]);
}

#[test]
fn an_old_report_of_a_new_epoch_never_calls_its_device_stale() {
    let mut hub = Hub::new();
    hub.report(&status(5, 1, 1));
    hub.pass(91);
    hub.restart();
    // UPLINK held the report for more than a lease, and the heartbeats after it are not read yet.
    let payload = status(6, 1, 1).to_string();
    hub.now = at(1_200);
    hub.intake.apply_report(IncomingReport {
        origin: origin("muster.report.3.plant7.press-4").unwrap(),
        parsed: Report::parse(payload.as_bytes()),
        payload: payload.as_bytes(),
        position: 7,
        stored_at: at(1_095),
        now: hub.now,
    });
    hub.arrive();
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
    hub.beat(6, 1, 0);
    let newest = hub.liveness().last().map(|fact| (fact.state, fact.epoch));
    assert_eq!(newest, Some((Liveness::Fresh, epoch(6))));
}

#[test]
fn a_report_makes_a_device_fresh_like_a_heartbeat() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    hub.pass(91);
    hub.report(&status(1, 2, 2));
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale, Liveness::Fresh]);
}

#[test]
fn a_restart_or_a_hub_that_receives_nothing_makes_no_device_stale() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.pass(1);
    // An hour later another process starts, and the device is heard 80 s after that.
    hub.now = at(5_000);
    hub.restart();
    hub.pass(80);
    hub.beat(1, 0, 0);
    assert_eq!(hub.states(), [Liveness::Fresh]);
    // The hub receives nothing for ten minutes.
    hub.now = at(6_000);
    hub.intake.resume_receiving(hub.now);
    hub.pass(90);
    assert_eq!(hub.states(), [Liveness::Fresh]);
    hub.pass(1);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
}

#[test]
fn a_republished_liveness_fact_accounts_for_facts_that_aged_out() {
    let mut hub = Hub::new();
    (1..=5).for_each(|number| _ = hub.report(&status(1, number, 5)));
    hub.pass(1);
    let day = 24 * 60 * 60;
    for _ in 0..40 {
        hub.beat(1, 5, 0);
        hub.pass(day);
        hub.beat(1, 5, 0);
    }
    let told = hub.liveness().len();
    assert!((40 / 7..90).contains(&told), "{told}");
    // LEDGER keeps 30 days.
    let horizon = at(hub.now.as_second() - 30 * day);
    hub.ledger.retain(|(_, _, at)| *at >= horizon);
    assert!(hub.statuses().is_empty());
    hub.restart();
    assert_eq!(hub.report(&status(1, 3, 5)), Outcome::Duplicate);
    assert_eq!(hub.receipt(), Some((5, String::new())));
}

#[test]
fn an_unchanged_device_is_republished_before_ledger_discards_it() {
    for beats in [true, false] {
        let mut hub = Hub::new();
        hub.beat(1, 0, 0);
        hub.pass(1);
        for _ in 0..30 * 24 * 60 {
            hub.now = at(hub.now.as_second() + 60);
            if beats {
                hub.beat(1, 0, 0);
            }
            hub.intake.tick(hub.now, Watermarks::all(hub.now));
            hub.arrive();
        }
        let states = hub.states();
        let last = if beats { Liveness::Fresh } else { Liveness::Stale };
        assert_eq!((states.len(), states.last()), (if beats { 5 } else { 6 }, Some(&last)));
    }
}

#[test]
fn a_backlog_is_published_when_it_appears_and_when_it_has_drained() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    hub.pass(1);
    let lacking = |hub: &Hub| -> Vec<u64> {
        hub.liveness().iter().map(|fact| fact.account.as_ref().unwrap().missing.count()).collect()
    };
    assert_eq!(lacking(&hub), [1, 0]);
    hub.beat(1, 40, 39);
    assert_eq!(lacking(&hub), [1, 0, 39], "the heartbeat names it");
    (2..=39).for_each(|number| _ = hub.report(&status(1, number, 40)));
    hub.pass(1);
    assert_eq!(lacking(&hub).len(), 3);
    hub.report(&status(1, 40, 40));
    hub.pass(1);
    assert_eq!(lacking(&hub), [1, 0, 39, 0]);
    // A heartbeat that overtakes a report in flight is no backlog.
    hub.beat(1, 41, 0);
    hub.pass(1);
    hub.report(&status(1, 41, 41));
    hub.pass(1);
    assert_eq!(lacking(&hub).len(), 4);
    hub.beat(1, 42, 0);
    (0..3).for_each(|_| hub.pass(1));
    assert_eq!(lacking(&hub), [1, 0, 39, 0, 1]);
    let told = hub.liveness()[4].clone();
    assert_eq!((told.head, told.account.unwrap().received), (42, 41));
}

#[test]
fn missing_numbers_are_requested_and_become_a_gap_if_none_comes() {
    let mut hub = Hub::new();
    hub.report(&status(1, 9, 9));
    // A replay under way: the newest first, then the others, slowly.
    for number in 1..=5 {
        hub.live(50, 1, 9);
        hub.report(&status(1, number, 9));
    }
    assert!(hub.incidents().is_empty());
    hub.live(60, 1, 9);
    hub.live(300, 1, 9);
    let missing: SeqRanges = vec![(6, 8)].try_into().unwrap();
    assert_eq!(hub.incidents(), [&IncidentKind::Gap { epoch: epoch(1), missing }], "once");
    hub.restart();
    hub.live(300, 1, 9);
    assert_eq!(hub.incidents().len(), 1, "also after a restart");
    assert_eq!(hub.receipt(), Some((9, "6-8".to_owned())));
    (6..=8).for_each(|number| _ = hub.report(&status(1, number, 9)));
    hub.pass(1);
    assert_eq!(hub.incidents()[1], &IncidentKind::GapClosed { epoch: epoch(1), through: 9 });
    hub.live(100, 1, 9);
    assert_eq!(hub.incidents().len(), 2);
}

#[test]
fn a_device_that_sent_all_its_reports_is_asked_for_missing_ones() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    assert_eq!(hub.receipt(), Some((1, String::new())));
    hub.live(40, 1, 3);
    assert_eq!(hub.receipt(), Some((3, "2-3".to_owned())));
    hub.live(20, 1, 3);
    assert_eq!(hub.receipt(), None, "not all the time");
    hub.live(20, 1, 3);
    assert_eq!(hub.receipt(), Some((3, "2-3".to_owned())));
}

#[test]
fn receipts_cover_what_ledger_holds_at_most_once_a_second() {
    let mut hub = Hub::new();
    hub.send(status(1, 1, 2).to_string().as_bytes(), "muster.report.3.plant7.press-4");
    assert_eq!(hub.receipt(), None, "nothing is in LEDGER yet");
    hub.arrive();
    assert_eq!(hub.receipt(), Some((1, String::new())));
    hub.report(&status(1, 2, 2));
    assert_eq!(hub.receipt(), None);
    hub.now = at(1_001);
    assert_eq!(hub.receipt(), Some((2, String::new())));
    hub.report(&status(1, 2, 2));
    hub.now = at(1_002);
    assert_eq!(hub.receipt(), Some((2, String::new())), "a duplicate is answered");
    hub.intake.receipt_lost(&press());
    hub.now = at(1_003);
    assert_eq!(hub.receipt(), Some((2, String::new())));
    hub.restart();
    assert_eq!(hub.receipt(), None);
    hub.beat(1, 2, 0);
    assert_eq!(hub.receipt(), Some((2, String::new())), "the last one may have been lost with the process");
    hub.now = at(1_060);
    hub.beat(1, 2, 0);
    assert_eq!(hub.receipt(), None);
}

#[test]
fn the_answer_to_one_receipt_in_flight_says_nothing_of_another() {
    for (answered, owed) in [(0, 1), (1, 1), (2, 0)] {
        let mut hub = Hub::new();
        hub.report(&status(1, 1, 2));
        assert_eq!(hub.receipt(), Some((1, String::new())));
        hub.now = at(1_001);
        hub.report(&status(1, 2, 2));
        assert_eq!(hub.receipt(), Some((2, String::new())));
        (0..answered).for_each(|_| hub.intake.receipt_stored(&press()));
        hub.intake.rewind();
        assert_eq!(hub.intake.receipts_owed(), owed, "{answered} of two were answered");
        // Later answers have no effect.
        hub.intake.receipt_stored(&press());
        assert_eq!(hub.intake.receipts_owed(), owed);
    }
}

#[test]
fn a_deployment_without_start_or_end_is_overdue_once_a_generation() {
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.live(50, 1, 0);
    let deadlines = |hub: &Hub| -> Vec<(DeadlineKind, u64, i64)> {
        hub.facts(|fact| if let Fact::Deadline(fact) = fact { Some(fact) } else { None })
            .iter()
            .map(|fact| (fact.deadline, fact.generation.get(), fact.since.as_second()))
            .collect()
    };
    assert_eq!(deadlines(&hub), []);
    hub.live(300, 1, 0);
    assert_eq!(deadlines(&hub), [(DeadlineKind::NeverStarted, 3, 1_000)]);
    hub.restart();
    hub.intake.apply_desired(&press(), &desired(3, false), at(1_000));
    hub.live(300, 1, 0);
    assert_eq!(deadlines(&hub).len(), 1, "once");
    let begun = hub.now.as_second();
    hub.report(&status(1, 1, 1));
    hub.live(300, 1, 1);
    assert_eq!(
        deadlines(&hub)[1..],
        [(DeadlineKind::Stuck, 3, begun)],
        "it began, and then its own time passed"
    );
    let set_at = hub.now.as_second();
    hub.intake.apply_desired(&press(), &desired(4, false), hub.now);
    let another = json!(format!("sha256:{}", "1".repeat(64)));
    let installing = with(with(status(1, 2, 2), "generation", json!(4)), "digest", another);
    hub.live(30, 1, 1);
    hub.report(&installing);
    hub.live(90, 1, 2);
    assert_eq!(deadlines(&hub)[2], (DeadlineKind::Stuck, 4, set_at + 30));
    hub.intake.apply_desired(&press(), &desired(5, false), hub.now);
    let mut installed = with(status(1, 3, 3), "generation", json!(5));
    installed["status"]["state"] = json!(State::Installed);
    installed["components"][0]["state"] = json!(State::Installed);
    hub.report(&installed);
    hub.live(300, 1, 3);
    assert_eq!(deadlines(&hub).len(), 3);
}

#[test]
fn no_deadline_passes_on_a_stale_device_or_while_reports_wait() {
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired(3, false), hub.now);
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.pass(100);
    hub.pass(1_000);
    hub.beat(1, 0, 0);
    hub.pass(40);
    hub.now = at(hub.now.as_second() + 30);
    hub.intake.tick(hub.now, Watermarks::all(at(1_000 - 1)));
    hub.arrive();
    assert!(hub.facts(|fact| matches!(fact, Fact::Deadline(_)).then_some(())).is_empty());
    hub.pass(0);
    assert_eq!(hub.facts(|fact| matches!(fact, Fact::Deadline(_)).then_some(())).len(), 1);
}

#[test]
fn a_retired_device_that_is_heard_is_an_incident_once() {
    let mut hub = Hub::new();
    hub.beat(1, 0, 0);
    hub.intake.apply_desired(&press(), &desired(7, true), hub.now);
    hub.beat(1, 0, 0);
    assert!(hub.incidents().is_empty(), "it was heard before");
    hub.live(100, 1, 0);
    hub.restart();
    hub.intake.apply_desired(&press(), &desired(7, true), at(1_000));
    hub.live(100, 1, 0);
    let generation = muster_contract::Generation::new(7).unwrap();
    assert_eq!(hub.incidents(), [&IncidentKind::RetiredButAlive { generation }]);
}

#[test]
fn a_clock_that_is_off_is_an_incident_once_until_it_is_right_again() {
    let mut hub = Hub::new();
    let observed = |second: i64, number: u64| {
        with(status(1, number, number), "observedAt", json!(at(second).to_string()))
    };
    hub.report(&observed(1_000, 1));
    hub.live(10, 1, 1);
    hub.report(&observed(2_000, 2));
    hub.live(10, 1, 2);
    hub.report(&observed(2_000, 3));
    assert_eq!(hub.incidents(), [&IncidentKind::ClockSkew { seconds: 990 }]);
    hub.live(10, 1, 3);
    hub.report(&observed(1_030, 4));
    hub.live(10, 1, 4);
    hub.report(&observed(100, 5));
    assert_eq!(hub.incidents().last(), Some(&&IncidentKind::ClockSkew { seconds: -940 }));
}

#[test]
fn a_lease_can_be_configured() {
    let rules = Rules { lease: Duration::from_secs(5), ..Rules::default() };
    let mut hub = Hub { intake: IntakeState::new(rules, at(1_000)), ..Hub::new() };
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.pass(5);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
}

#[test]
fn a_hub_whose_clock_is_set_back_still_notices_silence_and_sends_receipts() {
    let mut hub = Hub::new();
    hub.report(&status(1, 1, 1));
    hub.live(100, 1, 1);
    assert!(hub.receipt().is_some());
    hub.now = at(hub.now.as_second() - 600);
    hub.intake.resume_receiving(hub.now);
    hub.report(&status(1, 2, 2));
    // Received again from before the step: its time is in the future now.
    hub.intake.record_contact(&press(), at(hub.now.as_second() + 500), hub.now);
    hub.pass(2);
    assert_eq!(hub.receipt(), Some((2, String::new())));
    hub.pass(100);
    assert_eq!(hub.liveness().last().unwrap().state, Liveness::Stale);
}
