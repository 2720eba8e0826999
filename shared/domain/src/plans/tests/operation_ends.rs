//! Ends of operations that other placements and other operations depend on.

use super::*;

fn operation(hub: &Hub, kind: &str) -> PlansRequest {
    let instance = &hub.instances()[0].name;
    PlansRequest::Operation(request(json!({ "plan": "web", "instance": instance, "type": kind })))
}

fn newest(hub: &Hub, kind: OperationType) -> Operation {
    let plan = plan_name();
    let deleted = hub.state.deleted_instances(&plan).cloned();
    let all = hub.instances().into_iter().chain(deleted).flat_map(|one| one.operations);
    all.filter(|one| one.operation_type == kind).last().unwrap()
}

fn approve(hub: &mut Hub, kind: OperationType) {
    let pending = hub.pending().into_iter().find(|(_, one)| one.operation_type == kind);
    let (instance, operation) = pending.unwrap();
    hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &operation))).unwrap();
    hub.converge();
}

/// A hub with an instance that runs on one node, and a RELOCATE of it that has reserved the other one.
fn hub_with_relocate() -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    hub.ask(operation(&hub, "RELOCATE")).unwrap();
    hub.converge();
    assert_eq!(hub.instances()[0].placements.len(), 2);
    hub
}

fn assert_all_is_gone(hub: &Hub) {
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
    assert_eq!((hub.free_cores(0), hub.free_cores(1)), (16, 16));
    assert_eq!(newest(hub, OperationType::Delete).state, OperationState::Succeeded);
}

#[test]
fn a_delete_releases_the_node_that_a_relocate_has_reserved() {
    let mut hub = hub_with_relocate();
    hub.ask(operation(&hub, "DELETE")).unwrap();
    approve(&mut hub, OperationType::Delete);
    assert_eq!(newest(&hub, OperationType::Relocate).state, OperationState::Cancelled);
    assert_all_is_gone(&hub);
}

#[test]
fn a_delete_ends_once_both_nodes_of_a_begun_relocate_are_rid_of_it() {
    let mut hub = hub_with_relocate();
    let new = hub.instances()[0].placements[1].node.clone();
    hub.devices.silent = vec![new.clone()];
    approve(&mut hub, OperationType::Relocate);
    hub.ask(operation(&hub, "DELETE")).unwrap();
    approve(&mut hub, OperationType::Delete);
    assert_eq!(newest(&hub, OperationType::Delete).state, OperationState::Approved, "the RELOCATE runs");
    let pending = newest(&hub, OperationType::Relocate);
    hub.ask(PlansRequest::Cancel(Hub::verdict(&hub.instances()[0].name, &pending))).unwrap();
    hub.converge();
    assert!(hub.devices.desired.is_empty(), "both orders are withdrawn");
    assert_eq!(newest(&hub, OperationType::Delete).state, OperationState::Running);
    assert!(hub.state.usage(&new).is_some(), "the silent node may run it");
    hub.devices.silent.clear();
    hub.converge();
    assert_all_is_gone(&hub);
}

#[test]
fn a_failed_operation_ends_no_sibling_and_needs_no_repair() {
    let mut hub = Hub::with_nodes(&[]);
    // Another runtime makes another order, so one node can fail alone.
    for (at, runtime) in ["process", "simulated", "simulated"].into_iter().enumerate() {
        let node = json!({ "site": "plant", "device": format!("n{at:05}"), "updateDomain": "d", "runtimes": [runtime],
            "totalResources": { "cores": 16, "memory": 64 } });
        hub.ask(PlansRequest::InventoryApply(request(json!({ "item": { "node": node } })))).unwrap();
        hub.node_state(at, "allocating", Some("north")).unwrap();
        hub.node_state(at, "allocated", Some("north")).unwrap();
    }
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy_coordinates("r1", 3, &json!({ "command": "serve" }));
    let plan = hub.state.plan(&plan_name()).unwrap();
    let runtimes = hub.state.runtimes(&node_key(0));
    hub.devices.failing.extend(super::super::advance::digest(plan, &"r1".parse().unwrap(), runtimes));
    hub.devices.silent = vec![node_key(2)];
    hub.approve_all();
    let states = |hub: &Hub| {
        let state = |one: &Instance| (one.placements[0].node.clone(), one.operations[0].state);
        hub.instances().iter().map(state).collect::<BTreeMap<_, _>>().into_values().collect::<Vec<_>>()
    };
    use OperationState::{Failed, Running, Succeeded};
    assert_eq!(states(&hub), [Failed, Succeeded, Running]);
    assert_eq!(hub.revision_state("r1"), RevisionState::InProgress, "one has not ended");
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!(states(&hub), [Failed, Succeeded, Succeeded]);
    let revision = hub.state.plan(&plan_name()).unwrap().revisions[0].clone();
    assert_eq!((revision.state, hub.running()), (RevisionState::Failed, 2), "both siblings run");
    let said = "1 of 3 operations did not succeed: CREATE of ";
    let node = node_key(0);
    let reason = format!("node {node} could not run it, and needs attention");
    assert!(
        revision.message.starts_with(said) && revision.message.ends_with(&reason),
        "{}",
        revision.message
    );

    hub.deploy_coordinates("r2", 3, &json!({ "command": "serve", "args": ["2"] }));
    assert_eq!(hub.pending_types(), [OperationType::Update; 3]);
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (3, RevisionState::Completed));
}

#[test]
fn an_instance_is_gone_by_its_report_or_some_time_after_its_node_is_heard() {
    let times = PlansTimes { ordered_at: second(900), withdrawn_at: second(1_000) };
    let gone_at = |evidence: PlacementEvidence<'_>, at: i64| evidence.is_gone(times, second(at));
    let by = |stored_at, heard_since, is_removed| {
        Some(WithdrawalEvidence {
            stored_at: second(stored_at),
            heard_since: second(heard_since),
            is_removed,
        })
    };
    let known = PlacementEvidence { is_known: true, ..PlacementEvidence::default() };
    assert!(!gone_at(known, 1_119) && gone_at(known, 1_120), "two minutes after PLANS wanted it no more");
    let returned = PlacementEvidence { withdrawal: by(1_001, 1_100, false), ..known };
    assert!(!gone_at(returned, 1_219) && gone_at(returned, 1_220), "two minutes after the node returned");
    let removed = PlacementEvidence { withdrawal: by(1_001, 1_001, true), ..PlacementEvidence::default() };
    assert!(gone_at(removed, 1_002), "at once by its report, also if the node has fallen silent since");
    for earlier in [800, 950] {
        let earlier = PlacementEvidence { withdrawal: by(earlier, earlier, true), ..known };
        assert!(
            !gone_at(earlier, 1_119),
            "a removal before PLANS withdrew the order: it may have been sent again"
        );
    }
    for never in [
        PlacementEvidence { is_known: false, ..returned },
        PlacementEvidence { desired: Some(Digest::of_bytes(b"web")), ..removed },
        PlacementEvidence { standing: Some(Standing::Installed), ..returned },
        removed.outdated(),
        PlacementEvidence { is_retired: true, ..removed }.outdated(),
    ] {
        assert!(!gone_at(never, 9_999), "{never:?}");
    }
}
