//! Requests of persons for one instance: what they lead to, what supersedes them, and each refusal.

use super::*;

/// A hub with two running instances of version 1, and three nodes that are free.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16; 5]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    hub
}

#[allow(clippy::needless_pass_by_value, reason = "tests write JSON in place")]
fn create(extra: Value) -> PlansRequest {
    let mut value = json!({ "plan": "web" });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    PlansRequest::InstanceCreate(request(value))
}

#[allow(clippy::needless_pass_by_value, reason = "tests write JSON in place")]
fn operation(hub: &Hub, kind: &str, extra: Value) -> PlansRequest {
    let mut value = json!({ "plan": "web", "instance": hub.instances()[0].name, "type": kind });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    PlansRequest::Operation(request(value))
}

/// A node on which nothing runs.
fn free_node(hub: &Hub) -> DeviceKey {
    (0..5).map(node_key).find(|key| hub.state.usage(key).is_none()).unwrap()
}

fn nodes(hub: &Hub) -> Vec<DeviceKey> {
    hub.devices.desired.keys().map(|(node, _)| node.clone()).collect()
}

#[test]
fn another_instance_runs_once_approved_and_the_next_revision_counts_it() {
    let mut hub = hub();
    let node = free_node(&hub);
    hub.ask(create(json!({ "node": node }))).unwrap();
    hub.ask(create(json!({ "revision": "r1" }))).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Create; 2]);
    assert_eq!(hub.running(), 2, "nothing runs before the approvals");
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (4, 4));
    assert!(nodes(&hub).contains(&node), "{:?}", nodes(&hub));
    hub.deploy("r2", 2, "1");
    let expected =
        [OperationType::Update, OperationType::Update, OperationType::Delete, OperationType::Delete];
    assert_eq!(hub.pending_types(), expected);
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (2, 2));
}

#[test]
fn one_instance_gets_another_revision_or_is_deleted_once_it_is_approved() {
    let mut hub = hub();
    hub.deploy("r2", 2, "2");
    hub.approve_all();
    hub.ask(operation(&hub, "UPDATE", json!({ "revision": "r1" }))).unwrap();
    hub.converge();
    let runs = |hub: &Hub| hub.instances()[0].active().unwrap().revision.clone().unwrap();
    assert_eq!(runs(&hub).as_str(), "r2", "nothing changes before the approval");
    hub.approve_all();
    assert_eq!(runs(&hub).as_str(), "r1");
    assert_eq!(hub.running(), 2);

    let name = hub.instances()[0].name.clone();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    hub.converge();
    assert_eq!(hub.running(), 2);
    hub.approve_all();
    assert_eq!(hub.running(), 1);
    assert!(hub.instances().iter().all(|instance| instance.name != name));
}

#[test]
fn a_relocate_to_a_named_node_reserves_it_and_moves_there() {
    let mut hub = hub();
    let node = free_node(&hub);
    hub.ask(operation(&hub, "RELOCATE", json!({ "node": node }))).unwrap();
    assert!(hub.state.usage(&node).is_some(), "it is reserved");
    hub.approve_all();
    assert_eq!(hub.instances()[0].active().unwrap().node, node);
    assert_eq!(hub.running(), 2);
}

#[test]
fn an_instance_without_an_order_gets_a_new_create_or_is_deleted_at_once() {
    let mut hub = hub();
    hub.ask(create(json!({}))).unwrap();
    hub.converge();
    let (name, pending) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&name, &pending))).unwrap();
    hub.converge();
    let of = |kind: &str| {
        PlansRequest::Operation(request(json!({ "plan": "web", "instance": name, "type": kind })))
    };
    assert_eq!(hub.code(of("UPDATE")), ErrorCode::Precondition, "it runs on no node");
    hub.ask(of("CREATE")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Create]);
    hub.ask(of("DELETE")).unwrap();
    hub.converge();
    assert_eq!((hub.pending().len(), hub.instances().len(), hub.running()), (0, 2, 2));
    let placed = hub.instances().iter().flat_map(|one| &one.placements).count();
    assert_eq!(placed, 2, "its reservation is released");
}

#[test]
fn the_next_revision_supersedes_requests_that_have_not_begun() {
    let mut hub = hub();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    hub.converge();
    hub.deploy("r2", 2, "2");
    assert_eq!(hub.pending_types(), [OperationType::Update; 2], "the deletion is cancelled");
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (2, RevisionState::Completed));
}

