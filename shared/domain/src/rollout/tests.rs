//! Each rule of a rollout by name, and its waves under random targets.

#![allow(clippy::needless_pass_by_value, reason = "values are made where they are passed")]

mod gates;
mod order;
mod policies;
mod silent;
mod traps;

use std::collections::BTreeSet;

use muster_contract::canonical::Digest;
use muster_contract::labels::Labels;
use muster_contract::rollout::{Rollout, RolloutDecision, RolloutPhase, RolloutRecord, RolloutVerb};
use muster_contract::status::TargetStatus;
use muster_contract::{DeviceKey, RequestedBy, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::clock::RolloutClock;
use super::*;

/// A line of `web` on a device, fresh and known, with these fields.
pub(super) fn line_of(key: &DeviceKey, fields: &Value) -> TargetStatus {
    let mut line = json!({
        "site": key.site, "device": key.device, "deployment": "web", "standing": "waiting", "freshness": "fresh",
        "known": true, "kstatus": "NotFound", "strategy": "Apply", "actuation": "Pending", "reconcile": "Pending",
        "message": "", "components": [],
    });
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(line).unwrap()
}

fn rollout(waves: Value) -> Rollout {
    let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves });
    muster_contract::decode::parse(document.to_string().as_bytes()).unwrap()
}

fn id(content: &str) -> RolloutId {
    RolloutId { deployment: "web".parse().unwrap(), digest: Digest::of_bytes(content.as_bytes()) }
}

fn keys(count: usize) -> Vec<DeviceKey> {
    (0..count).map(|at| format!("s{}/d{at}", at % 3).parse().unwrap()).collect()
}

/// Wave indices of devices without labels.
fn wave_indices(waves: Value, content: &str, keys: &[DeviceKey]) -> Vec<usize> {
    let labels = Labels::new();
    let targets: Vec<_> = keys.iter().map(|key| (key, &labels)).collect();
    waves_of(&rollout(waves).waves, &id(content), &targets)
}

fn members(wave_indices: &[usize], wave: usize) -> BTreeSet<usize> {
    (0..wave_indices.len()).filter(|at| wave_indices[*at] == wave).collect()
}

/// The state of one wave `canary` with all of the given targets.
fn of_wave(wave: Value, targets: &[(bool, Evidence)]) -> RolloutState {
    let mut first = json!({ "name": "canary", "percent": "100%" });
    first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
    of_waves(json!([first]), targets)
}

fn of_waves(waves: Value, targets: &[(bool, Evidence)]) -> RolloutState {
    decided(rollout(waves), &[], targets)
}

/// The state of a rollout with these decisions, made a minute ago by different people.
fn decided(
    rollout: Rollout,
    decisions: &[(RolloutVerb, &str)],
    targets: &[(bool, Evidence)],
) -> RolloutState {
    let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
    for (at, (verb, wave)) in decisions.iter().enumerate() {
        let decision = RolloutDecision {
            wave: wave.parse().ok(),
            requested_by: Some(RequestedBy::new(&format!("U{at}"), "", None)),
            ..RolloutDecision::new(*verb, Timestamp::UNIX_EPOCH)
        };
        record.decide(decision, &rollout.approvals).unwrap();
    }
    let (keys, labels) = (keys(targets.len()), Labels::new());
    let target = |(key, (is_released, evidence)): (_, &(bool, Evidence))| Target {
        has_begun: matches!(evidence, Evidence::Confirmed(_) | Evidence::Failed),
        silent_since: None,
        released_at: None,
        is_refused: false,
        key,
        labels: &labels,
        is_released: *is_released,
        evidence: *evidence,
    };
    let targets: Vec<_> = keys.iter().zip(targets).map(target).collect();
    state(&rollout, &id("v2"), Some(&record), &targets, &[], NOW)
}

/// A minute after devices were confirmed.
const NOW: Timestamp = Timestamp::constant(60, 0);
const CONFIRMED: (bool, Evidence) = (true, Evidence::Confirmed(Timestamp::UNIX_EPOCH));
const FAILED: (bool, Evidence) = (true, Evidence::Failed);
const DARK: (bool, Evidence) = (true, Evidence::Unknown);
const WAITING: (bool, Evidence) = (false, Evidence::Unknown);

