//! The operator's view of rollouts on a whole system: whether each decision follows from LEDGER, what a rollout waits for,
//! and its waves as they change.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::rollout::RolloutVerb;
use muster_tests::plans::{change, pending};
use muster_tests::rollouts::{
    PLANNER, ROLLOUT_FILE, governed, json, muster, release, says, start_planner, tamper,
};
use muster_tests::story::sleeper;
use muster_tests::system::{PUBLISHER, ROLLUP, System, agent_name};
use muster_tests::watching::Watch;
use serde_json::{Value, json};

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1]}
  - {name: second, devices: [plant7/press-2]}
";

async fn finished(system: &System) {
    says(system, &["rollout", "history", "web"], "has succeeded").await;
}

fn results(found: &Value) -> Vec<(String, String)> {
    let decisions =
        found["rollouts"].as_array().unwrap().iter().flat_map(|one| one["decisions"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    decisions.map(|one| (text(&one["verb"]), text(&one["result"]))).collect()
}

#[tokio::test]
async fn each_decision_recomputes_to_itself_and_a_tampered_one_is_named() {
    let (mut system, _) = governed(ROLLOUT).await;
    let (code, said) = muster(&system, &["rollout", "verify", "web"]).await;
    assert!(code == 1 && said.contains("no rollout.yaml governs"), "before the commit: {said}");
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    finished(&system).await;
    // A newer commit, with other waves: decisions about the older one follow from its own.
    system.repository.write(ROLLOUT_FILE, &ROLLOUT.replace("plant7/press-1", "plant8/press-3")).unwrap();
    let broken = sleeper("web", 3).replace("command: sleep", "command: no-such-program");
    release(&system, &broken).await;
    says(&system, &["rollout", "show", "web"], "is paused since").await;

    let (code, found) = json(&system, &["rollout", "verify", "web"]).await;
    let verbs: Vec<_> =
        results(&found).into_iter().map(|(verb, result)| format!("{verb} {result}")).collect();
    assert_eq!(
        verbs,
        ["begin same", "begin same", "begin same", "finish same", "begin same", "pause same"],
        "{found:#}"
    );
    assert_eq!(code, 0, "{found:#}");
    let (_, said) = muster(&system, &["rollout", "verify", "web"]).await;
    assert!(said.contains("6 decisions recomputed to themselves"), "{said}");

    tamper(&system, |decision| {
        if decision.wave.as_ref().is_some_and(|wave| wave.as_str() == "rest") {
            decision.evidence.as_mut().unwrap().confirmed += 7;
        }
    })
    .await;
    let (code, said) = muster(&system, &["rollout", "verify", "web"]).await;
    assert!(code == 1 && said.contains("different") && said.contains("1 did not"), "{said}");
    assert!(said.contains(", 8 confirmed, 1 soaked") && said.contains(", 1 confirmed, 1 soaked"), "{said}");

    // A decision whose past is gone is never right.
    tamper(&system, |decision| {
        if decision.verb == RolloutVerb::Finish {
            decision.evidence.as_mut().unwrap().revision = Some("0".repeat(40));
        }
    })
    .await;
    let (code, said) = muster(&system, &["rollout", "verify", "web"]).await;
    assert!(
        code == 1 && said.contains("1 cannot be verified") && said.contains("does not give commit"),
        "{said}"
    );
    tamper(&system, |decision| decision.evidence = None).await;
    let (code, said) = muster(&system, &["rollout", "verify", "web"]).await;
    assert!(code == 2 && said.contains("names no evidence"), "{code}: {said}");
}

#[tokio::test]
async fn a_waiting_rollout_names_its_bound_and_its_watch_ends_at_the_last_gate() {
    let (mut system, devices) = governed(ROLLOUT).await;
    system.kill(&agent_name(&devices[0])).await;
    start_planner(&mut system);
    let commit = release(&system, &sleeper("web", 2)).await;
    let until = ["--until", "done", "--fail-on", "failing,paused", "--commit", &commit, "--within", "60s"];
    let mut watch = Watch::run(&system, &[&["rollout", "watch", "web"], &until[..]].concat());
    let words = "the gate behind wave canary needs 1 of 1 confirmed and has 0, at most 1: 1 not heard since ";
    let said = says(&system, &["why", "rollout", "web"], words).await;
    assert!(said.contains("(plant7/press-1)"), "{said}");
    let (code, why) = json(&system, &["why", "rollout", "web"]).await;
    let predicate = &why[0]["blocked"];
    assert_eq!(
        (code, &predicate["rule"], &predicate["wave"]),
        (0, &"gate".into(), &"canary".into()),
        "{why:#}"
    );
    assert_eq!(
        (&why[0]["devices"][0]["known"], &why[0]["devices"][0]["count"]),
        (&"notHeard".into(), &1.into())
    );
    let line = watch.line_with("canary [??").await;
    assert!(line.contains("0 of 1 confirmed, 1 not heard"), "{line}");
    let dark_at = muster_contract::Timestamp::now().to_string();

    let (code, said) =
        muster(&system, &["rollout", "watch", "web", "--until", "done", "--within", "1s"]).await;
    assert!(code == 3 && said.contains("the time is over before the rollouts are done: running"), "{said}");

    system.kill(ROLLUP).await;
    watch.says("trying on").await;
    system.start_again(ROLLUP);
    watch.says("answered again").await;
    system.start_again(&agent_name(&devices[0]));
    let (code, said) = watch.end().await;
    assert_eq!(code, 0, "{said}");
    finished(&system).await;
    let (_, why) = muster(&system, &["why", "rollout", "web"]).await;
    assert!(why.contains("done: every target has the content"), "{why}");

    let (code, then) = muster(&system, &["rollout", "show", "web", "--at", &dark_at]).await;
    assert!(code == 0 && then.contains("1 not heard") && !then.contains("done:"), "{then}");
    let (_, before) = muster(&system, &["rollout", "show", "web", "--at", "1h"]).await;
    assert!(before.contains("LEDGER") || before.contains("No decision"), "{before}");
}

#[tokio::test]
async fn a_watch_lists_waves_awaiting_approval_and_a_rejected_one_never_begins() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, approval: before}]
";
    let (mut system, _) = governed(waves).await;
    start_planner(&mut system);
    let mut approvals = Watch::start(&system, &["approvals"]);
    approvals.says("no wave waits for an approval").await;
    release(&system, &sleeper("web", 2)).await;
    let line = approvals.line_with("wave ours of web").await;
    assert!(
        line.contains("2 devices, has 0 of 1 approvals; `muster rollout approve web --wave ours`"),
        "{line}"
    );
    let words = "which has 0 of 1 approvals: `muster rollout approve web --wave ours` gives one";
    says(&system, &["why", "rollout", "web"], words).await;
    system.kill(PUBLISHER).await;
    approvals.says("trying on").await;
    system.start_again(PUBLISHER);
    approvals.says("answered again").await;
    let approve = async || match muster(&system, &["rollout", "approve", "web"]).await {
        (0, said) => Ok(said),
        (_, said) => Err(said),
    };
    system.eventually("the wave is approved", approve).await;
    approvals.line_with("approved wave ours").await;
    finished(&system).await;

    let mut json = Watch::start(&system, &["approvals", "--format", "json"]);
    release(&system, &sleeper("web", 3)).await;
    let event: Value = serde_json::from_str(&json.line_with("waiting").await).unwrap();
    assert_eq!((&event["wave"], &event["approvals"]["needed"]), (&"ours".into(), &1.into()), "{event}");
    let watch = ["rollout", "watch", "web", "--until", "done", "--fail-on", "stopped", "--format", "json"];
    let mut watch = Watch::run(&system, &watch);
    watch.line_with("\"approval\"").await;
    let (code, said) = muster(&system, &["rollout", "reject", "web", "--reason", "holiday"]).await;
    assert!(code == 0 && said.contains("is cancelled"), "{said}");
    let (code, said) = watch.end().await;
    assert_eq!(code, 1, "{said}");
    json.line_with("\"ended\"").await;
    let (_, history) = muster(&system, &["rollout", "history", "web"]).await;
    assert!(history.contains("wave ours is rejected: holiday"), "{history}");
    let (code, said) = muster(&system, &["rollout", "reject", "web", "--wave", "theirs"]).await;
    assert!(code != 0 && said.contains("no wave 'theirs' of 'web' waits for approval"), "{said}");
    assert_eq!(json.interrupt().await, 0);
}

