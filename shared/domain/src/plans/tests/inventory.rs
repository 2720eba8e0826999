//! Versions, repeated requests, transitions and deletions of documents.

use super::*;

#[test]
fn a_stale_version_changes_nothing_and_names_the_current_one() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    let refused = hub.ask(plan_request(&json!({}))).unwrap_err();
    assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(0)), "it exists");
    let refused = hub.ask(plan_request(&json!({ "expectedVersion": 5 }))).unwrap_err();
    assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(0)));
    let changed = hub.ask(plan_request(&json!({ "expectedVersion": 0, "namespace": "other" }))).unwrap();
    assert_eq!(changed.version(), 1);
}

#[test]
fn a_repeated_request_id_changes_nothing_for_a_day() {
    let mut hub = Hub::with_nodes(&[16]);
    let apply = plan_request(&json!({ "requestId": "a" }));
    let first = hub.ask(apply.clone()).unwrap();
    let count = hub.log.len();
    assert_eq!(hub.ask(apply.clone()), Ok(first));
    assert_eq!(hub.log.len(), count);
    let other = plan_request(&json!({ "requestId": "a", "namespace": "other" }));
    assert_eq!(hub.code(other.clone()), ErrorCode::Conflict, "the id is that of another request");
    let by = Some(request(json!({ "name": "anna", "key": "U1" })));
    let of_anna = hub.state.decide(&other, by, hub.now()).unwrap_err();
    assert!(of_anna.message.contains("exists"), "an id of another requester means nothing: {of_anna:?}");
    hub.second += 24 * 60 * 60 + 1;
    assert_eq!(hub.code(apply), ErrorCode::Conflict, "the id is forgotten, and the plan exists");
}

#[test]
fn a_person_repeats_a_request_through_another_gateway() {
    let mut hub = Hub::with_nodes(&[16]);
    let apply = plan_request(&json!({ "requestId": "a" }));
    let through = |gateway: &str, person: &str| {
        let person = json!({ "key": person, "role": "operator" });
        Some(request(json!({ "key": gateway, "role": "gateway", "onBehalfOf": person })))
    };
    let first = hub.state.decide(&apply, through("UG1", "UANNA"), hub.now());
    let Ok(Decision::Append(plan)) = first else { panic!("the plan is made") };
    hub.state.apply((*plan).clone());
    let again = hub.state.decide(&apply, through("UG2", "UANNA"), hub.now());
    assert_eq!(again, Ok(Decision::Unchanged(plan)));
    let of_bob = hub.state.decide(&apply, through("UG2", "UBOB"), hub.now());
    assert_eq!(of_bob.unwrap_err().code, ErrorCode::Conflict, "his id is another one, and the plan exists");
}

#[test]
fn a_deleted_name_is_hidden_and_free_again() {
    let mut hub = Hub::with_nodes(&[16]);
    let PlansDocument::Plan(first) = hub.ask(plan_request(&json!({}))).unwrap() else { panic!() };
    hub.ask(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))).unwrap();
    assert_eq!(hub.code(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))), ErrorCode::NotFound);
    let read = |hub: &Hub, query: Value| {
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        read.plans(&request(query), 10).plans.len()
    };
    assert_eq!((read(&hub, json!({})), read(&hub, json!({ "state": ["deleted"] }))), (0, 1));
    hub.second += 1;
    let PlansDocument::Plan(second) = hub.ask(plan_request(&json!({}))).unwrap() else { panic!() };
    assert!(second.uid != first.uid && second.version == 0);
}

#[test]
fn what_is_in_use_is_not_deleted() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({ "cluster": "north" }))).unwrap();
    hub.deploy("r1", 1, "1");
    for item in [json!({ "node": node_key(0) }), json!({ "cluster": "north" })] {
        let delete = PlansRequest::InventoryDelete(request(json!({ "item": item })));
        assert_eq!(hub.code(delete), ErrorCode::Precondition, "{item}");
    }
    assert_eq!(
        hub.code(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))),
        ErrorCode::Precondition
    );
    let smaller = json!({ "expectedVersion": 2, "item": { "node": {
        "site": "plant", "device": "n00000", "updateDomain": "d0", "totalResources": { "cores": 3, "memory": 64 } } } });
    assert_eq!(hub.code(PlansRequest::InventoryApply(request(smaller))), ErrorCode::Precondition);
}