fn release(wave: usize, targets: &[usize]) -> Step {
    Step::Release { wave, targets: targets.to_vec(), needs_approval: false }
}

#[test]
fn a_device_is_in_the_first_wave_that_matches_it() {
    let keys = keys(6);
    let waves = json!([{ "name": "named", "devices": ["s0/d0"] }, { "name": "site", "site": "s0" }]);
    assert_eq!(wave_indices(waves, "v2", &keys), [0, 2, 2, 1, 2, 2], "unmatched devices are the last wave");
    let labels: Labels = serde_json::from_value(json!({ "ring": "canary", "region": "north" })).unwrap();
    let ring = rollout(json!([{ "name": "ring", "selector": { "ring": "canary" } }]));
    let none = Labels::new();
    let targets = [(&keys[0], &labels), (&keys[1], &none)];
    assert_eq!(waves_of(&ring.waves, &id("v2"), &targets), [0, 1], "all labels of a selector must be there");
}

#[test]
fn percent_waves_count_earlier_waves_and_count_waves_do_not() {
    let keys = keys(10);
    let shares = json!([{ "name": "a", "percent": "20%" }, { "name": "b", "percent": "50%" }]);
    let sizes = |waves| {
        let wave_indices = wave_indices(waves, "v2", &keys);
        [0, 1, 2].map(|wave| members(&wave_indices, wave).len())
    };
    assert_eq!(sizes(shares), [2, 3, 5]);
    assert_eq!(sizes(json!([{ "name": "a", "count": 2 }, { "name": "b", "count": 5 }])), [2, 5, 3]);
    assert_eq!(sizes(json!([{ "name": "a", "percent": "1%" }])), [1, 9, 0], "a share is at least one device");
}

#[test]
fn without_waves_one_device_goes_first() {
    let state = of_waves(json!([]), &[WAITING; 5]);
    let sizes: Vec<_> = state.waves.iter().map(|wave| (wave.name.as_str(), wave.tally.targets)).collect();
    assert_eq!(sizes, [("first", 1), ("rest", 4)]);
    assert!(matches!(state.step, Step::Release { wave: 0, targets, .. } if targets.len() == 1));
}

#[test]
fn a_gate_opens_on_confirmed_devices_alone() {
    let gate = |at_least: &str, targets: &[_]| {
        of_wave(json!({ "success": { "atLeast": at_least }, "failure": { "atMost": "100%" } }), targets).waves
            [0]
        .gate
    };
    assert_eq!(gate("100%", &[CONFIRMED, CONFIRMED]), Gate::Open);
    assert_eq!(gate("100%", &[CONFIRMED, DARK]), Gate::Shut, "a dark device is no success");
    assert_eq!(gate("50%", &[CONFIRMED, DARK]), Gate::Open);
    assert_eq!(gate("51%", &[CONFIRMED, DARK]), Gate::Shut, "whole numbers: 100 is below 102");
    assert_eq!(gate("100%", &[DARK, DARK]), Gate::Shut);
}

#[test]
fn a_wave_stops_once_success_is_out_of_reach() {
    let gate = |targets: &[_]| {
        of_wave(json!({ "success": { "atLeast": "75%" }, "failure": { "atMost": 9 } }), targets).waves[0].gate
    };
    assert_eq!(gate(&[FAILED, DARK, DARK, DARK]), Gate::Shut, "three of four may still come");
    assert_eq!(gate(&[FAILED, FAILED, DARK, DARK]), Gate::OutOfReach);
    assert_eq!(gate(&[CONFIRMED, CONFIRMED, FAILED, CONFIRMED]), Gate::Open);
}

