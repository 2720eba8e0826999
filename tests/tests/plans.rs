//! Plans on a whole system with real agents: from a request to a running workload and back, by approvals, through kills of
//! planners that race.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;

use muster_contract::DeviceKey;
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{self, stream};
use muster_simulator::child::Spec;
use muster_tests::example::{Example, Language};
use muster_tests::plans::{approve, ask, change, pending, revision, verdict};
use muster_tests::rollouts::{PLANNER, start_planner};
use muster_tests::system::{System, program};
use serde_json::{Value, json};

const NODES: [&str; 3] = ["plant7/press-1", "plant7/press-2", "plant8/press-3"];

/// Devices that run, as nodes of a cluster with so many cores each.
async fn with_nodes(cores: u64) -> (System, Vec<DeviceKey>) {
    let mut system = System::start().await;
    start_planner(&mut system);
    let devices: Vec<DeviceKey> = NODES.iter().map(|text| text.parse().unwrap()).collect();
    let hub = system.address();
    change(&system, "inventory-apply", json!({ "item": { "cluster": { "name": "north" } } })).await;
    for (at, key) in devices.iter().enumerate() {
        system.start_agent(key, hub, &[]);
        let node = json!({ "site": key.site, "device": key.device, "updateDomain": format!("d{at}"),
            "totalResources": { "cores": cores, "memory": 8 } });
        change(&system, "inventory-apply", json!({ "item": { "node": node } })).await;
        for state in ["allocating", "allocated"] {
            let request = json!({ "item": { "node": key }, "nodeState": state, "cluster": "north" });
            change(&system, "inventory-state", request).await;
        }
    }
    (system, devices)
}

fn plan() -> Value {
    json!({ "name": "web", "namespace": "demo", "serviceName": "web", "profile": "process",
        "applications": [{ "payloadName": "main", "resources": { "cores": 2, "memory": 1 } }] })
}

async fn deploy(system: &System, id: &str, instances: u32, release: &str) {
    deploy_beside(system, id, instances, None, release).await;
}

async fn deploy_beside(system: &System, id: &str, instances: u32, canary: Option<u32>, release: &str) {
    let coordinates = json!({ "main": { "command": "sleep", "args": ["86400"],
        "readiness": { "type": "uptime", "for": "50ms" }, "release": release } });
    let request = json!({ "plan": "web", "id": id, "instances": instances, "canary": canary,
        "coordinates": coordinates });
    change(system, "plan-deploy", request).await;
}

/// The deployments of each node in DOWNLINK.
async fn ordered(system: &System, devices: &[DeviceKey]) -> BTreeMap<String, Vec<String>> {
    let mut ordered = BTreeMap::new();
    for key in devices {
        let last = system.bus.last(stream::DOWNLINK, &subjects::desired(key)).await.unwrap();
        let Some(last) = last else { continue };
        let document: DesiredState = muster_contract::decode::parse(&last.payload).unwrap();
        let ids = document.deployments.iter().map(|entry| entry.id.to_string()).collect();
        ordered.insert(key.to_string(), ids);
    }
    ordered
}

fn count(ordered: &BTreeMap<String, Vec<String>>) -> usize {
    ordered.values().map(Vec::len).sum()
}

#[tokio::test]
async fn a_plan_runs_on_devices_by_approvals_and_scales_up_and_down() {
    let (system, devices) = with_nodes(4).await;
    let made = change(&system, "plan-apply", plan()).await;
    assert_eq!((made["version"].as_u64(), &made["state"]), (Some(0), &json!("active")));
    deploy(&system, "r1", 1, "1").await;
    pending(&system, &["CREATE"]).await;
    assert_eq!(count(&ordered(&system, &devices).await), 0, "nothing is ordered before the approval");
    approve(&system, &["CREATE"]).await;
    let answer = revision(&system, "r1", "completed").await;
    assert_eq!(
        (&answer["plan"]["version"], &answer["summary"]["runtime"]),
        (&json!(3), &json!({ "running": 1 }))
    );
    let first = ordered(&system, &devices).await;

    deploy(&system, "r2", 3, "1").await;
    approve(&system, &["CREATE", "CREATE", "UPDATE"]).await;
    let answer = revision(&system, "r2", "completed").await;
    assert_eq!(answer["summary"]["runtime"], json!({ "running": 3 }));
    assert!(ordered(&system, &devices).await.values().all(|ids| ids.len() == 1), "one payload on a node");

    deploy(&system, "r3", 1, "1").await;
    approve(&system, &["DELETE", "DELETE", "UPDATE"]).await;
    let answer = revision(&system, "r3", "completed").await;
    assert_eq!(answer["plan"]["version"], 9);
    let mut left = ordered(&system, &devices).await;
    left.retain(|_, ids| !ids.is_empty());
    let mut kept = first;
    kept.retain(|_, ids| !ids.is_empty());
    assert_eq!(left, kept, "the first one is kept, and has the same order");
    let nodes = ask(&system, "inventory-list", &json!({ "kind": "node", "remainingCoresGte": 4 })).await;
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 2, "{nodes}");
}

