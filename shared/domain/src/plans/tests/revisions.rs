//! Revisions and operations, from the request to the result.

use super::*;

fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub
}

#[test]
fn nothing_runs_before_its_operation_is_approved() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    assert_eq!(hub.pending_types(), [OperationType::Create; 2]);
    assert!(hub.devices.desired.is_empty(), "a node is reserved, and has no order");
    assert_eq!((0..4).map(|at| hub.free_cores(at)).sum::<u64>(), 4 * 16 - 2 * 4);
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r1")), (2, RevisionState::Completed));
}

#[test]
fn a_plan_version_rises_by_three_with_each_revision() {
    let mut hub = hub();
    let version = |hub: &Hub| hub.state.plan(&plan_name()).unwrap().version;
    assert_eq!(version(&hub), 0);
    for (at, count) in [1, 3, 1].into_iter().enumerate() {
        hub.deploy(&format!("r{at}"), count, "1");
        hub.approve_all();
        assert_eq!(version(&hub), 3 * (at as u64 + 1));
    }
}

#[test]
fn one_to_three_makes_two_creates_and_one_update_and_back_two_deletes() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let first = hub.instances()[0].name.clone();
    hub.deploy("r2", 3, "1");
    use OperationType::{Create, Delete, Update};
    assert_eq!(hub.pending_types(), [Create, Create, Update]);
    assert!(hub.instances().iter().all(|instance| instance.revision.as_str() == "r2"), "at once");
    hub.approve_all();
    assert_eq!(hub.running(), 3);
    hub.deploy("r3", 1, "1");
    assert_eq!(hub.pending_types(), [Update, Delete, Delete]);
    hub.approve_all();
    assert_eq!(hub.instances().iter().map(|one| one.name.clone()).collect::<Vec<_>>(), [first]);
    assert_eq!((hub.running(), hub.revision_state("r3")), (1, RevisionState::Completed));
    assert_eq!((0..4).map(|at| hub.free_cores(at)).sum::<u64>(), 4 * 16 - 4);
    hub.deploy("r4", 0, "1");
    hub.approve_all();
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
}

#[test]
fn a_scale_down_keeps_what_runs_and_then_the_oldest() {
    let mut hub = hub();
    hub.deploy("r1", 3, "1");
    hub.approve_all();
    let broken = hub.instances()[0].clone();
    let on = (broken.placements[0].node.clone(), broken.name.clone());
    hub.devices.silent.push(on.0.clone());
    hub.devices.standing.insert(on, Standing::Failed);
    hub.deploy("r2", 2, "1");
    let deleted = |one: &(InstanceName, Operation)| one.1.operation_type == OperationType::Delete;
    let victims: Vec<_> = hub.pending().into_iter().filter(deleted).map(|(name, _)| name).collect();
    assert_eq!(victims, [broken.name]);
}

#[test]
fn an_update_with_the_same_coordinates_changes_no_order() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let before = hub.devices.desired.clone();
    hub.deploy("r2", 1, "1");
    hub.approve_all();
    assert_eq!((&hub.devices.desired, hub.revision_state("r2")), (&before, RevisionState::Completed));
    hub.deploy("r3", 1, "2");
    assert_eq!(hub.devices.desired, before, "not before the approval");
    hub.approve_all();
    assert_ne!(hub.devices.desired, before);
    assert_eq!(hub.instances()[0].placements[0].revision.as_ref().unwrap().as_str(), "r3");
}

#[test]
fn a_failed_operation_fails_its_revision_and_a_later_one_is_possible() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    let content = hub.digest_of("r1");
    hub.devices.failing.push(content);
    hub.approve_all();
    assert_eq!(hub.revision_state("r1"), RevisionState::Failed);
    hub.deploy("r2", 2, "2");
    assert_eq!(hub.pending_types(), [OperationType::Update; 2]);
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (2, RevisionState::Completed));
}

#[test]
fn a_rejected_create_frees_its_node_a_rejected_delete_keeps_the_instance() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    let (instance, create) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &create))).unwrap();
    hub.converge();
    assert_eq!((hub.revision_state("r1"), hub.free_cores(0)), (RevisionState::Failed, 16));
    assert_eq!(hub.code(PlansRequest::Approve(Hub::verdict(&instance, &create))), ErrorCode::Precondition);
    hub.deploy("r2", 1, "1");
    assert_eq!(hub.pending_types(), [OperationType::Create], "it never ran");
    hub.approve_all();
    hub.deploy("r3", 0, "1");
    let (instance, delete) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &delete))).unwrap();
    hub.converge();
    assert_eq!((hub.running(), hub.revision_state("r3")), (1, RevisionState::Failed));
    assert_eq!(hub.instances()[0].state, InstanceState::Active);
}

