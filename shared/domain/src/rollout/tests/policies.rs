//! Each policy of a rollout by name: devices that are not heard, budgets, windows and deadlines.

use muster_contract::fact::DeadlineKind;
use muster_contract::rollout::{RolloutDecision, WaitsFor};
use muster_contract::view::{Freshness, Standing};
use serde_json::{Value, json};

use super::*;

/// The state of a wave of three released devices, of which the first was never heard and the second not for a minute, an hour
/// after the wave began.
fn of_silent_devices(offline: Value, third: Evidence) -> RolloutState {
    let wave = json!({ "name": "canary", "percent": "100%", "maxInFlight": 3, "offline": offline, "failure": { "atMost": 1 } });
    let rollout = rollout(json!([wave]));
    let (keys, labels) = (keys(3), Labels::new());
    let since = [Some(Timestamp::MIN), Some(Timestamp::constant(3540, 0)), None];
    let targets: Vec<_> = keys
        .iter()
        .zip(since)
        .map(|(key, silent_since)| Target {
            key,
            labels: &labels,
            is_released: true,
            evidence: if silent_since.is_some() { Evidence::Unknown } else { third },
            has_begun: false,
            silent_since,
            released_at: None,
            is_refused: false,
        })
        .collect();
    let begin = RolloutDecision {
        wave: "canary".parse().ok(),
        ..RolloutDecision::new(RolloutVerb::Begin, Timestamp::UNIX_EPOCH)
    };
    let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
    record.decide(begin, &rollout.approvals).unwrap();
    state(&rollout, &id("v2"), Some(&record), &targets, &[], Timestamp::constant(3600, 0))
}

#[test]
fn a_silent_device_becomes_debt_after_a_time_and_up_to_a_number_only() {
    let confirmed = Evidence::Confirmed(Timestamp::UNIX_EPOCH);
    let gate_and_debt = |offline: Value, third| {
        let state = of_silent_devices(offline, third);
        (state.waves[0].gate, state.waves[0].tally.debt)
    };
    assert_eq!(gate_and_debt(json!("wait"), confirmed), (Gate::Shut, 0));
    let debt = |after: &str, max| json!({ "debt": { "after": after, "max": max } });
    assert_eq!(
        gate_and_debt(debt("61m", 9), confirmed),
        (Gate::Shut, 0),
        "silence counts from the begin of the wave"
    );
    assert_eq!(
        gate_and_debt(debt("60m", 9), confirmed),
        (Gate::Shut, 1),
        "the other one is silent for a minute"
    );
    assert_eq!(gate_and_debt(debt("1m", 9), confirmed), (Gate::Open, 2));
    assert_eq!(gate_and_debt(debt("1m", 1), confirmed), (Gate::Shut, 1), "debt has a limit");
    let state = of_silent_devices(debt("1m", 9), Evidence::Unknown);
    assert_eq!(
        (state.waves[0].gate, state.waves[0].tally.in_flight()),
        (Gate::Shut, 1),
        "debt is no evidence"
    );
}

#[test]
fn a_silent_device_counts_as_failed_after_a_time_where_the_wave_says_so() {
    let of = |after: &str| {
        let state = of_silent_devices(json!({ "fail": { "after": after } }), Evidence::Unknown);
        (state.waves[0].tally.failed, state.step)
    };
    assert_eq!(of("61m").0, 0);
    assert_eq!(of("60m").0, 1);
    let failed = Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Pause };
    assert_eq!(of("1m"), (2, failed));
}

#[test]
fn a_wave_of_debt_alone_never_opens_its_gate() {
    let tally = Tally { targets: 2, released: 2, debt: 2, ..Tally::default() };
    assert_eq!(gate::judge(None, &tally), Gate::Shut);
}