#[tokio::test]
async fn two_revisions_of_a_plan_run_side_by_side_until_a_switch() {
    let (system, devices) = with_nodes(4).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 2, "1").await;
    approve(&system, &["CREATE", "CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let blue = ordered(&system, &devices).await;
    deploy_beside(&system, "r2", 3, Some(1), "2").await;
    approve(&system, &["CREATE"]).await;
    let answer = revision(&system, "r2", "completed").await;
    assert_eq!(answer["summary"]["revisions"], json!({ "r1": 2, "r2": 1 }));
    assert_eq!(answer["summary"]["runtime"], json!({ "running": 3 }));
    let all = ordered(&system, &devices).await;
    assert!(blue.iter().all(|(node, ids)| ids.is_empty() || all[node] == *ids), "{all:?}");

    deploy(&system, "r3", 1, "2").await;
    approve(&system, &["DELETE", "DELETE", "UPDATE"]).await;
    revision(&system, "r3", "completed").await;
    let left = ordered(&system, &devices).await;
    let was_empty = |node: &String| blue.get(node).is_none_or(Vec::is_empty);
    assert!(left.iter().all(|(node, ids)| ids.is_empty() != was_empty(node)), "the new one stays: {left:?}");
}

#[tokio::test]
async fn a_migrated_plan_runs_in_the_other_one_before_it_stops() {
    let (system, devices) = with_nodes(4).await;
    change(&system, "plan-apply", plan()).await;
    let mut next = plan();
    next["name"] = json!("next");
    change(&system, "plan-apply", next).await;
    deploy(&system, "r1", 1, "1").await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let old = ordered(&system, &devices).await;
    change(&system, "plan-migrate", json!({ "plan": "web", "to": "next", "id": "m1" })).await;
    approve(&system, &["CREATE"]).await;
    // The deletion waits for its approval once the other plan has completed its revision.
    pending(&system, &["DELETE"]).await;
    let both = ordered(&system, &devices).await;
    assert!(
        count(&both) == 2 && old.iter().all(|(node, ids)| ids.is_empty() || both[node] == *ids),
        "{both:?}"
    );
    approve(&system, &["DELETE"]).await;
    let left = revision(&system, "m1", "completed").await;
    assert_eq!(left["plan"]["revisions"][1]["migratedTo"], "next", "{left}");
    assert_eq!(left["summary"]["instances"], 0, "{left}");
    let moved = ask(&system, "plan-get", &json!({ "plan": "next" })).await;
    assert_eq!(moved["summary"]["runtime"], json!({ "running": 1 }), "{moved}");
    assert_eq!(count(&ordered(&system, &devices).await), 1);
}

#[tokio::test]
async fn a_relocate_moves_a_running_instance_to_another_device() {
    let (system, devices) = with_nodes(4).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 1, "1").await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let listed = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
    let instance = &listed["instances"][0]["instance"];
    let old = instance["placements"][0]["node"].clone();
    let request = json!({ "plan": "web", "instance": instance["name"], "type": "RELOCATE" });
    change(&system, "operation-request", request).await;
    approve(&system, &["RELOCATE"]).await;
    let moved = async || {
        let listed = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
        let of = &listed["instances"][0];
        let placements = of["instance"]["placements"].as_array().unwrap();
        let is_moved = placements.len() == 1 && placements[0]["node"] != old;
        if is_moved && of["placements"][0]["state"] == "running" { Ok(()) } else { Err(listed.to_string()) }
    };
    system.eventually("the instance runs on another node alone", moved).await;
    assert_eq!(count(&ordered(&system, &devices).await), 1);
}

