//! Rights to plans on a secured hub: the planner's scheduler stores plans, operators change them, approvers approve operations.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::rollouts::PLANNER;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::connect;
use crate::fleet::start_service;

/// The requests to the planner that change nothing, by hand, so that a right given to the wrong role fails here.
const READS: [&str; 7] = [
    "plan-get",
    "plan-list",
    "plan-explain",
    "instance-list",
    "operation-list",
    "inventory-list",
    "change-list",
];
/// The requests that an approver may send as well.
const OF_APPROVERS: [&str; 3] = ["operation-approve", "operation-reject", "plan-approve"];
/// The requests that an operator alone may send, directly or through a gateway.
const OF_OPERATORS: [&str; 16] = [
    "plan-apply",
    "plan-delete",
    "plan-state",
    "plan-deploy",
    "plan-rollback",
    "plan-migrate",
    "plan-revision",
    "instance-create",
    "operation-request",
    "operation-cancel",
    "operation-complete",
    "operation-fail",
    "inventory-apply",
    "inventory-state",
    "inventory-disruption",
    "inventory-delete",
];

/// A request to the planner as a role; its answer, also a refusal.
async fn ask(hub: &Guarded, role: Role, verb: &str, request: &Value) -> Result<Value, String> {
    let bus = connect(hub.config(role)).await;
    let subject = format!("muster.planner.{verb}");
    let answer = bus.request(&subject, request.to_string().into(), Duration::from_secs(2)).await;
    answer.map(|answer| serde_json::from_slice(&answer).unwrap()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_approves_operations_by_the_proven_key_and_no_more() {
    let hub = Guarded::start_plain();
    let creds = hub.creds(Role::Scheduler).display().to_string();
    let _planner = start_service(&hub, Role::Planner, PLANNER, &["--plans-creds", &creds]);
    let plan = json!({ "name": "web", "namespace": "demo", "serviceName": "web",
        "applications": [{ "payloadName": "main", "resources": { "cores": 1, "memory": 1 } }] });
    let applied = async || ask(&hub, Role::Operator, "plan-apply", &plan).await;
    let is_plan = |answer: &Result<Value, String>| answer.as_ref().is_ok_and(|plan| plan["kind"] == "Plan");
    let made = until("the planner keeps a plan", applied, is_plan).await.unwrap();
    assert_eq!(made["change"]["by"]["role"], "operator", "{made}");

    let node = json!({ "site": "plant7", "device": "press-4" });
    let spec = json!({ "site": "plant7", "device": "press-4", "updateDomain": "d",
        "totalResources": { "cores": 4, "memory": 4 } });
    for (verb, request) in [
        ("inventory-apply", json!({ "item": { "cluster": { "name": "north" } } })),
        ("inventory-apply", json!({ "item": { "node": spec } })),
        (
            "inventory-state",
            json!({ "item": { "node": node }, "nodeState": "allocating", "cluster": "north" }),
        ),
        (
            "inventory-state",
            json!({ "item": { "node": node }, "nodeState": "allocated", "cluster": "north" }),
        ),
        ("plan-deploy", json!({ "plan": "web", "id": "r1", "instances": 1, "coordinates": { "main": {} } })),
    ] {
        let others: &[Role] = match verb {
            "plan-deploy" => &[Role::Viewer, Role::Subscriber, Role::Approver, Role::Planner],
            _ => &[Role::Approver],
        };
        for role in others {
            assert!(ask(&hub, *role, verb, &request).await.is_err(), "{role:?} has no right to {verb}");
        }
        let unnamed = ask(&hub, Role::Gateway, verb, &request).await.unwrap();
        assert_eq!(unnamed["error"]["code"], "forbidden", "a gateway names no person: {unnamed}");
        let answer = ask(&hub, Role::Operator, verb, &request).await.unwrap();
        assert!(answer["error"].is_null(), "{answer}");
    }
    let waits =
        async || ask(&hub, Role::Viewer, "operation-list", &json!({ "state": ["PENDING_APPROVAL"] })).await;
    let is_there = |answer: &Result<Value, String>| {
        answer.as_ref().is_ok_and(|answer| answer["operations"].as_array().is_some_and(|all| !all.is_empty()))
    };
    let waiting = until("the operation waits for approval", waits, is_there).await.unwrap();
    let operation = &waiting["operations"][0];
    let verdict = json!({ "plan": "web", "instance": operation["instance"],
        "operation": operation["operation"]["id"], "rule": "by hand" });
    for role in [Role::Viewer, Role::Subscriber, Role::Planner] {
        assert!(ask(&hub, role, "operation-approve", &verdict).await.is_err(), "{role:?}");
        let approval = json!({ "plan": "web", "id": "r1" });
        assert!(ask(&hub, role, "plan-approve", &approval).await.is_err(), "{role:?}");
    }
    for verb in ["operation-cancel", "operation-complete", "operation-fail", "plan-migrate"] {
        assert!(ask(&hub, Role::Approver, verb, &verdict).await.is_err(), "{verb}");
    }
    let approved = ask(&hub, Role::Approver, "operation-approve", &verdict).await.unwrap();
    let approval = &approved["operations"][0]["approval"];
    assert_eq!(
        (&approval["by"]["role"], &approval["rule"]),
        (&json!("approver"), &json!("by hand")),
        "{approved}"
    );
    let approval = json!({ "plan": "web", "id": "r1", "rule": "by hand" });
    let of_revision = ask(&hub, Role::Approver, "plan-approve", &approval).await.unwrap();
    assert_eq!(of_revision["revisions"][0]["approval"]["by"]["role"], "approver", "{of_revision}");
}

#[test]
fn the_lists_by_hand_name_every_request_to_the_planner() {
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/asyncapi.yaml");
    let contract = std::fs::read_to_string(contract).unwrap();
    let subjects = contract.lines().filter_map(|line| line.trim().strip_prefix("address: muster.planner."));
    let named = READS.into_iter().chain(OF_APPROVERS).chain(OF_OPERATORS);
    assert_eq!(subjects.collect::<BTreeSet<_>>(), named.collect());
}

#[test]
fn each_plan_request_is_refused_without_credentials_or_the_right() {
    let (hub, other) = (Guarded::start_plain(), Guarded::start_plain());
    let port = hub.server.port();
    for (who, entered) in [
        ("without credentials", Raw::anonymous(port)),
        ("with credentials of another hub", Raw::connect(port, &other.creds(Role::Operator))),
    ] {
        let refusal = entered.err();
        assert!(refusal.is_some_and(|said| said.contains("Authorization Violation")), "{who}");
    }
    for (role, may_read, may_approve, may_change) in [
        (Role::Viewer, true, false, false),
        (Role::Subscriber, true, false, false),
        (Role::Packager, false, false, false),
        (Role::Planner, false, false, false),
        (Role::Approver, true, true, false),
        (Role::Operator, true, true, true),
    ] {
        let mut raw = Raw::connect(port, &hub.creds(role)).unwrap();
        for (verbs, may) in
            [(&READS[..], may_read), (&OF_APPROVERS[..], may_approve), (&OF_OPERATORS[..], may_change)]
        {
            for verb in verbs {
                let subject = format!("muster.planner.{verb}");
                let said = raw.publish(&subject, "", "{}").join("\n");
                let is_refused = said.contains("Permissions Violation") && said.contains(&subject);
                assert_eq!(is_refused, !may, "{role:?} {verb}: {said}");
            }
        }
    }
}