#[test]
fn a_budget_bounds_unavailable_devices_of_each_group() {
    let document = json!({
        "apiVersion": "muster/v1",
        "kind": "Rollout",
        "waves": [{ "name": "all", "percent": "100%", "failure": { "atMost": 9 }, "success": { "atLeast": "1%" } }],
        "budget": { "groupBy": "line", "maxUnavailable": 2 },
    });
    let rollout: Rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
    let line = |name: &str| -> Labels { serde_json::from_value(json!({ "line": name })).unwrap() };
    let (keys, labels) = (keys(8), [line("a"), line("b"), Labels::new()]);
    let target =
        |at: usize, group: usize, (is_released, evidence): (bool, Evidence), is_silent: bool| Target {
            key: &keys[at],
            labels: &labels[group],
            is_released,
            evidence,
            has_begun: false,
            silent_since: is_silent.then_some(Timestamp::MIN),
            released_at: None,
            is_refused: false,
        };
    let step = |targets: &[Target<'_>]| state(&rollout, &id("v2"), None, targets, &[], NOW).step;
    let mut targets = vec![
        target(0, 0, FAILED, false),
        target(1, 0, WAITING, false),
        target(2, 0, WAITING, false),
        target(3, 1, WAITING, true),
        target(4, 1, DARK, true),
        target(5, 1, WAITING, false),
        target(6, 2, CONFIRMED, false),
        target(7, 2, WAITING, false),
    ];
    // Line a has one that failed, line b one that is silent and one in flight; a silent device takes no further place.
    assert_eq!(step(&targets), release(0, &[1, 3, 7]));
    targets[1].is_released = true;
    targets[3].is_released = true;
    targets[7].is_released = true;
    assert_eq!(step(&targets), Step::Wait { wave: 0, because: Blocked::Budget });
}

#[test]
fn outside_its_windows_a_rollout_releases_nothing_and_still_rolls_back() {
    let document = json!({
        "apiVersion": "muster/v1",
        "kind": "Rollout",
        // NOW is a minute past midnight.
        "windows": [{ "start": "00:02", "length": "1h" }],
    });
    let rollout = || muster_contract::decode::parse::<Rollout>(document.to_string().as_bytes()).unwrap();
    let next = Some(Timestamp::constant(120, 0));
    let waits = Step::Wait { wave: 0, because: Blocked::Window(next) };
    assert_eq!(decided(rollout(), &[], &[WAITING]).step, waits);
    let back = decided(rollout(), &[(RolloutVerb::Rollback, "")], &[CONFIRMED]).step;
    assert_eq!(back, Step::RollBack { targets: vec![0] });
}

#[test]
fn a_late_wave_leads_to_the_deadlines_decision_until_it_has_passed() {
    let step = |deadlines: Value, decisions: &[(RolloutVerb, &str)], targets: &[(bool, Evidence)]| {
        let document = json!({
            "apiVersion": "muster/v1",
            "kind": "Rollout",
            "waves": [{ "name": "a", "devices": ["s0/d0"] }],
            "deadlines": deadlines,
        });
        let rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
        decided(rollout, decisions, targets).step
    };
    let (begun, both) =
        ((RolloutVerb::Begin, "a"), [(RolloutVerb::Begin, "a"), (RolloutVerb::Begin, "rest")]);
    let late = |wave, because, verb| Step::Fail { wave, because, verb };
    let targets = [DARK, WAITING];
    let waits = Step::Wait { wave: 0, because: Blocked::Gate };
    assert_eq!(step(json!({ "wave": "61s" }), &[begun], &targets), waits);
    assert_eq!(step(json!({ "wave": "60s" }), &[], &targets), waits, "no clock before the begin");
    assert_eq!(
        step(json!({ "wave": "60s" }), &[begun], &targets),
        late(0, Failure::WaveDeadline, RolloutVerb::Stop)
    );
    assert_eq!(
        step(json!({ "rollout": "60s", "atEnd": "rollback" }), &[begun], &targets),
        late(0, Failure::RolloutDeadline, RolloutVerb::Rollback)
    );
    let second = late(1, Failure::WaveDeadline, RolloutVerb::Stop);
    assert_eq!(
        step(json!({ "wave": "60s" }), &both, &[DARK, DARK]),
        second,
        "the gate of the first was open once"
    );
    assert_eq!(step(json!({ "wave": "60s" }), &[begun], &[CONFIRMED, WAITING]), release(1, &[1]));
    assert_eq!(step(json!({ "rollout": "1s" }), &both, &[CONFIRMED, CONFIRMED]), Step::Done);
}

#[test]
fn a_device_is_overdue_once_the_times_of_hub_and_rollout_are_over() {
    let of = |missed: Option<DeadlineKind>, known: Known, seconds: i64| {
        let line = Line {
            standing: Standing::Installing,
            freshness: Freshness::Fresh,
            known: true,
            leaving: false,
            target_generation: None,
            changed_at: None,
            last_heard_at: None,
            retries: &[],
            overdue: missed.map(|missed| (missed, Timestamp::UNIX_EPOCH)),
        };
        let deadlines = json!({ "device": "40m", "neverStarted": "2h" });
        let deadlines = serde_json::from_value(deadlines).unwrap();
        let clock = RolloutClock { record: None, now: Timestamp::constant(seconds, 0) };
        known.by_deadlines(Some(&line), &deadlines, &clock)
    };
    let (stuck, never) = (Some(DeadlineKind::Stuck), Some(DeadlineKind::NeverStarted));
    assert_eq!(of(None, Known::UnderWay, 99_999), Known::UnderWay, "the hub's deadline comes first");
    assert_eq!(of(stuck, Known::UnderWay, 40 * 60 - 1), Known::UnderWay);
    assert_eq!(of(stuck, Known::UnderWay, 40 * 60), Known::Overdue);
    assert_eq!(of(stuck, Known::TriesAgain, 40 * 60), Known::Overdue, "attempts restart no deadline");
    assert_eq!(of(never, Known::UnderWay, 40 * 60), Known::UnderWay, "it has a deadline of its own");
    assert_eq!(of(never, Known::UnderWay, 2 * 60 * 60), Known::Overdue);
    for known in [Known::NotHeard, Known::ReportsMissing, Known::NotInLedger, Known::Confirmed, Known::Failed]
    {
        assert_eq!(of(stuck, known, 99_999), known, "only a heard device without an end is overdue");
    }
}

#[test]
fn overdue_devices_lead_to_the_decision_of_the_deadline_beyond_the_limit() {
    let overdue = (true, Evidence::Overdue);
    let of = |deadlines: Value, targets: &[_]| {
        let wave = json!({ "name": "a", "percent": "100%", "success": { "atLeast": "50%" }, "failure": { "atMost": 1 } });
        let document =
            json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [wave], "deadlines": deadlines });
        let rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
        decided(rollout, &[(RolloutVerb::Begin, "a")], targets)
    };
    let fail = |because, verb| Step::Fail { wave: 0, because, verb };
    let back = json!({ "device": "1h", "atEnd": "rollback" });
    let step = |targets: &[_]| of(back.clone(), targets).step;
    let by_deadline = fail(Failure::DeviceDeadline, RolloutVerb::Rollback);
    assert_eq!(step(&[overdue, CONFIRMED, CONFIRMED]), Step::Done, "as many as the wave tolerates");
    assert_eq!(step(&[overdue, overdue, CONFIRMED, CONFIRMED]), by_deadline);
    assert_eq!(step(&[overdue, FAILED, CONFIRMED, CONFIRMED]), by_deadline, "one failure alone is tolerated");
    let by_failures = fail(Failure::Gate, RolloutVerb::Pause);
    assert_eq!(step(&[overdue, FAILED, FAILED, CONFIRMED]), by_failures, "the failures alone are too many");
    let stops = of(json!({ "neverStarted": "1h" }), &[overdue, overdue, CONFIRMED]).step;
    assert_eq!(stops, fail(Failure::DeviceDeadline, RolloutVerb::Stop));
    let tally = of(back, &[overdue, DARK, CONFIRMED]).waves[0].tally;
    assert_eq!((tally.failed, tally.overdue, tally.in_flight()), (1, 1, 1), "it gives its place back");
}

