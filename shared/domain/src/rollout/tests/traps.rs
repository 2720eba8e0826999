//! Traps of other engines, as tests of this one. The facts about them are public: their source and their issues.

use muster_contract::rollout::{ReleaseRefusal, RolloutDecision};
use serde_json::json;

use super::*;

/// FlightCtl: a batch without devices leaves no report, so the next gate judges the report of an older batch.
#[test]
fn trap_of_flightctl_an_empty_wave_lends_no_evidence_to_the_next() {
    let waves = json!([
        { "name": "a", "devices": ["s0/d0"] },
        { "name": "empty", "site": "nowhere", "allowEmpty": true },
        { "name": "b", "devices": ["s1/d1"] },
    ]);
    let step = |targets: &[_]| of_waves(waves.clone(), targets).step;
    assert_eq!(step(&[CONFIRMED, WAITING, WAITING]), release(2, &[1]));
    assert_eq!(step(&[CONFIRMED, DARK, WAITING]), Step::Wait { wave: 2, because: Blocked::Gate });
    assert_eq!(
        step(&[CONFIRMED, FAILED, WAITING]),
        Step::Fail { wave: 2, because: Failure::Gate, verb: RolloutVerb::Pause },
        "the success of the first wave does not cover for the third"
    );
}

/// Open Cluster Management: a number of failures above the number of targets falls back to the default, none.
#[test]
fn trap_of_ocm_a_tolerance_above_the_targets_tolerates_all() {
    let wave = json!([{ "name": "a", "percent": "100%", "success": { "atLeast": "1%" }, "failure": { "atMost": 10 } }]);
    let state = of_waves(wave, &[FAILED, FAILED, FAILED, FAILED, CONFIRMED]);
    assert_eq!((state.waves[0].gate, state.step), (Gate::Open, Step::Done));
}

/// FlightCtl: a changed policy starts the rollout again from its first batch.
#[test]
fn trap_of_flightctl_an_edit_of_the_policy_begins_no_wave_again() {
    let begun = [(RolloutVerb::Begin, "a"), (RolloutVerb::Begin, "b")];
    let edited = json!([
        { "name": "a", "devices": ["s0/d0"], "approval": "before", "soak": "24h" },
        { "name": "b", "devices": ["s1/d1", "s2/d2"], "approval": "before", "soak": "24h", "maxInFlight": 1 },
        { "name": "c", "devices": ["s0/d3"] },
    ]);
    let step = |targets: &[_]| decided(rollout(edited.clone()), &begun, targets).step;
    assert_eq!(
        step(&[CONFIRMED, CONFIRMED, WAITING, WAITING]),
        release(1, &[2]),
        "no approval is asked for again, and no gate that was open shuts"
    );
    assert_eq!(
        step(&[CONFIRMED, CONFIRMED, CONFIRMED, WAITING]),
        Step::Wait { wave: 1, because: Blocked::Gate },
        "the longer soak time holds for the wave that is under way"
    );
}

/// Argo Rollouts: a component that turns ready now and then counts as progress, so no deadline ends the rollout.
#[test]
fn trap_of_argo_a_device_that_flaps_moves_no_deadline() {
    let document = json!({
        "apiVersion": "muster/v1", "kind": "Rollout",
        "waves": [{ "name": "a", "devices": ["s0/d0"], "soak": "30s" }], "deadlines": { "wave": "60s" },
    });
    let rollout = || muster_contract::decode::parse::<Rollout>(document.to_string().as_bytes()).unwrap();
    // It was confirmed again a second ago, as it was before.
    let flapping = (true, Evidence::Confirmed(Timestamp::constant(59, 0)));
    let step = decided(rollout(), &[(RolloutVerb::Begin, "a")], &[flapping]).step;
    assert_eq!(step, Step::Fail { wave: 0, because: Failure::WaveDeadline, verb: RolloutVerb::Stop });
}

/// hawkBit: success of an older image counts for the rollout. AWS IoT Jobs and hawkBit count reports without their age.
#[test]
fn trap_of_hawkbit_an_older_success_and_a_stale_one_open_no_gate() {
    let digest = id("v2").digest;
    let target = json!({ "site": "s0", "device": "d0", "rollout": "f", "wanted": digest, "published": digest,
        "targetGeneration": 7, "labels": {} });
    let policy = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "a", "percent": "100%" }] });
    let step = |fields: Value| {
        let answer = json!({ "revision": "c1", "rollouts": { "f": policy }, "targets": [target] });
        let line = line_of(&"s0/d0".parse().unwrap(), &fields);
        let lines = Lines { of_devices: [(line.key.clone(), line)].into(), ..Lines::default() };
        let answer = serde_json::from_value(answer).unwrap();
        progress(&"web".parse().unwrap(), answer, &lines, NOW).remove(0).state.step
    };
    let report = |generation: u64, freshness: &str| json!({ "standing": "installed", "targetGeneration": generation, "freshness": freshness, "changedAt": NOW });
    let shut = Step::Wait { wave: 0, because: Blocked::NothingToRelease };
    assert_eq!(step(report(6, "fresh")), shut, "the success of an older content");
    assert_eq!(step(report(7, "stale")), shut, "a success that nobody confirms now");
    assert_eq!(step(report(7, "fresh")), Step::Done);
}