#[test]
fn a_node_follows_the_transitions_of_mrds_and_no_others() {
    let all = ["unallocated", "allocating", "allocated", "evicted", "sanitizing"];
    let legal = [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (4, 0), (4, 3)];
    let path: [&[&str]; 5] = [
        &[],
        &["allocating"],
        &["allocating", "allocated"],
        &["allocating", "evicted"],
        &["allocating", "evicted", "sanitizing"],
    ];
    let cluster = |state: &str| state.starts_with("alloc").then_some("north");
    for (from, path) in path.iter().enumerate() {
        for (to, state) in all.iter().enumerate() {
            let mut hub = Hub::with_nodes(&[]);
            hub.ask(node_request(0, "d", 8)).unwrap();
            path.iter().for_each(|step| drop(hub.node_state(0, step, cluster(step)).unwrap()));
            let moved = hub.node_state(0, state, cluster(state));
            assert_eq!(moved.is_ok(), legal.contains(&(from, to)), "{} to {state}", all[from]);
        }
    }
    let mut hub = Hub::with_nodes(&[]);
    hub.ask(node_request(0, "d", 8)).unwrap();
    assert!(
        hub.node_state(0, "allocating", None).is_err()
            && hub.node_state(0, "allocating", Some("south")).is_err()
    );
}

#[test]
fn a_cluster_and_a_capability_follow_the_transitions_of_mrds() {
    let mut hub = Hub::with_nodes(&[]);
    let set = |state: &str| {
        PlansRequest::InventoryState(request(json!({ "item": { "cluster": "north" }, "state": state })))
    };
    assert_eq!(hub.code(set("pending")), ErrorCode::Precondition);
    for state in ["active", "inactive", "active"] {
        hub.ask(set(state)).unwrap();
        assert_eq!(hub.code(set(state)), ErrorCode::Precondition, "{state} again");
    }
}

#[test]
fn a_node_without_room_for_its_reserved_part_is_refused() {
    let mut hub = Hub::default();
    for (total, reserved, domain) in
        [((0, 8), (0, 0), "d"), ((8, 0), (0, 0), "d"), ((8, 8), (9, 0), "d"), ((8, 8), (0, 0), " ")]
    {
        let node = json!({ "item": { "node": { "site": "a", "device": "b", "updateDomain": domain,
            "totalResources": { "cores": total.0, "memory": total.1 },
            "systemReservedResources": { "cores": reserved.0, "memory": reserved.1 } } } });
        assert_eq!(hub.code(PlansRequest::InventoryApply(request(node))), ErrorCode::BadRequest);
    }
}

fn disruption(verb: &str, id: &str) -> PlansRequest {
    PlansRequest::Disruption(request(json!({
        "node": node_key(0), "id": id, "verb": verb, "start": "2026-12-01T00:00:00Z", "shouldEvict": true })))
}

#[test]
fn a_disruption_is_scheduled_approved_completed_and_then_removed() {
    let mut hub = Hub::with_nodes(&[16]);
    assert_eq!(hub.code(disruption("approve", "d1")), ErrorCode::NotFound);
    hub.ask(disruption("add", "d1")).unwrap();
    for verb in ["add", "remove"] {
        assert_eq!(hub.code(disruption(verb, "d1")), ErrorCode::Precondition, "{verb}");
    }
    for verb in ["approve", "complete", "remove"] {
        hub.ask(disruption(verb, "d1")).unwrap();
    }
    let PlansDocument::Node(node) = hub.log.last().unwrap() else { panic!() };
    assert!(node.disruptions.is_empty() && node.version == 6, "each change of a disruption is a version");
}

#[test]
fn a_disruption_that_evicts_relocates_the_instances_of_its_node() {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let at = usize::from(hub.instances()[0].placements[0].node != node_key(0));
    let mut add = disruption("add", "d1");
    if let PlansRequest::Disruption(request) = &mut add {
        request.node = node_key(at);
    }
    hub.ask(add).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Relocate]);
    let (instance, operation) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &operation))).unwrap();
    hub.converge();
    assert!(hub.pending().is_empty(), "a rejected one is not repeated");
    hub.node_state(at, "evicted", None).unwrap();
    hub.converge();
    hub.approve_all();
    assert_eq!(hub.instances()[0].placements[0].node, node_key(1 - at));
    assert!(
        hub.node_state(at, "sanitizing", None).is_ok() && hub.node_state(at, "unallocated", None).is_ok()
    );
}
