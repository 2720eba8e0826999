//! Devices that are not heard: in the budget before they have the content, in a preview, and after a rollback. And the deadline of a
//! rollout that waits for them.

use muster_contract::rollout::TargetsAnswer;
use muster_contract::view::Freshness;

use super::*;

/// A rollout of `devices` devices in one group, with these fields of its policy and the decisions of a person.
fn listed_rollout(
    policy: Value,
    devices: usize,
    decisions: &[RolloutVerb],
    lines: &Lines,
    fields: &dyn Fn(usize) -> Value,
) -> RolloutProgress {
    let mut document = json!({ "apiVersion": "muster/v1", "kind": "Rollout" });
    document.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
    let digest = id("v2").digest;
    let target = |at: usize| {
        let mut target = json!({ "site": "s", "device": format!("d{at}"), "rollout": "f", "wanted": digest, "labels": { "line": "a" } });
        target.as_object_mut().unwrap().extend(fields(at).as_object().unwrap().clone());
        target
    };
    let targets: Vec<_> = (0..devices).map(target).collect();
    let mut record = RolloutRecord::new(digest, "f".to_owned());
    for verb in decisions {
        let begun = (*verb == RolloutVerb::Begin).then(|| "a".parse().unwrap());
        let decision = RolloutDecision { wave: begun, ..RolloutDecision::new(*verb, Timestamp::UNIX_EPOCH) };
        record.decide(decision, &Default::default()).unwrap();
    }
    let records = if decisions.is_empty() { vec![] } else { vec![record] };
    let answer =
        json!({ "revision": "c1", "rollouts": { "f": document }, "targets": targets, "decisions": records });
    let answer: TargetsAnswer = serde_json::from_value(answer).unwrap();
    progress(&"web".parse().unwrap(), answer, lines, NOW).remove(0)
}

/// Hearings of devices without a line of the deployment.
fn heard(hearings: &[(usize, Freshness)]) -> Lines {
    let key = |at: usize| format!("s/d{at}").parse().unwrap();
    let hearings = hearings.iter().map(|(at, freshness)| (key(*at), (*freshness, None)));
    Lines { hearings: hearings.collect(), ..Lines::default() }
}

#[test]
fn a_silent_device_without_the_deployment_takes_its_place_in_the_budget() {
    let policy = || json!({ "budget": { "groupBy": "line", "maxUnavailable": 1 }, "waves": [{ "name": "a", "percent": "100%" }] });
    let of = |lines: &Lines| listed_rollout(policy(), 3, &[], lines, &|_| json!({}));
    let fresh = heard(&[(0, Freshness::Fresh), (1, Freshness::Fresh), (2, Freshness::Fresh)]);
    assert_eq!(of(&fresh).state.step, release(0, &[0]), "one of them may be unavailable");
    for silent in [Freshness::Stale, Freshness::Never] {
        let lines = heard(&[(0, silent), (1, Freshness::Fresh), (2, Freshness::Fresh)]);
        let rollout = of(&lines);
        assert_eq!(rollout.state.step, release(0, &[0]), "only the silent one needs no room");
        let outlook = outlook(&rollout, &lines, NOW);
        let dark: Vec<_> = outlook.dark.iter().map(|dark| dark.key.to_string()).collect();
        assert_eq!(dark, ["s/d0"]);
        assert_eq!((outlook.clashes[0].unavailable, outlook.clashes[0].waiting), (1, 2));
    }
}

#[test]
fn a_rollback_names_the_devices_that_it_has_not_reached() {
    let (digest, earlier) = (id("v2").digest, id("v1").digest);
    let line = |device: &str, standing: &str, freshness: &str| {
        let fields = json!({ "standing": standing, "freshness": freshness, "targetGeneration": 7 });
        line_of(&device.parse().unwrap(), &fields)
    };
    let lines = [
        line("s/d0", "outdated", "stale"),
        line("s/d1", "outdated", "fresh"),
        line("s/d2", "installed", "stale"),
        line("s/d3", "outdated", "stale"),
    ];
    let of_devices = lines.into_iter().map(|line| (line.key.clone(), line)).collect();
    let lines = Lines { of_devices, ..Lines::default() };
    // The last one never had the content: it has the earlier one since long before.
    let fields = |at: usize| {
        let second = if at == 3 { -90 } else { 5 };
        json!({ "wanted": digest, "published": earlier, "publishedAt": Timestamp::constant(second, 0), "targetGeneration": 7 })
    };
    let rollout = listed_rollout(json!({}), 4, &[RolloutVerb::Rollback], &lines, &fields);
    assert_eq!(rollout.state.step, Step::Held { phase: RolloutPhase::RolledBack });
    assert!(
        rollout.why().contains("; not heard, and may still run it: 1 device (s/d0);"),
        "{}",
        rollout.why()
    );
}

#[test]
fn a_rollback_takes_the_content_from_the_last_wave_first() {
    let digest = id("v2").digest;
    let policy = json!({ "waves": [{ "name": "a", "devices": ["s/d0", "s/d2"] }, { "name": "b", "devices": ["s/d1"] }] });
    let has_content = |_| json!({ "published": digest, "targetGeneration": 7 });
    let rollout = listed_rollout(policy, 4, &[RolloutVerb::Rollback], &Lines::default(), &has_content);
    assert_eq!(rollout.state.step, Step::RollBack { targets: vec![3, 1, 0, 2] });
}

#[test]
fn an_open_rollout_has_a_deadline_or_says_that_it_is_unbounded() {
    let digest = id("v2").digest;
    let of = |deadlines: Value, decisions: &[RolloutVerb]| {
        let policy = json!({ "waves": [{ "name": "a", "percent": "100%" }], "deadlines": deadlines });
        let has_content = |_| json!({ "published": digest, "targetGeneration": 7 });
        listed_rollout(policy, 1, decisions, &Lines::default(), &has_content).bound()
    };
    let unbounded = Some("unbounded: no deadline ends this".to_owned());
    let begun = [RolloutVerb::Begin];
    assert_eq!(of(json!({}), &begun), unbounded);
    let deadlines = json!({ "wave": "2m", "rollout": "3m", "atEnd": "rollback" });
    assert_eq!(
        of(deadlines.clone(), &begun).as_deref(),
        Some("deadline 1970-01-01T00:02:00Z, then rollback")
    );
    assert_eq!(of(deadlines.clone(), &[]), unbounded, "no clock runs before the first wave has begun");
    assert_eq!(of(deadlines, &[RolloutVerb::Begin, RolloutVerb::Pause]), unbounded);
    assert_eq!(
        of(json!({}), &[RolloutVerb::Begin, RolloutVerb::Abort]),
        unbounded,
        "it takes the content back"
    );
}