#[test]
fn an_operation_that_nobody_approves_expires_and_frees_its_node() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({ "approvalExpiresAfter": "1m" }))).unwrap();
    hub.deploy("r1", 1, "1");
    let (instance, create) = hub.pending().remove(0);
    hub.second += 60;
    assert_eq!(hub.code(PlansRequest::Approve(Hub::verdict(&instance, &create))), ErrorCode::Precondition);
    hub.converge();
    assert_eq!(hub.instances()[0].operations[0].state, OperationState::Expired);
    assert_eq!((hub.revision_state("r1"), hub.free_cores(0)), (RevisionState::Failed, 16));
}

#[test]
fn a_cancelled_revision_ends_its_pending_operations() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    let cancel =
        |verb: &str| PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r1", "verb": verb })));
    assert_eq!(hub.code(deploy_request("r2", 1, "1")), ErrorCode::Precondition);
    hub.ask(cancel("cancel")).unwrap();
    hub.converge();
    assert_eq!((hub.revision_state("r1"), hub.pending().len()), (RevisionState::Cancelled, 0));
    assert!((0..4).all(|at| hub.free_cores(at) == 16));
    assert_eq!(hub.code(cancel("resume")), ErrorCode::Precondition);
    hub.deploy("r2", 1, "1");
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (1, RevisionState::Completed));
}

#[test]
fn a_paused_revision_starts_nothing_until_it_is_resumed() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    let set =
        |verb: &str| PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r1", "verb": verb })));
    hub.ask(set("pause")).unwrap();
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r1")), (0, RevisionState::Paused));
    assert!(explained(&hub)[0].contains("paused"), "{:?}", explained(&hub));
    hub.ask(set("resume")).unwrap();
    hub.converge();
    assert_eq!((hub.running(), hub.revision_state("r1")), (1, RevisionState::Completed));
}

/// The messages of all operations: what each waits for.
fn explained(hub: &Hub) -> Vec<String> {
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let all = read.operations(&OperationsQuery::default(), usize::MAX).operations;
    all.into_iter().map(|status| status.operation.message).collect()
}

#[test]
fn an_operation_of_a_full_plan_says_why_it_has_no_node() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    // The plan is known to be full, so nothing looks for a node again.
    let placed = hub.instances().into_iter().find(|instance| !instance.placements.is_empty()).unwrap();
    let asked = json!({ "plan": "web", "instance": placed.name, "type": "RELOCATE" });
    hub.ask(PlansRequest::Operation(request(asked))).unwrap();
    hub.converge();
    let waits = explained(&hub);
    assert_eq!(
        waits.iter().filter(|message| message.contains("no node of 1 has room")).count(),
        2,
        "{waits:?}"
    );
}

#[test]
fn a_failed_operation_says_the_last_error_of_its_node() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    let content = hub.digest_of("r1");
    hub.devices.failing.push(content);
    let error = json!({ "code": "ImagePullBackOff", "message": "no such tag", "at": "2026-11-24T00:00:00Z" });
    hub.devices.retries =
        vec![request(json!({ "attempt": 2, "since": "2026-11-24T00:00:00Z", "lastError": error }))];
    hub.approve_all();
    let failed = explained(&hub);
    assert!(failed[0].contains("(attempt 2: ImagePullBackOff: no such tag)"), "{failed:?}");
}

fn relocate(hub: &Hub) -> PlansRequest {
    let instance = &hub.instances()[0].name;
    PlansRequest::Operation(request(json!({ "plan": "web", "instance": instance, "type": "RELOCATE" })))
}

#[test]
fn a_relocate_runs_the_new_node_before_the_old_one_stops() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let old = hub.instances()[0].placements[0].node.clone();
    hub.ask(relocate(&hub)).unwrap();
    assert_eq!(hub.code(relocate(&hub)), ErrorCode::Precondition, "one at a time");
    hub.converge();
    let placements = hub.instances()[0].placements.clone();
    assert!(placements[0].active && !placements[1].active && placements[1].revision.is_none());
    let (instance, operation) = hub.pending().remove(0);
    hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &operation))).unwrap();
    let mut ran = Vec::new();
    while hub.round() {
        ran.push(hub.running());
    }
    assert!(ran.contains(&2) && ran.iter().all(|count| *count >= 1), "{ran:?}");
    let instance = hub.instances().remove(0);
    assert_eq!((instance.placements.len(), hub.running()), (1, 1));
    assert_ne!(instance.placements[0].node, old);
    assert_eq!(instance.operations.last().unwrap().state, OperationState::Succeeded);
}

