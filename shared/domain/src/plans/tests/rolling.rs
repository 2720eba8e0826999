//! Rolling updates: how many instances are updated at a time, in which order, and what holds them.

use super::*;

pub(super) fn rolling_request(id: &str, instances: u32, version: &str) -> PlansRequest {
    PlansRequest::PlanDeploy(request(
        json!({ "plan": "web", "id": id, "instances": instances, "maxUnavailable": 1,
        "coordinates": { "main": { "version": version } } }),
    ))
}

/// A hub with four running instances, two in each of two update domains.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 4, "1");
    hub.approve_all();
    assert_eq!(hub.running(), 4);
    hub
}

/// Approves all without a round.
fn approve(hub: &mut Hub) {
    for (instance, operation) in hub.pending() {
        hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &operation))).unwrap();
    }
}

/// The nodes on which an UPDATE is running.
fn updating(hub: &Hub) -> Vec<DeviceKey> {
    let is_running =
        |one: &Operation| one.operation_type == OperationType::Update && one.state == OperationState::Running;
    let running = hub.instances().into_iter().filter(|instance| instance.operations.iter().any(is_running));
    running.map(|instance| instance.active().unwrap().node.clone()).collect()
}

/// The messages of operations that are approved and have not begun.
fn waiting(hub: &Hub) -> BTreeSet<String> {
    let instances = hub.instances();
    let operations = instances.iter().flat_map(|instance| &instance.operations);
    operations.filter(|one| one.state == OperationState::Approved).map(|one| one.message.clone()).collect()
}

#[test]
fn a_rolling_update_changes_one_instance_at_a_time_domain_by_domain() {
    let mut hub = hub();
    hub.ask(rolling_request("r2", 4, "2")).unwrap();
    hub.converge();
    approve(&mut hub);
    let mut order: Vec<String> = Vec::new();
    for _ in 0..100 {
        hub.round();
        let now = updating(&hub);
        assert!(now.len() <= 1, "{now:?}");
        for node in now {
            let domain = hub.state.node(&node).unwrap().update_domain.clone();
            order.push(format!("{domain} {node}"));
        }
    }
    order.dedup();
    assert_eq!(order.len(), 4, "{order:?}");
    assert!(order.is_sorted_by_key(|text| text[..2].to_owned()), "{order:?}");
    assert_eq!((hub.running(), hub.revision_state("r2")), (4, RevisionState::Completed));
}

#[test]
fn a_failed_update_holds_the_others_until_another_revision_repairs_it() {
    let mut hub = hub();
    hub.ask(rolling_request("r2", 4, "2")).unwrap();
    hub.converge();
    hub.devices.failing.push(hub.digest_of("r2"));
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (3, RevisionState::InProgress), "three still run");
    let held = [
        "waits for an earlier update domain",
        "waits while 1 or more of the other instances are unavailable",
    ];
    assert_eq!(waiting(&hub), held.map(str::to_owned).into());
    hub.ask(PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r2", "verb": "cancel" }))))
        .unwrap();
    hub.converge();
    hub.ask(rolling_request("r3", 4, "3")).unwrap();
    hub.converge();
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r3")), (4, RevisionState::Completed));
}

#[test]
fn a_silent_node_holds_an_update_because_its_instance_may_not_run() {
    let mut hub = hub();
    let silent = hub.instances()[3].active().unwrap().node.clone();
    hub.devices.silent.push(silent);
    hub.ask(rolling_request("r2", 4, "2")).unwrap();
    hub.converge();
    hub.approve_all();
    let still = hub
        .instances()
        .iter()
        .filter(|one| one.active().unwrap().revision.as_ref().unwrap().as_str() == "r1")
        .count();
    // Only the silent one itself has no other that is unavailable: it gets its order, and stays unknown.
    assert!(still >= 3, "{still}");
    assert!(!waiting(&hub).is_empty());
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!((hub.running(), hub.revision_state("r2")), (4, RevisionState::Completed));
}

#[test]
fn a_new_plan_and_more_instances_wait_for_no_turn() {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.ask(rolling_request("r1", 4, "1")).unwrap();
    hub.converge();
    approve(&mut hub);
    hub.round();
    assert_eq!(hub.running(), 4, "nothing that runs is changed");
    hub.converge();
    let zero = json!({ "plan": "web", "id": "r2", "instances": 4, "maxUnavailable": 0, "coordinates": { "main": {} } });
    assert_eq!(hub.code(PlansRequest::PlanDeploy(request(zero))), ErrorCode::BadRequest);
}
