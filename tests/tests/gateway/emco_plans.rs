//! EMCO's status query for plans, over HTTP and by `muster status --format emco`, against devices that run their instances. The
//! answers are files in `tests/golden/emco`; `UPDATE_GOLDEN=1` rewrites them.

use std::net::SocketAddr;

use muster_tests::plans;
use muster_tests::system::System;
use serde_json::{Value, json};

use super::DEVICES;
use super::client::get;
use super::emco::{answered, golden};
use super::planning::{done, plan, planned};

const GROUP: &str =
    "/v2/projects/plant7/composite-apps/line-telemetry/v1/deployment-intent-groups/shift-a/status";

/// Two nodes, and a plan of two applications.
async fn prepared() -> (System, SocketAddr) {
    let (system, addr) = planned().await;
    done(addr, "PUT /clusters/north", json!({}), 201).await;
    done(addr, "POST /clusters/north/activate", json!({}), 200).await;
    for device in DEVICES {
        let node = json!({ "updateDomain": device, "totalResources": { "cores": 4, "memory": 8 } });
        done(addr, &format!("PUT /nodes/{device}"), node, 201).await;
        for state in ["allocating", "allocated"] {
            let state = json!({ "nodeState": state, "cluster": "north" });
            done(addr, &format!("POST /nodes/{device}/state"), state, 200).await;
        }
    }
    let application = |name: &str| json!({ "payloadName": name, "resources": { "cores": 1, "memory": 1 } });
    let plan = json!({ "namespace": "demo", "serviceName": "telemetry", "profile": "process",
        "compositeApp": { "project": "plant7", "name": "line-telemetry", "version": "v1" },
        "applications": [application("collector"), application("dashboard")] });
    done(addr, "PUT /plans/shift-a", plan, 201).await;
    (system, addr)
}

async fn deploy(addr: SocketAddr, id: &str, instances: u32, version: &str) {
    let command = json!({ "command": "sleep", "args": ["86400"], "version": version,
        "readiness": { "type": "uptime", "for": "50ms" } });
    let coordinates = json!({ "collector": command, "dashboard": command });
    let body = json!({ "id": id, "instances": instances, "coordinates": coordinates });
    done(addr, "POST /plans/shift-a/revisions", body, 202).await;
}

/// The states of the history in an answer.
fn states(answer: &Value) -> Vec<&str> {
    answer["states"]["actions"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect()
}

/// Compares an answer with its file, without the ids of the plan and of an instance.
fn golden_of_plan(name: &str, mut answer: Value) {
    if let Some((instance, _)) = answer["message"].as_str().and_then(|message| message.split_once(' ')) {
        answer["message"] = answer["message"].as_str().unwrap().replace(instance, "INSTANCE").into();
    }
    if answer["states"].is_object() {
        answer["states"]["statusctxid"] = "UID".into();
    }
    golden(name, answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_a_deployment_intent_group_with_its_history() {
    let (system, addr) = prepared().await;
    golden_of_plan("plan-before-instantiation", answered(&system, addr, GROUP, |_| true).await);

    deploy(addr, "r1", 2, "1").await;
    plans::approve(&system, &["CREATE", "CREATE"]).await;
    let path = format!("{GROUP}?status=ready");
    let is_ready = |answer: &Value| {
        answer["readyCounts"] == json!({ "Ready": 4 }) && answer["deployedStatus"] == "Instantiated"
    };
    golden_of_plan("plan-ready", answered(&system, addr, &path, is_ready).await);
    for (name, query) in [
        ("plan-deployed-summary", "status=deployed&output=summary"),
        ("plan-apps", "apps"),
        ("plan-clusters", "clusters&app=collector"),
        ("plan-one-app", "status=ready&app=dashboard&cluster=plant8%2Bpress-2"),
    ] {
        golden_of_plan(name, answered(&system, addr, &format!("{GROUP}?{query}"), |_| true).await);
    }

    // A deployment that nobody approves is stopped, and a termination ends the plan.
    deploy(addr, "r2", 2, "2").await;
    plans::pending(&system, &["UPDATE", "UPDATE"]).await;
    let waits =
        |answer: &Value| answer["deployedStatus"] == "Instantiating" && answer["readyStatus"] == "Ready";
    answered(&system, addr, &format!("{GROUP}?status=ready&output=summary"), waits).await;
    done(addr, "POST /plans/shift-a/revisions/r2/stop", json!({}), 200).await;
    deploy(addr, "r3", 0, "2").await;
    plans::approve(&system, &["DELETE", "DELETE"]).await;
    let path = format!("{GROUP}?status=deployed&output=summary");
    let is_ended =
        |answer: &Value| answer["deployedStatus"] == "Terminated" && answer["deployedCounts"].is_null();
    let ended = answered(&system, addr, &path, is_ended).await;
    assert_eq!(
        states(&ended),
        ["Created", "Instantiated", "Updated", "Instantiated", "InstantiateStopped", "Terminated"],
        "{ended}"
    );
    golden_of_plan("plan-terminated", ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gives_a_plan_in_emcos_shape_and_wrong_names_are_404() {
    let (system, addr) = prepared().await;
    deploy(addr, "r1", 1, "1").await;
    done(addr, "POST /plans/shift-a/revisions/r1/approve", json!({}), 200).await;
    let path = format!("{GROUP}?status=ready");
    let is_ready = |answer: &Value| {
        answer["readyCounts"] == json!({ "Ready": 2 }) && answer["deployedStatus"] == "Instantiated"
    };
    let over_http = answered(&system, addr, &path, is_ready).await;
    let printed = system.muster(&["status", "shift-a", "--format", "emco", "--axis", "ready"]).await.stdout;
    assert_eq!(serde_json::from_slice::<Value>(&printed).unwrap(), over_http);
    let mut history = states(&over_http);
    history.sort_unstable();
    // The approval comes before the planner begins or after that.
    assert_eq!(history, ["Approved", "Created", "Instantiated"], "{over_http}");

    for (path, status, words) in [
        (GROUP.replace("/v1/", "/v2/"), 404, "version 'v1'"),
        (GROUP.replace("plant7", "plant8"), 404, "project 'plant7'"),
        (format!("{GROUP}?app=nothing"), 404, "no application 'nothing'"),
        (format!("{GROUP}?app=collector&resource=dashboard"), 404, "no application 'dashboard'"),
        (format!("{GROUP}?cluster=plant8%2Bpress-9"), 404, "press-9"),
        (format!("{GROUP}/watch"), 404, "shift-a"),
        (format!("{GROUP}?instance=r1"), 400, "muster plan history"),
        (GROUP.replace("shift-a", "shift-b"), 404, "shift-b"),
    ] {
        let refused = get(addr, &path).await.unwrap();
        assert!(refused.status == status && refused.body.contains(words), "{path}: {refused:?}");
    }
    let mut wrong = plan(1);
    wrong["compositeApp"] = json!({ "project": "a/b", "name": "x", "version": "v1" });
    let refused = done(addr, "PUT /plans/other", wrong, 400).await;
    assert_eq!(refused.json()["errors"][0]["field"], "compositeApp.project", "{refused:?}");
}