#[tokio::test]
async fn an_instance_is_stopped_and_restarted_on_its_node() {
    let (system, devices) = with_nodes(4).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 1, "1").await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let listed = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
    let instance = listed["instances"][0]["instance"]["name"].clone();
    for (kind, state) in [("STOP", "terminated"), ("RESTART", "running"), ("RESTART", "running")] {
        let request = json!({ "plan": "web", "instance": instance, "type": kind });
        change(&system, "operation-request", request).await;
        approve(&system, &[kind]).await;
        let ended = async || {
            let listed = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
            let of = &listed["instances"][0];
            let last = of["instance"]["operations"].as_array().unwrap().last().unwrap().clone();
            let is_done = last["type"] == kind && last["state"] == "SUCCEEDED";
            if is_done && of["placements"][0]["state"] == state { Ok(()) } else { Err(listed.to_string()) }
        };
        system.eventually("the operation has succeeded", ended).await;
        assert_eq!(count(&ordered(&system, &devices).await), 1, "the node keeps the instance");
    }
}

#[tokio::test]
async fn an_instance_of_a_plan_is_drained_before_it_is_deleted() {
    let (system, devices) = with_nodes(4).await;
    let mut with_drain = plan();
    let none = json!({ "cores": 0, "memory": 0 });
    let drain = json!({ "payloadName": "drain", "resources": none });
    with_drain["applications"].as_array_mut().unwrap().push(drain);
    change(&system, "plan-apply", with_drain).await;
    let drained = system.dir().join("drained");
    let coordinates = json!({
        "main": { "command": "sleep", "args": ["86400"] },
        "drain": { "command": "touch", "args": [drained], "readiness": { "type": "exit" }, "timeout": "1m",
            "runsAt": "pre-delete" },
    });
    let request = json!({ "plan": "web", "id": "r1", "instances": 1, "coordinates": coordinates });
    change(&system, "plan-deploy", request).await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "r1", "completed").await;
    assert!(!drained.exists(), "a removal job does not run while the instance is there");
    let request = json!({ "plan": "web", "id": "r2", "instances": 0, "coordinates": coordinates });
    change(&system, "plan-deploy", request).await;
    approve(&system, &["DELETE"]).await;
    revision(&system, "r2", "completed").await;
    assert!(drained.exists(), "the DELETE succeeds after the removal job has ended");
    assert_eq!(count(&ordered(&system, &devices).await), 0);
}

/// The changes after a sequence, two a page, and the sequence up to which they were read.
async fn changes(system: &System, subjects: &[&str], mut after: u64) -> (Vec<Value>, u64) {
    let mut found = Vec::new();
    loop {
        let question = json!({ "subject": subjects, "after": after, "limit": 2 });
        let page = change(system, "change-list", question).await;
        let more = page["changes"].as_array().unwrap();
        assert!(more.len() <= 2, "{page}");
        found.extend(more.iter().cloned());
        let Some(next) = page["next"].as_u64() else { return (found, page["readTo"].as_u64().unwrap()) };
        after = next;
    }
}