/// A plan with a node, whose CREATE waits for approval.
async fn planned(system: &System) {
    change(system, "inventory-apply", json!({ "item": { "cluster": { "name": "north" } } })).await;
    let key = json!({ "site": "plant7", "device": "press-1" });
    let node = json!({ "site": "plant7", "device": "press-1", "updateDomain": "a",
        "totalResources": { "cores": 4, "memory": 8 } });
    change(system, "inventory-apply", json!({ "item": { "node": node } })).await;
    for state in ["allocating", "allocated"] {
        let request = json!({ "item": { "node": key }, "nodeState": state, "cluster": "north" });
        change(system, "inventory-state", request).await;
    }
    let plan = json!({ "name": "line", "namespace": "demo", "serviceName": "line", "profile": "process",
        "applications": [{ "payloadName": "main", "resources": { "cores": 2, "memory": 1 } }] });
    change(system, "plan-apply", plan).await;
    let coordinates = json!({ "main": { "command": "sleep", "args": ["86400"] } });
    let deployment = json!({ "plan": "line", "id": "r1", "instances": 1, "coordinates": coordinates });
    change(system, "plan-deploy", deployment).await;
}

#[tokio::test]
async fn a_watch_tells_operations_beside_waves_through_a_break_of_the_planner() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, approval: before}]
";
    let (mut system, _) = governed(waves).await;
    let (code, said) = Watch::start(&system, &["approvals", "--within", "3s"]).end().await;
    let no_planner =
        "operations of plans are not followed until a planner answers (a hub without one has no plans)";
    assert!(code == 0 && said.contains(no_planner) && said.contains("no wave waits"), "{code}: {said}");
    assert_eq!(said.matches("not followed").count(), 1, "{said}");

    start_planner(&mut system);
    planned(&system).await;
    let waiting = pending(&system, &["CREATE"]).await.remove(0);
    let command = format!("muster operation approve {}", waiting["operation"]["id"].as_str().unwrap());
    let mut watch = Watch::start(&system, &["approvals"]);
    let mut events = Watch::start(&system, &["approvals", "--format", "json"]);
    let line = watch.line_with("operation CREATE").await;
    for words in [
        "waiting ",
        "plan line on plant7/press-1",
        ", since 20",
        ", expires 20",
        "node plant7/press-1: ",
        &command,
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    let event: Value = serde_json::from_str(&events.line_with("waiting").await).unwrap();
    assert_eq!(
        (&event["kind"], &event["plan"], &event["type"]),
        (&"operation".into(), &"line".into(), &"CREATE".into())
    );
    assert_eq!(
        (&event["node"]["device"], event["command"].as_str()),
        (&"press-1".into(), Some(command.as_str())),
        "{event}"
    );

    system.kill(PLANNER).await;
    watch.says(no_planner).await;
    release(&system, &sleeper("web", 2)).await;
    let line = watch.line_with(" of ").await;
    assert!(line.contains("wave ours of web"), "the watch lists waves meanwhile and repeats nothing: {line}");
    let event: Value = serde_json::from_str(&events.line_with("waiting").await).unwrap();
    assert_eq!((&event["kind"], &event["wave"]), (&"wave".into(), &"ours".into()), "{event}");
    system.start_again(PLANNER);
    watch.says("all operations of plans are followed").await;

    let approve: Vec<_> = command.split(' ').skip(1).collect();
    let (code, said) = muster(&system, &approve).await;
    assert_eq!(code, 0, "{said}");
    let line = watch.line_with("operation CREATE").await;
    assert!(line.starts_with("approved operation CREATE of "), "a break repeats no operation: {line}");
    let event: Value = serde_json::from_str(&events.line_with("\"operation\"").await).unwrap();
    assert_eq!((&event["event"], &event["plan"]), (&"approved".into(), &"line".into()), "{event}");
    assert_eq!((watch.interrupt().await, events.interrupt().await), (0, 0));
    let (code, said) = Watch::start(&system, &["approvals", "--within", "3s"]).end().await;
    assert!(code == 0 && said.contains("no operation of a plan waits"), "{code}: {said}");
}