#[test]
fn failures_stop_a_wave_by_number_and_by_share_of_a_sample() {
    let gate = |failure: Value, targets: &[_]| {
        of_wave(json!({ "success": { "atLeast": "1%" }, "failure": failure }), targets).waves[0].gate
    };
    assert_eq!(gate(json!({}), &[FAILED, DARK]), Gate::TooManyFailures, "by default none is borne");
    assert_eq!(gate(json!({ "atMost": 1 }), &[FAILED, DARK]), Gate::Shut);
    assert_eq!(gate(json!({ "atMost": 1 }), &[FAILED, FAILED, DARK]), Gate::TooManyFailures);
    assert_eq!(gate(json!({ "atMost": 9 }), &[FAILED, DARK]), Gate::Shut, "more than there are bears all");
    assert_eq!(
        gate(json!({ "atMost": "40%" }), &[FAILED, FAILED, CONFIRMED, DARK]),
        Gate::Open,
        "without a sample ten ends, or all"
    );
    let all = [FAILED, FAILED, CONFIRMED, CONFIRMED];
    assert_eq!(
        gate(json!({ "atMost": "40%", "minimumSample": 4000000000_u32 }), &all),
        Gate::TooManyFailures
    );
    let share = json!({ "atMost": "40%", "minimumSample": 3 });
    assert_eq!(
        gate(share.clone(), &[FAILED, FAILED, DARK, DARK, DARK]),
        Gate::Shut,
        "two ends are no sample"
    );
    assert_eq!(gate(share, &[FAILED, FAILED, CONFIRMED, DARK, DARK]), Gate::TooManyFailures);
}

#[test]
fn a_dark_device_keeps_its_place_in_flight() {
    let step = |targets: &[_]| of_wave(json!({ "maxInFlight": 2, "failure": { "atMost": 9 } }), targets).step;
    assert_eq!(step(&[WAITING; 4]), release(0, &[0, 1]));
    assert_eq!(step(&[DARK, DARK, WAITING, WAITING]), Step::Wait { wave: 0, because: Blocked::InFlight });
    assert_eq!(step(&[CONFIRMED, DARK, WAITING, WAITING]), release(0, &[2]));
}

#[test]
fn the_next_wave_begins_behind_an_open_gate_only() {
    let waves = json!([{ "name": "a", "devices": ["s0/d0"] }]);
    let step = |first| of_waves(waves.clone(), &[first, WAITING, WAITING]).step;
    assert_eq!(step(WAITING), release(0, &[0]));
    assert_eq!(step(DARK), Step::Wait { wave: 0, because: Blocked::Gate });
    assert_eq!(step(FAILED), Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Pause });
    assert_eq!(step(CONFIRMED), release(1, &[1, 2]));
    assert_eq!(of_waves(waves, &[CONFIRMED; 3]).step, Step::Done);
}

/// Two waves with all but one target each; the second has begun.
fn passed(first: &[(bool, Evidence)], second: &[(bool, Evidence)]) -> RolloutState {
    let names = |at: std::ops::Range<usize>| at.map(|at| format!("s{}/d{at}", at % 3)).collect::<Vec<_>>();
    let (middle, end) = (first.len(), first.len() + second.len());
    let waves = json!([
        { "name": "a", "devices": names(0..middle), "maxInFlight": 1 }, { "name": "b", "devices": names(middle..end) },
    ]);
    let begun = [(RolloutVerb::Begin, "a"), (RolloutVerb::Begin, "b")];
    decided(rollout(waves), &begun, &[first, second].concat())
}

#[test]
fn a_passed_gate_does_not_shut_again_for_devices_that_fall_silent() {
    let state = passed(&[CONFIRMED, DARK], &[CONFIRMED, WAITING]);
    assert_eq!((state.waves[0].gate, state.step), (Gate::Open, release(1, &[3])));
    assert_eq!(passed(&[CONFIRMED, DARK], &[CONFIRMED]).step, Step::Done);
}

#[test]
fn a_device_that_joins_a_passed_wave_gets_the_content_and_holds_nothing() {
    assert_eq!(passed(&[CONFIRMED, WAITING], &[WAITING]).step, release(0, &[1]), "the late one comes first");
    let full = |second: &[_]| passed(&[CONFIRMED, DARK, WAITING], second).step;
    assert_eq!(full(&[WAITING]), release(1, &[3]), "there is no place in flight for the late one");
    assert_eq!(full(&[DARK]), Step::Wait { wave: 1, because: Blocked::Gate });
    let failed = Step::Fail { wave: 1, because: Failure::Gate, verb: RolloutVerb::Pause };
    assert_eq!(passed(&[CONFIRMED, WAITING], &[FAILED]).step, failed, "a failure comes before a release");
    let late = Step::Wait { wave: 0, because: Blocked::InFlight };
    assert_eq!(full(&[CONFIRMED]), late, "it does not end without the late one");
}