fn versions(changes: &[Value], kind: &str) -> Vec<u64> {
    let of_kind = changes.iter().filter(|change| change["document"]["kind"] == kind);
    of_kind.map(|change| change["document"]["version"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_follower_of_plans_gets_each_change_once_also_over_a_killed_planner() {
    const OF_WEB: [&str; 2] = ["muster.plan.web", "muster.instance.web.*"];
    let (mut system, _) = with_nodes(4).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 1, "1").await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let (first, read_to) = changes(&system, &OF_WEB, 0).await;
    assert!(first.is_sorted_by_key(|change| change["seq"].as_u64()), "{first:?}");
    assert_eq!(versions(&first, "Plan"), [0, 1, 2, 3]);
    let of_instance = versions(&first, "Instance");
    assert_eq!(of_instance, (0..of_instance.len() as u64).collect::<Vec<_>>());
    assert_eq!(first.last().unwrap()["document"]["revisions"][0]["state"], "completed");
    let (nodes, _) = changes(&system, &["muster.inventory.node.plant7.press-1"], 0).await;
    assert_eq!(versions(&nodes, "Node").len(), nodes.len());
    let (all, end) = changes(&system, &[], 0).await;
    assert!(end == read_to && all.len() > first.len() + nodes.len(), "{}", all.len());

    system.kill(PLANNER).await;
    system.start_again(PLANNER);
    change(&system, "plan-state", json!({ "plan": "web", "state": "inactive" })).await;
    let (next, end) = changes(&system, &OF_WEB, read_to).await;
    assert_eq!((versions(&next, "Plan"), next.len()), (vec![4], 1), "{next:?}");
    assert_eq!(changes(&system, &OF_WEB, end).await, (Vec::new(), end), "once");
    let said = system.muster(&["plan", "history", "web"]).await;
    let lines = String::from_utf8(said.stdout).unwrap();
    assert_eq!(lines.lines().count(), first.len() + 1, "{lines}");

    for (question, words) in [
        (json!({ "after": end + 1 }), "is beyond the end of PLANS"),
        (json!({ "subject": ["muster.desired.a.b"] }), "is no subject of PLANS"),
        (json!({ "subject": ["muster.plan.*", "muster.plan.web"] }), "overlap"),
    ] {
        let refused = ask(&system, "change-list", &question).await;
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(refused["error"]["code"] == "badRequest" && message.contains(words), "{refused}");
    }
}

#[tokio::test]
async fn a_hook_chooses_nodes_before_placement_and_each_end_is_followed() {
    let (mut system, devices) = with_nodes(4).await;
    let mut spec = plan();
    spec["hooks"] = json!([{ "before": "placement", "request": "muster.check.sites" }]);
    change(&system, "plan-apply", spec).await;
    deploy(&system, "r1", 2, "1").await;
    let held = async || {
        let answer = ask(&system, "plan-get", &json!({ "plan": "web" })).await;
        let message = answer["plan"]["revisions"][0]["message"].to_string();
        if message.contains("hook muster.check.sites is inconclusive") {
            Ok(answer)
        } else {
            Err(answer.to_string())
        }
    };
    let held = system.eventually("no answer holds the revision", held).await;
    assert_eq!(
        (&held["plan"]["revisions"][0]["state"], &held["summary"]["instances"]),
        (&json!("pending"), &json!(0))
    );

    // A killed planner asks again.
    system.kill(PLANNER).await;
    let answer = json!({ "result": "pass", "nodes": devices[1..], "reason": "press-1 is full",
        "coordinates": {} })
    .to_string();
    let _responder = system.bus.respond("muster.check.sites", move |_| answer.clone().into()).await.unwrap();
    system.start_again(PLANNER);
    approve(&system, &["CREATE", "CREATE"]).await;
    revision(&system, "r1", "completed").await;
    let on = ordered(&system, &devices).await;
    assert!(count(&on) == 2 && on.get(NODES[0]).is_none_or(Vec::is_empty), "{on:?}");
    for (words, shown) in [
        (["plan", "explain", "web"], "hook muster.check.sites left it out: press-1 is full"),
        (["plan", "show", "web"], "leaves out 1 node"),
    ] {
        let said = String::from_utf8(system.muster(&words).await.stdout).unwrap();
        assert!(said.contains(shown), "{said}");
    }

    deploy(&system, "r2", 2, "2").await;
    approve(&system, &["UPDATE", "UPDATE"]).await;
    revision(&system, "r2", "completed").await;
    deploy(&system, "r3", 0, "2").await;
    approve(&system, &["DELETE", "DELETE"]).await;
    revision(&system, "r3", "completed").await;
    let (of_plan, _) = changes(&system, &["muster.plan.web"], 0).await;
    let said = of_plan.iter().map(|change| change["document"]["change"]["message"].as_str().unwrap());
    let ends: Vec<_> = said.filter(|message| message.ends_with("is completed")).collect();
    assert_eq!(ends, ["revision r1 is completed", "revision r2 is completed", "revision r3 is completed"]);
}

#[tokio::test]
async fn a_plan_that_fits_nowhere_and_an_expired_operation_name_the_reason() {
    let (system, devices) = with_nodes(1).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 1, "1").await;
    let waits = async || {
        let answer = ask(&system, "operation-list", &json!({ "state": ["PREPARING"] })).await;
        let message = answer["operations"][0]["operation"]["message"].to_string();
        if message.contains("no node of 3 has room") { Ok(message) } else { Err(answer.to_string()) }
    };
    let message = system.eventually("the operation names the nodes", waits).await;
    assert!(message.contains("3 without enough cores or memory"), "{message}");
    let stale = json!({ "plan": "web", "id": "r1", "verb": "cancel", "expectedVersion": 0 });
    let refused = ask(&system, "plan-revision", &stale).await;
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["currentVersion"]),
        (&json!("conflict"), &json!(2))
    );
    change(&system, "plan-revision", json!({ "plan": "web", "id": "r1", "verb": "cancel" })).await;
    revision(&system, "r1", "cancelled").await;

    let small = json!({ "name": "small", "namespace": "demo", "serviceName": "small", "profile": "process",
        "approvalExpiresAfter": "1s",
        "applications": [{ "payloadName": "small", "resources": { "cores": 1, "memory": 1 } }] });
    change(&system, "plan-apply", small).await;
    let coordinates = json!({ "small": { "command": "sleep", "args": ["86400"] } });
    let request = json!({ "plan": "small", "id": "s1", "instances": 1, "coordinates": coordinates });
    change(&system, "plan-deploy", request.clone()).await;
    let failed = async || {
        let answer = ask(&system, "plan-get", &json!({ "plan": "small" })).await;
        let revision = answer["plan"]["revisions"][0].clone();
        let is_expired = revision["message"].to_string().contains("nobody approved it before");
        if revision["state"] == "failed" && is_expired { Ok(()) } else { Err(answer.to_string()) }
    };
    system.eventually("an operation that nobody approves expires", failed).await;
    assert_eq!(count(&ordered(&system, &devices).await), 0);
    let free = ask(&system, "inventory-list", &json!({ "kind": "node", "remainingCoresGte": 1 })).await;
    assert_eq!(free["nodes"].as_array().unwrap().len(), 3, "the node is free again: {free}");
}