#[test]
fn an_approval_of_an_ended_revision_approves_no_request_of_a_person() {
    let mut hub = Hub::with_nodes(&[16; 3]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.ask(deploy_request("r1", 1, "1")).unwrap();
    hub.ask(PlansRequest::PlanApprove(request(json!({ "plan": "web", "id": "r1" })))).unwrap();
    hub.converge();
    hub.ask(operation(&hub, "UPDATE", json!({}))).unwrap();
    hub.ask(create(json!({}))).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Create, OperationType::Update]);
}

#[test]
fn a_node_without_room_is_refused_with_a_code_of_its_own() {
    let mut hub = hub();
    hub.ask(node_request(9, "d0", 1)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(9, state, Some("north")).unwrap();
    }
    assert_eq!(hub.code(create(json!({ "node": node_key(9) }))), ErrorCode::NoCapacity);
    hub.ask(node_request(8, "d0", 64)).unwrap();
    assert_eq!(
        hub.code(create(json!({ "node": node_key(8) }))),
        ErrorCode::Precondition,
        "it is not allocated"
    );
}

#[test]
fn a_request_that_cannot_be_is_refused_with_its_reason() {
    let mut hub = hub();
    let taken = hub.instances()[0].active().unwrap().node.clone();
    let small = node_key(9);
    hub.ask(node_request(9, "d0", 2)).unwrap();
    let cases = [
        (create(json!({ "node": taken })), format!("node {taken} cannot run it: it has payload main")),
        (
            create(json!({ "node": small })),
            format!("node {small} cannot run it: it is not allocated to a cluster"),
        ),
        (create(json!({ "node": node_key(77) })), format!("there is no node {}", node_key(77))),
        (
            create(json!({ "revision": "r9" })),
            "revision: is r9, and the newest of plan web is r1: name that one, or none".to_owned(),
        ),
        (
            operation(&hub, "UPDATE", json!({ "revision": "r9" })),
            "there is no revision r9 of plan web".to_owned(),
        ),
        (operation(&hub, "STOP", json!({ "node": taken })), "node: is not of STOP: leave it out".to_owned()),
        (
            operation(&hub, "DELETE", json!({ "revision": "r1" })),
            "revision: is not of DELETE: leave it out".to_owned(),
        ),
        (
            operation(&hub, "CREATE", json!({})),
            format!("instance {} has a node: request UPDATE or RELOCATE", hub.instances()[0].display_name),
        ),
    ];
    for (asked, words) in cases {
        let before = hub.log.len();
        assert_eq!(hub.ask(asked.clone()).unwrap_err().message, words, "{asked:?}");
        assert_eq!(hub.log.len(), before, "nothing is appended");
    }
    hub.deploy("r2", 3, "2");
    for asked in
        [create(json!({})), operation(&hub, "UPDATE", json!({})), operation(&hub, "DELETE", json!({}))]
    {
        let refused = hub.ask(asked).unwrap_err().message;
        assert_eq!(refused, "revision r2 is inProgress: wait for it, or cancel it");
    }
}

#[test]
fn an_instance_keeps_its_newest_operations_however_many_there_were() {
    let mut hub = hub();
    for _ in 0..30 {
        hub.ask(operation(&hub, "UPDATE", json!({}))).unwrap();
        hub.approve_all();
    }
    let instance = hub.instances().remove(0);
    PlansDocument::Instance(instance.clone()).check().unwrap();
    let of_revision = |one: &&Operation| one.revision.as_ref() == Some(&instance.revision);
    assert!(instance.operations.iter().filter(of_revision).count() > 0);
}

#[test]
fn a_deletion_that_nobody_has_approved_changes_no_other_decision() {
    let mut hub = hub();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    hub.converge();
    let instance = hub.instances().remove(0);
    assert_eq!(instance.state, InstanceState::Active);
    let at = (0..5).find(|at| node_key(*at) == instance.active().unwrap().node).unwrap();
    hub.node_state(at, "evicted", None).unwrap();
    hub.converge();
    assert_eq!(
        hub.pending_types(),
        [OperationType::Delete, OperationType::Relocate],
        "it is evicted all the same"
    );
}