#[test]
fn a_content_that_all_had_before_is_neither_taken_back_nor_checked() {
    let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "onFailure": "rollback", "waves": [
        { "name": "a", "percent": "100%", "checks": [{ "request": "muster.check.smoke" }], "approval": "after" }] });
    let digest = id("v2").digest;
    let target = json!({ "site": "s0", "device": "d0", "rollout": "f", "wanted": digest, "published": digest,
        "targetGeneration": 7, "labels": {} });
    let rollout = |standing: &str, decisions: Value| {
        let answer = json!({ "revision": "c1", "rollouts": { "f": document }, "targets": [target], "decisions": decisions });
        let fields =
            json!({ "standing": standing, "targetGeneration": 7, "freshness": "fresh", "changedAt": NOW });
        let line = line_of(&"s0/d0".parse().unwrap(), &fields);
        let lines = Lines { of_devices: [(line.key.clone(), line)].into(), ..Lines::default() };
        progress(&"web".parse().unwrap(), serde_json::from_value(answer).unwrap(), &lines, NOW).remove(0)
    };
    let decided = |verb: &str| json!([{ "digest": digest, "rollout": "f", "decisions": [{ "verb": verb, "at": NOW }] }]);
    for standing in ["installed", "failed"] {
        for decisions in [json!([]), decided("supersede")] {
            let found = rollout(standing, decisions);
            assert_eq!(found.state.step, Step::Wait { wave: 0, because: Blocked::NothingToRelease });
            assert!(found.why().starts_with("nothing to release: every target had"), "{}", found.why());
        }
    }
    let other = json!({ "site": "s0", "device": "d1", "rollout": "f", "wanted": digest, "labels": {}, "refused": "heldBack" });
    let answer = json!({ "revision": "c1", "rollouts": { "f": document }, "targets": [target, other] });
    let found =
        progress(&"web".parse().unwrap(), serde_json::from_value(answer).unwrap(), &Lines::default(), NOW);
    let why = found[0].why();
    assert!(why.starts_with("nothing to release: ") && why.contains("s0/d1 is held back"), "{why}");
    let retried = rollout("failed", decided("retry"));
    assert!(
        matches!(retried.state.step, Step::Fail { wave: 0, .. }),
        "a person has begun it: {}",
        retried.why()
    );
}

#[test]
fn a_device_that_the_publisher_refuses_is_named_with_the_reason() {
    let policy = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "a", "percent": "100%" }] });
    let target = |name: &str, refused: Option<&str>| json!({ "site": "s0", "device": name, "rollout": "f", "wanted": id("v2").digest, "labels": {}, "refused": refused });
    let targets = [target("d0", None), target("d1", Some("heldBack"))];
    let answer = json!({ "revision": "c1", "rollouts": { "f": policy }, "targets": targets });
    let rollouts =
        progress(&"web".parse().unwrap(), serde_json::from_value(answer).unwrap(), &Lines::default(), NOW);
    let why = rollouts[0].why();
    let refused = "; the publisher refuses 1 device: s0/d1 is held back: the commit has a mistake for it";
    assert_eq!(why, format!("next: release to 2 devices of wave a{refused}"));
}

#[test]
fn a_rollback_names_the_devices_that_have_no_content_to_go_back_to() {
    let policy = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "a", "percent": "100%" }] });
    let digest = id("v2").digest;
    let target = |name: &str, refused: Option<&str>| {
        json!({ "site": "s0", "device": name, "rollout": "f", "wanted": digest,
        "published": digest, "targetGeneration": 7, "labels": {}, "refused": refused })
    };
    let at = Timestamp::UNIX_EPOCH;
    let decisions = json!([{ "verb": "begin", "wave": "a", "at": at }, { "verb": "rollback", "at": at }]);
    let answer = json!({ "revision": "c1", "rollouts": { "f": policy },
        "targets": [target("d0", None), target("d1", Some("noEarlierContent"))],
        "decisions": [{ "digest": digest, "rollout": "f", "decisions": decisions }] });
    let answer = serde_json::from_value(answer).unwrap();
    let why = progress(&"web".parse().unwrap(), answer, &Lines::default(), NOW)[0].why();
    let refused = ReleaseRefusal::NoEarlierContent.words();
    let named = format!("next: roll back 2 devices; the publisher refuses 1 device: s0/d1 {refused}");
    assert!(why.ends_with(&named), "{why}");
}

/// KubeFleet and Flagger: an approval outlives the plan that it was given for, or a hook waits for hours without a limit.
#[test]
fn trap_of_flagger_a_check_without_data_never_passes_and_has_an_end() {
    let document = json!({
        "apiVersion": "muster/v1", "kind": "Rollout", "deadlines": { "wave": "60s", "atEnd": "rollback" },
        "waves": [{ "name": "a", "devices": ["s0/d0"], "checks": [{ "request": "muster.check.smoke" }] }],
    });
    let rollout: Rollout = muster_contract::decode::parse(document.to_string().as_bytes()).unwrap();
    let of = |verb, second, result| RolloutDecision {
        wave: "a".parse().ok(),
        result,
        ..RolloutDecision::new(verb, Timestamp::constant(second, 0))
    };
    let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
    let inconclusive = Some(muster_contract::rollout::CheckResult::Inconclusive);
    for decision in [of(RolloutVerb::Begin, 0, None), of(RolloutVerb::Check, 1, inconclusive)] {
        record.decide(decision, &rollout.approvals).unwrap();
    }
    let (keys, labels) = (keys(1), Labels::new());
    let target = Target {
        key: &keys[0],
        labels: &labels,
        is_released: true,
        evidence: Evidence::Confirmed(Timestamp::UNIX_EPOCH),
        has_begun: false,
        silent_since: None,
        released_at: None,
        is_refused: false,
    };
    let step = |now| state(&rollout, &id("v2"), Some(&record), &[target], &[], now).step;
    assert_eq!(step(Timestamp::constant(59, 0)), Step::Check { wave: 0 });
    assert_eq!(
        step(NOW),
        Step::Fail { wave: 0, because: Failure::WaveDeadline, verb: RolloutVerb::Rollback }
    );
}