/// Approves what waits, and waits until PLANS has grown; whether the revision has completed.
async fn step(system: &System, round: usize) -> bool {
    let before = system.bus.stream_state(stream::PLANS).await.unwrap().last_seq;
    let grown = async || {
        let listed = ask(system, "operation-list", &json!({ "state": ["PENDING_APPROVAL"] })).await;
        for operation in listed["operations"].as_array().into_iter().flatten() {
            // Another planner may know of the approval already.
            ask(system, "operation-approve", &verdict(operation)).await;
        }
        let answer = ask(system, "plan-get", &json!({ "plan": "web" })).await;
        let state = &answer["plan"]["revisions"][round]["state"];
        assert!(state != "failed", "{answer}");
        let last = system.bus.stream_state(stream::PLANS).await.map_err(|error| error.to_string())?.last_seq;
        if state == "completed" || last > before { Ok(state == "completed") } else { Err(answer.to_string()) }
    };
    system.eventually("PLANS has grown", grown).await
}

#[tokio::test]
async fn two_planners_killed_at_any_step_run_nothing_twice_and_lose_nothing() {
    let (mut system, devices) = with_nodes(4).await;
    let second = "muster-planner-2";
    let args = ["--nats-url", &system.server.url(), "--every", "200ms"].map(str::to_owned).to_vec();
    system.start_own(Spec { name: second.to_owned(), program: program(PLANNER), args });
    change(&system, "plan-apply", plan()).await;
    for (round, count_wanted) in [3_u32, 1, 2].into_iter().enumerate() {
        let id = format!("r{round}");
        deploy(&system, &id, count_wanted, &round.to_string()).await;
        let mut victims = [PLANNER, second].into_iter().cycle();
        while !step(&system, round).await {
            let victim = victims.next().unwrap();
            system.kill(victim).await;
            system.start_again(victim);
        }
        let listed = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
        assert_eq!(listed["instances"].as_array().unwrap().len(), count_wanted as usize, "{listed}");
        let ordered = ordered(&system, &devices).await;
        assert_eq!(count(&ordered), count_wanted as usize, "{ordered:?}");
        assert!(ordered.values().all(|ids| ids.len() <= 1), "{ordered:?}");
    }
}