#[test]
fn a_relocate_that_fails_keeps_the_old_node_and_frees_the_new_one() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let old = hub.instances()[0].placements[0].node.clone();
    hub.devices.silent.push(old.clone());
    hub.devices.failing.push(hub.digest_of("r1"));
    hub.ask(relocate(&hub)).unwrap();
    hub.converge();
    hub.approve_all();
    let instance = hub.instances().remove(0);
    assert_eq!(instance.operations.last().unwrap().state, OperationState::Failed);
    assert_eq!((instance.placements.len(), &instance.placements[0].node), (1, &old));
    assert_eq!(hub.devices.desired.len(), 1);
}

#[test]
fn a_silent_node_neither_fails_nor_succeeds() {
    let mut hub = hub();
    hub.devices.silent.extend((0..4).map(node_key));
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let read = |hub: &Hub| {
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        read.operations(&OperationsQuery::default(), 10).operations.remove(0).operation
    };
    let operation = read(&hub);
    assert_eq!(operation.state, OperationState::Running);
    assert!(operation.message.contains("was never heard"), "{}", operation.message);
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!(read(&hub).state, OperationState::Succeeded);
}

#[test]
fn a_second_operation_waits_for_the_first() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    hub.devices.silent.extend((0..4).map(node_key));
    hub.deploy("r2", 1, "2");
    hub.approve_all();
    hub.ask(relocate(&hub)).unwrap();
    hub.converge();
    hub.approve_all();
    let states: Vec<_> = hub.instances()[0].operations.iter().map(|one| one.state).collect();
    assert_eq!(states[1..], [OperationState::Running, OperationState::Approved]);
    hub.devices.silent.clear();
    hub.converge();
    assert!(hub.instances()[0].operations.iter().all(|one| one.state == OperationState::Succeeded));
}

#[test]
fn an_order_of_an_instance_that_is_gone_is_taken_back() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let stale = hub.devices.desired.clone();
    hub.deploy("r2", 0, "1");
    hub.approve_all();
    hub.devices.desired.extend(stale);
    hub.converge();
    assert!(hub.devices.desired.is_empty());
    let lost = PlansState::default();
    let ordered = vec![(node_key(0), "web-1".parse().unwrap(), plan_name())];
    assert!(lost.effects(&hub.devices, ordered).is_empty(), "a plan that PLANS does not know is left alone");
}

#[test]
fn after_approval_a_stop_keeps_the_node_and_a_restart_starts_again() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let instance = hub.instances()[0].name.clone();
    let operation = |kind: &str| {
        request::<OperationRequest>(json!({ "plan": "web", "instance": instance, "type": kind }))
    };
    let running = hub.devices.desired.clone();
    hub.ask(PlansRequest::Operation(operation("STOP"))).unwrap();
    hub.converge();
    assert_eq!(hub.devices.desired, running, "not before the approval");
    hub.approve_all();
    let runtime = |hub: &Hub| {
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        let answer = read.instances(&InstancesQuery::default(), 10);
        let operation = answer.instances[0].instance.operations.last().unwrap().clone();
        (answer.instances[0].placements[0].state, operation.operation_type, operation.state)
    };
    let succeeded = OperationState::Succeeded;
    assert_eq!(runtime(&hub), (RuntimeState::Terminated, OperationType::Stop, succeeded));
    assert_eq!((0..4).map(|at| hub.free_cores(at)).sum::<u64>(), 4 * 16 - 4, "the node keeps its place");
    assert_eq!(hub.code(PlansRequest::Operation(operation("STOP"))), ErrorCode::Precondition);
    for restarts in 1..=2 {
        let before = hub.devices.desired.clone();
        hub.ask(PlansRequest::Operation(operation("RESTART"))).unwrap();
        hub.approve_all();
        assert_eq!(runtime(&hub), (RuntimeState::Running, OperationType::Restart, succeeded));
        assert_eq!(hub.instances()[0].restarts, restarts);
        assert_ne!(hub.devices.desired, before, "also an instance that runs is started again");
    }
}

#[test]
fn an_approved_operation_waits_for_its_time_and_says_until_when() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let (instance, before) = (hub.instances()[0].name.clone(), hub.devices.desired.clone());
    let time = second(hub.second + 1_000);
    let restart = json!({ "plan": "web", "instance": instance, "type": "RESTART", "notBefore": time });
    hub.ask(PlansRequest::Operation(request(restart))).unwrap();
    hub.approve_all();
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let operations = read.operations(&OperationsQuery::default(), 10).operations;
    let waiting = &operations.last().unwrap().operation;
    assert_eq!(waiting.state, OperationState::Approved);
    assert_eq!(waiting.message, format!("it does not run before {time}"));
    assert_eq!(hub.devices.desired, before, "nothing is ordered");
    hub.second += 1_000;
    hub.converge();
    assert_eq!(hub.instances()[0].operations.last().unwrap().state, OperationState::Succeeded);
}