#[test]
fn a_failure_in_a_passed_wave_stops_the_next() {
    let waves = json!([{ "name": "a", "devices": ["s0/d0"] }]);
    assert_eq!(
        of_waves(waves, &[FAILED, DARK, WAITING]).step,
        Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Pause }
    );
}

#[test]
fn a_gate_opens_once_enough_devices_were_confirmed_for_the_soak_time() {
    let gate = |soak: &str, targets: &[_]| {
        of_wave(json!({ "soak": soak, "success": { "atLeast": "50%" } }), targets).waves[0].gate
    };
    let just_now = (true, Evidence::Confirmed(Timestamp::constant(59, 0)));
    assert_eq!(gate("60s", &[CONFIRMED, DARK]), Gate::Open);
    assert_eq!(gate("61s", &[CONFIRMED, DARK]), Gate::Soaking);
    assert_eq!(gate("60s", &[just_now, DARK]), Gate::Soaking, "a change begins it again");
    assert_eq!(gate("60s", &[DARK, DARK]), Gate::Shut, "a dark device does not soak");
    assert_eq!(gate("60s", &[CONFIRMED, FAILED]), Gate::TooManyFailures, "a failure stops a soak");
}

#[test]
fn a_wave_that_needs_approval_begins_with_it_and_continues_without() {
    let wave = json!({ "name": "canary", "percent": "100%", "approval": "before", "maxInFlight": 1 });
    let step = |decisions: &[_], targets: &[_]| decided(rollout(json!([wave])), decisions, targets).step;
    let needed = |at| Step::Release { wave: 0, targets: vec![at], needs_approval: true };
    assert_eq!(step(&[], &[WAITING, WAITING]), needed(0));
    assert_eq!(step(&[], &[CONFIRMED, WAITING]), needed(1), "a device that a person released is no begin");
    assert_eq!(step(&[(RolloutVerb::Begin, "canary")], &[CONFIRMED, WAITING]), release(0, &[1]));
}

#[test]
fn a_wave_begins_with_as_many_valid_approvals_as_the_rollout_needs() {
    let step = |approvals: Value, decisions: &[(RolloutVerb, &str)]| {
        let wave = json!({ "name": "canary", "percent": "100%", "approval": "before" });
        let document = json!({
            "apiVersion": "muster/v1", "kind": "Rollout", "waves": [wave], "approvals": approvals
        });
        let rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
        match decided(rollout, decisions, &[WAITING]).step {
            Step::Release { needs_approval, .. } => needs_approval,
            other => panic!("{other:?}"),
        }
    };
    let approved = (RolloutVerb::Approve, "canary");
    assert!(step(json!({}), &[]) && !step(json!({}), &[approved]));
    assert!(step(json!({ "need": 2 }), &[approved]) && !step(json!({ "need": 2 }), &[approved, approved]));
    assert!(step(json!({ "expiresAfter": "59s" }), &[approved]), "an approval expires");
    assert!(!step(json!({ "expiresAfter": "60s" }), &[approved]));
    assert!(step(json!({}), &[(RolloutVerb::Approve, "other")]), "an approval of another wave");
}

#[test]
fn approvals_of_named_persons_or_a_role_count_and_no_others() {
    let given = |of: Value| {
        let wave = json!({ "name": "canary", "percent": "100%", "approval": "before" });
        let document = json!({
            "apiVersion": "muster/v1", "kind": "Rollout", "waves": [wave], "approvals": { "need": 2, "of": of }
        });
        let rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
        let approved = (RolloutVerb::Approve, "canary");
        // U0, U1 and U2 approve, without a role.
        let state = decided(rollout, &[approved; 3], &[WAITING]);
        let needs = matches!(state.step, Step::Release { needs_approval: true, .. });
        (state.waves[0].approvals.unwrap().given, needs)
    };
    assert_eq!(given(json!(["U0", "U2", "U9"])), (2, false));
    assert_eq!(given(json!(["U0", "U9"])), (1, true));
    assert_eq!(given(json!("operator")), (0, true));
}