#[test]
fn an_instance_whose_deletion_was_ended_by_hand_does_not_start_again() {
    let mut hub = hub();
    let (first, on) = (hub.instances().remove(0), hub.instances()[0].active().unwrap().node.clone());
    hub.ask(operation(&hub, "UPDATE", json!({}))).unwrap();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    hub.devices.silent.push(on);
    let pending = hub.pending();
    let of = |kind: OperationType| pending.iter().find(|(_, one)| one.operation_type == kind).unwrap();
    let (name, delete) = of(OperationType::Delete);
    hub.ask(PlansRequest::Approve(Hub::verdict(name, delete))).unwrap();
    hub.converge();
    let reason = Some("scrapped".to_owned());
    hub.ask(PlansRequest::Fail(OperationVerdictRequest { reason, ..Hub::verdict(name, delete) })).unwrap();
    let update = PlansRequest::Approve(Hub::verdict(name, &of(OperationType::Update).1));
    assert_eq!(hub.code(update), ErrorCode::Precondition, "it is cancelled");
    hub.devices.silent.clear();
    hub.converge();
    assert!(hub.instances().iter().all(|instance| instance.name != first.name), "its node has removed it");
    assert_eq!(hub.running(), 1);
}

#[test]
fn a_rejected_update_leaves_the_instance_with_its_revision() {
    let mut hub = hub();
    hub.deploy("r2", 2, "2");
    hub.approve_all();
    hub.ask(operation(&hub, "UPDATE", json!({ "revision": "r1" }))).unwrap();
    hub.converge();
    let (name, pending) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&name, &pending))).unwrap();
    hub.converge();
    assert_eq!(hub.instances()[0].revision.as_str(), "r2");
}

#[test]
fn a_terminated_plan_makes_no_instance_without_a_deployment() {
    let mut hub = hub();
    hub.deploy("r2", 0, "1");
    hub.approve_all();
    let refused = hub.ask(create(json!({}))).unwrap_err().message;
    assert_eq!(
        refused,
        "revision r2, the newest of plan web, is completed, for 0 instances: deploy the plan with all its instances first"
    );
}

#[test]
fn a_revision_that_changes_nothing_supersedes_waiting_requests_too() {
    let mut hub = hub();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    hub.ask(unchanged::skipping_request("r2", 2, "1")).unwrap();
    hub.converge();
    assert_eq!((hub.revision_state("r2"), hub.pending().len()), (RevisionState::Completed, 0));
    hub.approve_all();
    assert_eq!(hub.running(), 2);
}

#[test]
fn a_scale_down_takes_an_instance_whose_deletion_was_requested() {
    let mut hub = hub();
    for instance in hub.instances() {
        let delete = json!({ "plan": "web", "instance": instance.name, "type": "DELETE" });
        hub.ask(PlansRequest::Operation(request(delete))).unwrap();
    }
    hub.deploy("r2", 1, "1");
    let marked = hub.instances().iter().filter(|one| one.state == InstanceState::MarkedForDeletion).count();
    assert_eq!((marked, hub.pending_types()), (1, vec![OperationType::Update, OperationType::Delete]));
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (1, 1));
}

#[test]
fn a_deleted_instance_has_no_open_operation() {
    let mut hub = hub();
    hub.ask(operation(&hub, "UPDATE", json!({}))).unwrap();
    hub.ask(operation(&hub, "DELETE", json!({}))).unwrap();
    let pending = hub.pending();
    let (name, delete) = pending.iter().find(|(_, one)| one.operation_type == OperationType::Delete).unwrap();
    hub.ask(PlansRequest::Approve(Hub::verdict(name, delete))).unwrap();
    hub.converge();
    let deleted = hub.state.deleted_instances(&plan_name()).next().unwrap();
    assert!(deleted.operations.iter().all(|one| one.state.is_final()), "{deleted:?}");
    let removed = hub.state.removed_operations(hub.state.plan(&plan_name()).unwrap());
    assert!(removed.map(|(_, state)| state).all(OperationState::is_final));
}

#[test]
fn a_revision_of_other_payloads_is_no_content_for_an_update() {
    let mut hub = hub();
    hub.deploy("r2", 0, "1");
    hub.approve_all();
    let other = json!({ "expectedVersion": hub.state.plan(&plan_name()).unwrap().version, "applications": [
        { "payloadName": "other", "resources": { "cores": 4, "memory": 8 } }] });
    hub.ask(plan_request(&other)).unwrap();
    let deploy = json!({ "plan": "web", "id": "r3", "instances": 1, "coordinates": { "other": {} } });
    hub.ask(PlansRequest::PlanDeploy(request(deploy))).unwrap();
    hub.converge();
    hub.approve_all();
    let refused = hub.ask(operation(&hub, "UPDATE", json!({ "revision": "r1" }))).unwrap_err().message;
    assert!(refused.starts_with("revision: "), "{refused}");
}
