//! Gates that need more than confirmed devices: checks of others, approvals of the evidence, and complete evidence.

use muster_contract::RequestedBy;
use muster_contract::rollout::{CheckResult, RolloutDecision};
use serde_json::{Value, json};

use super::*;

/// A decision about the wave `canary`, made at a second.
fn decision(verb: RolloutVerb, second: i64, by: &str, result: Option<CheckResult>) -> RolloutDecision {
    RolloutDecision {
        wave: verb.has_wave().then(|| "canary".parse().unwrap()),
        reason: Some("muster.check.smoke is slow".to_owned()),
        result,
        requested_by: Some(RequestedBy::new(by, "", None)),
        ..RolloutDecision::new(verb, Timestamp::constant(second, 0))
    }
}

/// The state of a wave `canary` of the first device and of the rest by decisions.
fn of_canary(wave: &Value, decisions: &[RolloutDecision], targets: &[(bool, Evidence)]) -> RolloutState {
    let mut first = json!({ "name": "canary", "devices": ["s0/d0"] });
    first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
    let rollout = rollout(json!([first]));
    let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
    for decision in decisions {
        record.decide(decision.clone(), &rollout.approvals).unwrap();
    }
    let (keys, labels) = (keys(targets.len()), Labels::new());
    let target = |(key, (is_released, evidence)): (_, &(bool, Evidence))| Target {
        key,
        labels: &labels,
        is_released: *is_released,
        evidence: *evidence,
        has_begun: matches!(evidence, Evidence::Confirmed(_) | Evidence::Failed),
        silent_since: None,
        released_at: None,
        is_refused: false,
    };
    let targets: Vec<_> = keys.iter().zip(targets).map(target).collect();
    state(&rollout, &id("v2"), Some(&record), &targets, &[], NOW)
}

fn check(result: CheckResult, second: i64) -> RolloutDecision {
    decision(RolloutVerb::Check, second, "planner", Some(result))
}

#[test]
fn a_gate_with_checks_opens_on_a_pass_alone() {
    use CheckResult::{Fail, Inconclusive, Pass};
    let wave = json!({ "checks": [{ "request": "muster.check.smoke" }] });
    let step = |decisions: &[_], first| of_canary(&wave, decisions, &[first, WAITING]).step;
    assert_eq!(step(&[], CONFIRMED), Step::Check { wave: 0 });
    assert_eq!(
        step(&[check(Inconclusive, 9)], CONFIRMED),
        Step::Check { wave: 0 },
        "nothing known is no pass"
    );
    assert_eq!(step(&[check(Pass, 9)], CONFIRMED), release(1, &[1]));
    let failed = Step::Fail { wave: 0, because: Failure::Check, verb: RolloutVerb::Pause };
    assert_eq!(step(&[check(Fail, 9)], CONFIRMED), failed);
    assert_eq!(step(&[check(Fail, 9)], DARK), failed, "whatever becomes of its devices");
    let shut = Step::Wait { wave: 0, because: Blocked::Gate };
    assert_eq!(step(&[check(Pass, 9)], DARK), shut, "a pass is no evidence about a device");
    assert_eq!(step(&[], DARK), shut, "nobody is asked before the evidence is enough");
}

#[test]
fn failed_checks_are_asked_again_and_a_pass_of_another_run_is_none() {
    let wave = json!({ "checks": [{ "request": "muster.check.smoke" }] });
    let step = |decisions: &[_]| of_canary(&wave, decisions, &[CONFIRMED, WAITING]).step;
    let by_person = |verb, second| decision(verb, second, "a", None);
    let failed =
        [check(CheckResult::Fail, 1), by_person(RolloutVerb::Pause, 2), by_person(RolloutVerb::Resume, 3)];
    assert_eq!(step(&failed), Step::Check { wave: 0 });
    let again =
        [check(CheckResult::Pass, 1), by_person(RolloutVerb::Stop, 2), by_person(RolloutVerb::Retry, 3)];
    assert_eq!(step(&again), Step::Check { wave: 0 });
}

#[test]
fn a_gate_that_was_open_once_asks_no_check_again() {
    let wave = json!({ "checks": [{ "request": "muster.check.smoke" }], "approval": "after" });
    let begun =
        RolloutDecision { wave: "rest".parse().ok(), ..decision(RolloutVerb::Begin, 1, "planner", None) };
    let state = of_canary(&wave, &[begun], &[CONFIRMED, DARK, WAITING]);
    assert_eq!((state.waves[0].gate, state.step), (Gate::Open, release(1, &[2])));
}