#[test]
fn a_decision_comes_before_any_evidence() {
    let step = |verbs: &[RolloutVerb], targets: &[(bool, Evidence)]| {
        let decisions: Vec<_> = verbs.iter().map(|verb| (*verb, "")).collect();
        decided(rollout(json!([])), &decisions, targets).step
    };
    use RolloutVerb::{Pause, Resume, Retry, Rollback, Stop};
    for (verb, phase) in [(Pause, RolloutPhase::Paused), (Stop, RolloutPhase::Stopped)] {
        assert_eq!(step(&[verb], &[WAITING, WAITING]), Step::Held { phase });
        assert_eq!(step(&[verb], &[FAILED, FAILED]), Step::Held { phase });
    }
    assert_eq!(step(&[Rollback], &[CONFIRMED, WAITING, DARK]), Step::RollBack { targets: vec![0, 2] });
    assert_eq!(step(&[Rollback], &[WAITING]), Step::Held { phase: RolloutPhase::RolledBack });
    assert!(matches!(step(&[Pause, Resume], &[WAITING]), Step::Release { .. }));
    assert!(matches!(step(&[Rollback, Retry], &[WAITING]), Step::Release { .. }));
}

#[test]
fn an_abort_takes_the_content_back_from_devices_that_have_not_begun() {
    let step = |targets: &[_]| decided(rollout(json!([])), &[(RolloutVerb::Abort, "")], targets).step;
    assert_eq!(step(&[CONFIRMED, DARK, FAILED, WAITING]), Step::RollBack { targets: vec![1] });
    assert_eq!(step(&[CONFIRMED, FAILED, WAITING]), Step::Held { phase: RolloutPhase::Aborted });
}

#[test]
fn after_the_end_new_devices_get_the_content_and_no_failure_ends_it() {
    let rollout = || rollout(json!([{ "name": "a", "devices": ["s0/d0"], "approval": "before" }]));
    let step = |targets: &[_]| decided(rollout(), &[(RolloutVerb::Finish, "")], targets).step;
    assert_eq!(step(&[WAITING, FAILED, WAITING]), release(0, &[0]));
    assert_eq!(step(&[FAILED, DARK, WAITING]), release(1, &[2]));
    assert_eq!(step(&[FAILED, DARK]), Step::Done);
}

#[test]
fn a_content_that_git_wants_again_begins_with_its_first_wave() {
    let waves = json!([{ "name": "a", "devices": ["s0/d0"], "approval": "before" }]);
    let ended = [RolloutVerb::Begin, RolloutVerb::Approve, RolloutVerb::Finish, RolloutVerb::Supersede]
        .map(|verb| (verb, if matches!(verb, RolloutVerb::Begin | RolloutVerb::Approve) { "a" } else { "" }));
    let [begin, approve, finish, supersede] = ended;
    let step = decided(rollout(waves), &[approve, begin, finish, supersede], &[WAITING, CONFIRMED]).step;
    assert_eq!(step, Step::Release { wave: 0, targets: vec![0], needs_approval: true });
}

#[test]
fn a_failed_wave_leads_to_the_decision_of_the_rollout() {
    let of = |policy: &str| {
        let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "onFailure": policy });
        let rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
        decided(rollout, &[], &[FAILED]).step
    };
    assert_eq!(of("pause"), Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Pause });
    assert_eq!(of("abort"), Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Abort });
    assert_eq!(of("rollback"), Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Rollback });
}

