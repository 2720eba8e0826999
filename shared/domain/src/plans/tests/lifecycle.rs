//! The lifecycle of a plan: each request in each state of its newest revision, as EMCO's table has them.

use super::*;

/// The states of the newest revision, `r1`, in the order of the table's columns; `r0` has completed before it.
const STATES: [&str; 7] =
    ["pending", "waits for approval", "runs", "paused", "completed", "failed", "cancelled"];

/// A hub whose newest revision has a state.
fn hub_in(state: &str) -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r0", 1, "0");
    hub.approve_all();
    hub.ask(deploy_request("r1", 2, "1")).unwrap();
    if state == "pending" {
        return hub;
    }
    hub.converge();
    let failing = hub.digest_of("r1");
    match state {
        "waits for approval" => {}
        "runs" => {
            hub.devices.silent = (0..4).map(node_key).collect();
            hub.approve_all();
        }
        "failed" => {
            hub.devices.failing.push(failing);
            hub.approve_all();
        }
        "completed" => hub.approve_all(),
        "paused" => hub.ask(revision_request("pause")).map(drop).unwrap(),
        _ => hub.ask(revision_request("cancel")).map(drop).unwrap(),
    }
    hub.converge();
    hub
}

fn revision_request(verb: &str) -> PlansRequest {
    PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r1", "verb": verb })))
}

fn plan_state(state: &str) -> PlansRequest {
    PlansRequest::PlanState(request(json!({ "plan": "web", "state": state })))
}

#[test]
fn each_request_in_each_state_is_legal_or_refused_as_the_table_says() {
    let rollback = PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": "r2", "to": "r0" })));
    let delete = PlansRequest::PlanDelete(request(json!({ "plan": "web" })));
    // Legal (+) or refused (-), a column for each of STATES. EMCO's word is in brackets.
    let table = [
        ("deploy (instantiate, update)", deploy_request("r2", 1, "2"), "----+++"),
        ("deploy with 0 instances (terminate)", deploy_request("r2", 0, "2"), "+++++++"),
        ("rollback", rollback, "----+++"),
        ("pause", revision_request("pause"), "-++----"),
        ("resume", revision_request("resume"), "---+---"),
        ("cancel (stop)", revision_request("cancel"), "++++---"),
        ("deactivate", plan_state("inactive"), "+++++++"),
        ("activate what is active", plan_state("active"), "-------"),
        ("delete", delete, "-------"),
    ];
    let hubs = STATES.map(hub_in);
    let outcome = |hub: &Hub, asked: &PlansRequest| {
        let mut after = hub.clone();
        let is_legal = after.ask(asked.clone()).is_ok();
        assert!(is_legal || after.log.len() == hub.log.len(), "a refusal appends nothing");
        after.devices.silent.clear();
        after.converge();
        if is_legal { '+' } else { '-' }
    };
    for (name, asked, wanted) in &table {
        let found: String = hubs.iter().map(|hub| outcome(hub, asked)).collect();
        assert_eq!(found, *wanted, "{name} in {STATES:?}");
    }
}

#[test]
fn a_plan_is_deleted_after_its_termination_and_not_before() {
    let mut hub = hub_in("completed");
    let delete = || PlansRequest::PlanDelete(request(json!({ "plan": "web" })));
    assert_eq!(hub.code(delete()), ErrorCode::Precondition);
    hub.deploy("r2", 0, "1");
    assert_eq!(hub.code(delete()), ErrorCode::Precondition, "the termination waits for its approvals");
    hub.approve_all();
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
    hub.ask(delete()).unwrap();
    assert_eq!(hub.code(deploy_request("r3", 1, "1")), ErrorCode::NotFound);
}