#[test]
fn the_evidence_of_a_wave_is_approved_after_it_is_there() {
    let wave = json!({ "approval": "after" });
    let step = |decisions: &[_], first| of_canary(&wave, decisions, &[first, WAITING]).step;
    let (ready, approved) =
        (decision(RolloutVerb::Ready, 5, "planner", None), decision(RolloutVerb::Approve, 5, "a", None));
    let early = RolloutDecision { at: Timestamp::constant(4, 0), ..approved.clone() };
    let waits = Step::Wait { wave: 0, because: Blocked::Approval };
    assert_eq!(step(&[], WAITING), release(0, &[0]), "it begins without");
    assert_eq!(step(&[], CONFIRMED), Step::Ready { wave: 0 });
    assert_eq!(step(std::slice::from_ref(&ready), CONFIRMED), waits);
    assert_eq!(
        step(&[early, ready.clone()], CONFIRMED),
        waits,
        "nobody has seen the evidence before it was there"
    );
    assert_eq!(step(&[ready.clone(), approved.clone()], CONFIRMED), release(1, &[1]));
    let failed = Step::Fail { wave: 0, because: Failure::Gate, verb: RolloutVerb::Pause };
    assert_eq!(
        step(std::slice::from_ref(&ready), FAILED),
        failed,
        "a failure counts while approvals are awaited"
    );
    assert_eq!(step(&[ready, approved], DARK), Step::Wait { wave: 0, because: Blocked::Gate });
}

#[test]
fn approvals_of_evidence_follow_its_checks() {
    let wave = json!({ "approval": "after", "checks": [{ "request": "muster.check.smoke" }] });
    let step = |decisions: &[_]| of_canary(&wave, decisions, &[CONFIRMED, WAITING]).step;
    assert_eq!(step(&[]), Step::Check { wave: 0 });
    assert_eq!(step(&[check(CheckResult::Pass, 1)]), Step::Ready { wave: 0 });
}

#[test]
fn complete_evidence_needs_a_known_end_of_every_target() {
    let gate = |evidence: &str, targets: &[_]| {
        let wave =
            json!({ "success": { "atLeast": "50%", "evidence": evidence }, "failure": { "atMost": 9 } });
        of_wave(wave, targets).waves[0].gate
    };
    let dark = [CONFIRMED, CONFIRMED, DARK];
    assert_eq!((gate("lower", &dark), gate("complete", &dark)), (Gate::Open, Gate::Shut));
    assert_eq!(gate("complete", &[CONFIRMED, CONFIRMED, FAILED]), Gate::Open);
    assert_eq!(
        gate("complete", &[CONFIRMED, CONFIRMED, (true, Evidence::Debt)]),
        Gate::Open,
        "debt is declared"
    );
}

#[test]
fn a_forced_gate_counts_as_open_but_for_approvals() {
    let force = decision(RolloutVerb::Force, 20, "operator", None);
    let plain = json!({});
    let checked = json!({ "checks": [{ "request": "muster.check.smoke" }] });
    let approved = json!({ "approval": "after" });
    for (wave, first) in [(&plain, DARK), (&plain, FAILED), (&checked, CONFIRMED), (&checked, DARK)] {
        let step = |decisions: &[_]| of_canary(wave, decisions, &[first, WAITING]);
        assert_ne!(step(&[]).step, release(1, &[1]), "{wave} {first:?}");
        let forced = step(std::slice::from_ref(&force));
        assert_eq!((forced.step, forced.waves[0].forced), (release(1, &[1]), true), "{wave} {first:?}");
    }
    let failed = [check(CheckResult::Fail, 9), force.clone()];
    assert_eq!(of_canary(&checked, &failed, &[CONFIRMED, WAITING]).step, release(1, &[1]));
    let rest =
        RolloutDecision { wave: "rest".parse().ok(), ..decision(RolloutVerb::Begin, 21, "planner", None) };
    let later = of_canary(&plain, &[force.clone(), rest], &[FAILED, CONFIRMED]).step;
    assert_eq!(later, Step::Done, "the gate stays open once the next wave has begun");
    let unapproved = of_canary(&approved, &[force], &[DARK, WAITING]).step;
    assert_eq!(unapproved, Step::Ready { wave: 0 }, "approvals are needed all the same");
}

#[test]
fn an_edit_of_the_wave_or_of_the_approvals_voids_earlier_approvals() {
    let of = |wave: Value, need: u32| {
        let mut first = json!({ "name": "canary", "devices": ["s0/d0"], "approval": "before" });
        first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
        let mut rollout = rollout(json!([first]));
        rollout.approvals.need = need.try_into().unwrap();
        rollout
    };
    let before = of(json!({}), 2);
    let policy = Some(before.approved_policy(&before.waves[0]));
    let approved = |by| RolloutDecision { policy, ..decision(RolloutVerb::Approve, 1, by, None) };
    let mut record = RolloutRecord::new(id("v2").digest, "rollout.yaml".to_owned());
    for by in ["UA", "UB"] {
        record.decide(approved(by), &before.approvals).unwrap();
    }
    let counted = |rollout: &Rollout| {
        let count =
            super::super::approvals::approvals(rollout, &rollout.waves[0], Some(&record), NOW).unwrap();
        (count.given, count.void)
    };
    assert_eq!(counted(&before), (2, 0));
    assert_eq!(counted(&of(json!({ "failure": { "atMost": 1 } }), 2)), (0, 2), "the wave was edited");
    assert_eq!(counted(&of(json!({}), 1)), (0, 2), "the rule of approvals was edited");
    let later = of(json!({ "soak": "5m" }), 2);
    let policy = Some(later.approved_policy(&later.waves[0]));
    let again = RolloutDecision { policy, ..decision(RolloutVerb::Approve, 2, "UA", None) };
    let mut record = record.clone();
    assert_eq!(record.decide(again, &later.approvals), Ok(true), "the same person approves the edited wave");
}