#[tokio::test]
async fn a_policy_in_python_approves_operations_by_type_and_plan() {
    let (system, devices) = with_nodes(4).await;
    let mut other = plan();
    other["name"] = json!("other");
    for plan in [plan(), other] {
        change(&system, "plan-apply", plan).await;
    }
    let coordinates = json!({ "main": { "command": "sleep", "args": ["86400"] } });
    let beside = json!({ "plan": "other", "id": "r1", "instances": 1, "coordinates": coordinates });
    change(&system, "plan-deploy", beside).await;
    deploy(&system, "r1", 2, "1").await;
    let url = system.server.url();
    let args = ["--types", "CREATE", "--plans", "web", "--url", &url];
    let mut policy = Example::start(Language::Python, "approve_operations", &args);
    for _ in 0..2 {
        assert!(policy.line().await.starts_with("approved CREATE of web-"));
    }
    revision(&system, "r1", "completed").await;
    let created = ask(&system, "operation-list", &json!({ "plan": ["web"] })).await;
    assert_eq!(created["operations"][0]["operation"]["approval"]["rule"], "type CREATE", "{created}");

    deploy(&system, "r2", 0, "1").await;
    let waiting = pending(&system, &["CREATE", "DELETE", "DELETE"]).await;
    let of_other = waiting.iter().filter(|operation| operation["plan"] == "other").count();
    assert_eq!(of_other, 1, "neither another plan nor another type is approved: {waiting:?}");
    assert_eq!(count(&ordered(&system, &devices).await), 2);
    policy.kill().await;
}

#[tokio::test]
async fn an_approved_deployment_runs_and_another_skips_what_is_unchanged() {
    let (system, devices) = with_nodes(3).await;
    change(&system, "plan-apply", plan()).await;
    deploy(&system, "r1", 2, "1").await;
    change(&system, "plan-approve", json!({ "plan": "web", "id": "r1", "rule": "night shift" })).await;
    let approved = revision(&system, "r1", "completed").await;
    assert_eq!(approved["plan"]["revisions"][0]["approval"]["rule"], "night shift", "{approved}");
    let before = ordered(&system, &devices).await;

    let again = |instances: u32| {
        json!({ "plan": "web", "id": format!("of-{instances}"), "instances": instances, "skipUnchanged": true,
            "coordinates": approved["plan"]["revisions"][0]["coordinates"] })
    };
    change(&system, "plan-deploy", again(2)).await;
    let skipped = revision(&system, "of-2", "completed").await;
    assert_eq!(
        skipped["plan"]["revisions"][1]["message"], "Deployment completed, 2 instances were unchanged",
        "{skipped}"
    );
    assert_eq!(ordered(&system, &devices).await, before, "no node gets another order");
    change(&system, "plan-deploy", again(3)).await;
    approve(&system, &["CREATE"]).await;
    revision(&system, "of-3", "completed").await;
    assert_eq!(count(&ordered(&system, &devices).await), 3);

    change(&system, "plan-deploy", again(0)).await;
    change(&system, "plan-approve", json!({ "plan": "web", "id": "of-0" })).await;
    revision(&system, "of-0", "completed").await;
    let of_plan = json!({ "plan": ["web"], "includeDeleted": true });
    let deleted = ask(&system, "instance-list", &of_plan).await;
    let states: Vec<_> =
        deleted["instances"].as_array().unwrap().iter().map(|one| &one["instance"]["state"]).collect();
    assert_eq!(states, ["deleted"; 3], "{deleted}");
    let live = ask(&system, "instance-list", &json!({ "plan": ["web"] })).await;
    assert_eq!(live["instances"], json!([]), "{live}");
}