#[test]
fn a_budget_of_available_devices_bounds_each_group_by_its_size() {
    let document = json!({
        "apiVersion": "muster/v1",
        "kind": "Rollout",
        "waves": [{ "name": "all", "percent": "100%" }],
        "budget": { "groupBy": "line", "minAvailable": 2 },
    });
    let rollout: Rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
    let budget = rollout.budget.as_ref().unwrap();
    assert_eq!([0, 1, 2, 3, 9].map(|devices| budget.most_unavailable(devices)), [0, 0, 0, 1, 7]);
    let step = |targets: &[_]| decided(rollout.clone(), &[], targets).step;
    assert_eq!(step(&[WAITING; 4]), release(0, &[0, 1]), "two of four may be unavailable");
    assert_eq!(step(&[WAITING; 2]), Step::Wait { wave: 0, because: Blocked::Budget });
}

#[test]
fn a_budget_has_exactly_one_bound() {
    let refusal = |budget: Value| {
        let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "budget": budget });
        muster_contract::decode::parse::<Rollout>(document.to_string().as_bytes()).unwrap_err().to_string()
    };
    for budget in
        [json!({ "groupBy": "line" }), json!({ "groupBy": "line", "maxUnavailable": 1, "minAvailable": 1 })]
    {
        assert!(refusal(budget).contains("budget: needs exactly one of maxUnavailable and minAvailable"));
    }
}