#[test]
fn a_wave_without_targets_holds_the_others_unless_it_may_be_empty() {
    let held = Step::Wait { wave: 0, because: Blocked::Gate };
    for wave in [
        json!({ "site": "nowhere" }),
        json!({ "devices": ["s9/d9"] }),
        json!({ "selector": { "line": "a" } }),
    ] {
        let of = |may_be_empty: bool| {
            let mut first = json!({ "name": "a", "allowEmpty": may_be_empty });
            first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
            of_waves(json!([first]), &[WAITING])
        };
        let state = of(false);
        assert_eq!((state.waves[0].tally.targets, state.waves[0].gate), (0, Gate::Empty), "{wave}");
        assert_eq!(state.step, held, "{wave}");
        assert_eq!((of(true).waves[0].gate, of(true).step), (Gate::Open, release(1, &[0])), "{wave}");
    }
}

#[test]
fn a_wave_whose_devices_are_all_in_earlier_ones_holds_nothing() {
    let waves = json!([{ "name": "a", "devices": ["s0/d0"] }, { "name": "b", "site": "s0" }, { "name": "c", "count": 1 }]);
    let state = of_waves(waves, &[CONFIRMED]);
    assert_eq!(state.step, Step::Done, "{:?}", state.waves);
}

#[test]
fn a_person_lets_a_rollout_pass_a_wave_without_targets() {
    let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "a", "site": "nowhere" }] });
    let rollout: Rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
    let state = decided(rollout, &[(RolloutVerb::Force, "a")], &[WAITING]);
    assert_eq!((state.waves[0].gate, state.step), (Gate::Open, release(1, &[0])));
}

fn evidence() -> impl Strategy<Value = (bool, Evidence)> {
    prop_oneof![Just(WAITING), Just(DARK), Just(CONFIRMED), Just(FAILED)]
}

proptest! {
    #[test]
    fn every_device_is_in_one_wave_whatever_the_order_of_targets(count in 0..40_usize, share in 1..=99_u8, content: u8) {
        let waves = json!([{ "name": "a", "percent": format!("{share}%") }, { "name": "b", "count": 3 }]);
        let (keys, content) = (keys(count), content.to_string());
        let forward = wave_indices(waves.clone(), &content, &keys);
        let backward: Vec<_> = keys.iter().rev().cloned().collect();
        let mut backward = wave_indices(waves, &content, &backward);
        backward.reverse();
        prop_assert_eq!(&forward, &backward);
        prop_assert!(forward.iter().all(|wave| *wave <= 2));
        prop_assert_eq!(members(&forward, 0).len(), (count * usize::from(share)).div_ceil(100));
    }

    #[test]
    fn a_larger_share_holds_all_devices_of_a_smaller_one(count in 0..40_usize, share in 1..=99_u8, more in 0..=99_u8) {
        let of = |share: u8| {
            let waves = json!([{ "name": "a", "percent": format!("{share}%") }]);
            members(&wave_indices(waves, "v2", &keys(count)), 0)
        };
        prop_assert!(of(share).is_subset(&of(share.saturating_add(more).min(100))));
    }

    #[test]
    fn more_unknown_devices_never_open_a_gate(targets in prop::collection::vec(evidence(), 1..30), at in 0..30_usize, least in 1..=100_u8) {
        let wave = json!({ "success": { "atLeast": format!("{least}%") }, "failure": { "atMost": "100%" } });
        let mut darker = targets.clone();
        let at = at % darker.len();
        if darker[at].1 == Evidence::Failed { return Ok(()); }
        darker[at].1 = Evidence::Unknown;
        let is_open = |targets: &[_]| of_wave(wave.clone(), targets).waves[0].gate == Gate::Open;
        prop_assert!(is_open(&targets) || !is_open(&darker));
    }

    #[test]
    fn a_step_releases_within_the_limit_and_only_what_is_not_released(targets in prop::collection::vec(evidence(), 1..30), limit in 1..5_usize) {
        let wave = json!({ "maxInFlight": limit, "failure": { "atMost": "100%" } });
        let state = of_wave(wave, &targets);
        if let Step::Release { targets: next, .. } = state.step {
            let in_flight = targets.iter().filter(|target| **target == DARK).count();
            prop_assert!(in_flight + next.len() <= limit);
            prop_assert!(next.iter().all(|at| !targets[*at].0));
        }
    }
}