#[test]
fn a_stopped_instance_that_is_relocated_runs_on_its_new_node() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let instance = hub.instances()[0].clone();
    for kind in ["STOP", "RELOCATE"] {
        let value = json!({ "plan": "web", "instance": instance.name, "type": kind });
        hub.ask(PlansRequest::Operation(request(value))).unwrap();
        hub.converge();
        hub.approve_all();
    }
    let moved = hub.instances()[0].clone();
    assert!(!moved.stopped && moved.placements.len() == 1);
    assert_ne!(moved.placements[0].node, instance.placements[0].node);
    assert_eq!(hub.running(), 1);
}

#[test]
fn a_plan_whose_oldest_message_comes_last_takes_the_same_resources() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    let is_plan = |document: &PlansDocument| matches!(document, PlansDocument::Plan(_));
    let last_plan = hub.log.iter().rposition(is_plan).unwrap();
    // PLANS has dropped the older messages of the plan.
    let kept = hub.log.iter().enumerate().filter(|(at, document)| !is_plan(document) || *at == last_plan);
    let mut kept: Vec<_> = kept.map(|(_, document)| document.clone()).collect();
    let plan = kept.iter().position(is_plan).unwrap();
    let plan = kept.remove(plan);
    kept.push(plan);
    let mut read = PlansState::default();
    kept.into_iter().for_each(|document| _ = read.apply(document));
    let free = |state: &PlansState| {
        (0..4).map(|at| state.free(state.node(&node_key(at)).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(free(&read), free(&hub.state));
    check_invariants(&read);
}

#[test]
fn a_retired_node_gets_no_order_until_a_person_brings_it_back() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let node = hub.instances()[0].placements[0].node.clone();
    hub.devices.retired.push(node);
    hub.devices.desired.clear();
    hub.converge();
    assert!(hub.devices.desired.is_empty(), "an order would bring the device back");
    hub.devices.retired.clear();
    hub.converge();
    assert_eq!(hub.running(), 1);
}

#[test]
fn a_running_operation_cannot_be_cancelled_because_its_node_has_the_order() {
    let mut hub = hub();
    hub.deploy("r1", 1, "1");
    let (instance, create) = hub.pending().remove(0);
    let node = hub.instances()[0].placements[0].node.clone();
    hub.devices.silent.push(node);
    hub.approve_all();
    assert_eq!(hub.code(PlansRequest::Cancel(Hub::verdict(&instance, &create))), ErrorCode::Precondition);
}

#[test]
fn a_plan_of_large_coordinates_drops_ended_revisions_to_stay_changeable() {
    let mut hub = hub();
    for at in 0..40 {
        hub.deploy(&format!("r{at}"), u32::from(at % 2 == 0), &"x".repeat(12_000));
        hub.approve_all();
    }
    assert_eq!(hub.revision_state("r39"), RevisionState::Completed);
    let plan = hub.state.plan(&plan_name()).unwrap();
    assert!(plan.revisions.len() < 32, "{}", plan.revisions.len());
}

#[test]
fn a_plan_counts_the_operations_of_its_deleted_instances_apart() {
    let mut hub = hub();
    let removed = |hub: &Hub| -> Vec<(OperationType, u64)> {
        let plan = hub.state.plan(&plan_name()).unwrap();
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        let counts = read.summary(plan).removed.into_iter();
        counts.map(|one| (one.operation_type, one.succeeded)).collect()
    };
    hub.deploy("r1", 3, "1");
    hub.approve_all();
    assert_eq!(removed(&hub), []);
    hub.deploy("r2", 1, "1");
    hub.approve_all();
    use OperationType::{Create, Delete};
    assert_eq!(removed(&hub), [(Create, 2), (Delete, 2)]);
    // A later plan of the name begins anew.
    hub.deploy("r3", 0, "1");
    hub.approve_all();
    hub.ask(PlansRequest::PlanDelete(request(json!({ "plan": plan_name() })))).unwrap();
    hub.ask(plan_request(&json!({}))).unwrap();
    assert_eq!(removed(&hub), []);
}

#[test]
fn a_revision_of_no_instances_ends_the_one_under_way() {
    let mut hub = hub();
    hub.deploy("r1", 3, "1");
    let (instance, first) = hub.pending().remove(0);
    hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &first))).unwrap();
    // The node has its order, and has not confirmed it.
    hub.devices.silent = (0..4).map(node_key).collect();
    while hub.round() {}
    assert_eq!(hub.revision_state("r1"), RevisionState::InProgress);
    hub.ask(deploy_request("end", 0, "1")).unwrap();
    while hub.round() {}
    assert_eq!(hub.revision_state("r1"), RevisionState::Cancelled);
    hub.devices.silent.clear();
    hub.converge();
    hub.approve_all();
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
    assert_eq!(hub.revision_state("end"), RevisionState::Completed);
    assert!((0..4).all(|at| hub.free_cores(at) == 16));
}