#[tokio::test]
async fn a_forced_gate_is_recorded_with_its_author_and_reason_and_recomputes() {
    let (mut system, devices) = governed(ROLLOUT).await;
    system.kill(&agent_name(&devices[0])).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    says(&system, &["why", "rollout", "web"], "the gate behind wave canary needs 1 of 1 confirmed").await;
    let (code, said) = muster(&system, &["rollout", "next", "web", "--force"]).await;
    assert!(code == 2 && said.contains("--reason"), "a gate is not forced without a reason: {said}");
    let (code, said) = muster(&system, &["rollout", "next", "web"]).await;
    assert!(code == 1 && said.contains("the gate behind wave canary needs 1 of 1"), "{code}: {said}");

    let force = ["rollout", "next", "web", "--force", "--reason", "press-1 is being replaced"];
    let (_, said) = muster(&system, &force).await;
    assert!(said.contains("the gate behind wave canary is forced open"), "{said}");
    finished(&system).await;
    let (_, said) = muster(&system, &["rollout", "history", "web"]).await;
    assert!(said.contains("force") && said.contains("press-1 is being replaced"), "{said}");
    let (code, found) = json(&system, &["rollout", "verify", "web"]).await;
    let forced: Vec<_> = results(&found).into_iter().filter(|(verb, _)| verb == "force").collect();
    assert_eq!(forced, [("force".to_owned(), "same".to_owned())], "{found:#}");
    assert_eq!(code, 0, "{found:#}");
    says(&system, &["rollout", "show", "web"], "open, forced").await;
}