#[test]
fn a_rollout_begins_once_those_that_it_comes_after_have_succeeded() {
    let rollout = rollout(json!([{ "name": "all", "percent": "100%" }]));
    let (keys, labels) = (keys(2), Labels::new());
    let target = |key, (is_released, evidence): (bool, Evidence)| Target {
        key,
        labels: &labels,
        is_released,
        evidence,
        has_begun: false,
        silent_since: None,
        released_at: None,
        is_refused: false,
    };
    let (waiting, one) = ([WAITING; 2], [CONFIRMED, WAITING]);
    let green = || WaitsFor { deployment: "green".parse().unwrap(), phase: RolloutPhase::Running };
    let step = |verbs: &[RolloutVerb], all: &[(bool, Evidence)], waits_for: &[WaitsFor]| {
        let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
        for verb in verbs {
            let wave = verb.has_wave().then(|| "all".parse().unwrap());
            let decision = RolloutDecision { wave, ..RolloutDecision::new(*verb, Timestamp::UNIX_EPOCH) };
            record.decide(decision, &rollout.approvals).unwrap();
        }
        let targets: Vec<_> = keys.iter().zip(all).map(|(key, state)| target(key, *state)).collect();
        state(&rollout, &id("v2"), Some(&record), &targets, waits_for, NOW).step
    };
    let after = Step::Wait { wave: 0, because: Blocked::After };
    assert_eq!(step(&[], &waiting, &[green()]), after);
    assert_eq!(step(&[], &waiting, &[]), release(0, &[0, 1]));
    let begun = [RolloutVerb::Begin];
    assert_eq!(step(&begun, &one, &[green()]), release(0, &[1]), "one that has begun goes on");
    let again = [RolloutVerb::Begin, RolloutVerb::Stop, RolloutVerb::Retry];
    assert_eq!(step(&again, &one, &[green()]), after, "a run that begins again waits again");
    let joined = [RolloutVerb::Begin, RolloutVerb::Finish];
    assert_eq!(step(&joined, &one, &[green()]), release(0, &[1]), "late devices wait for nothing");
}
