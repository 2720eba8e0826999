//! Operations that a person ends by hand, without the report of their nodes.

use super::*;

/// A hub with an operation of one instance that runs on silent nodes.
fn hub_with_running(request: Option<&str>) -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    let silence = |hub: &mut Hub| hub.devices.silent.extend((0..2).map(node_key));
    if request.is_none() {
        silence(&mut hub);
    }
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    match request {
        None => return hub,
        Some("DELETE") => hub.deploy("r2", 0, "1"),
        Some("UPDATE") => hub.deploy("r2", 1, "2"),
        Some(kind) => {
            let instance = &hub.instances()[0].name;
            let asked = json!({ "plan": "web", "instance": instance, "type": kind });
            hub.ask(PlansRequest::Operation(self::request(asked))).unwrap();
        }
    }
    silence(&mut hub);
    hub.converge();
    hub.approve_all();
    hub
}

fn last(hub: &Hub) -> Operation {
    hub.instances()[0].operations.last().unwrap().clone()
}

/// The request to end the newest operation.
fn ended(hub: &Hub, reason: Option<&str>) -> OperationVerdictRequest {
    let instance = &hub.instances()[0];
    OperationVerdictRequest {
        reason: reason.map(str::to_owned),
        expected_version: Some(instance.version),
        ..Hub::verdict(&instance.name, instance.operations.last().unwrap())
    }
}

fn complete(hub: &Hub) -> PlansRequest {
    PlansRequest::Complete(ended(hub, Some("seen on site")))
}

fn fail(hub: &Hub) -> PlansRequest {
    PlansRequest::Fail(ended(hub, Some("the disk is full")))
}

fn status(hub: &Hub) -> PlacementStatus {
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    read.instances(&InstancesQuery::default(), 1).instances[0].placements[0].clone()
}

#[test]
fn a_completion_by_hand_ends_the_operation_and_claims_nothing_of_the_node() {
    let mut hub = hub_with_running(None);
    let asked = complete(&hub);
    hub.ask(asked.clone()).unwrap();
    let operation = last(&hub);
    assert_eq!(operation.state, OperationState::Succeeded);
    assert_eq!(operation.message, "ended by hand: seen on site");
    assert_eq!(operation.completion.unwrap().reason, "seen on site");
    assert_eq!(hub.code(asked), ErrorCode::Conflict, "a second one is for an older version");
    assert_eq!(hub.code(complete(&hub)), ErrorCode::Precondition, "it does not run any more");
    hub.converge();
    let revision = hub.state.plan(&plan_name()).unwrap().open_revision();
    assert!(revision.is_none());
    let revision = hub.state.plan(&plan_name()).unwrap().revisions[0].clone();
    assert_eq!(
        (revision.state, revision.message.as_str()),
        (RevisionState::Completed, "Deployment completed, 1 of 1 operations by hand")
    );
    assert_eq!(status(&hub).state, RuntimeState::Unknown, "no report says that it runs");
}

#[test]
fn a_report_after_a_completion_by_hand_changes_the_view_alone() {
    for (request, is_failing, seen) in [
        (complete as fn(&Hub) -> PlansRequest, true, RuntimeState::Failed),
        (complete, false, RuntimeState::Running),
        (fail, false, RuntimeState::Running),
    ] {
        let mut hub = hub_with_running(Some("UPDATE"));
        hub.ask(request(&hub)).unwrap();
        let recorded = last(&hub);
        if is_failing {
            hub.devices.failing.push(hub.digest_of("r2"));
        }
        hub.devices.silent.clear();
        hub.converge();
        assert_eq!((status(&hub).state, last(&hub)), (seen, recorded));
    }
}

#[test]
fn a_report_that_comes_first_leaves_nothing_to_complete_by_hand() {
    let mut hub = hub_with_running(Some("STOP"));
    let (asked, unversioned) = (
        complete(&hub),
        OperationVerdictRequest { expected_version: None, ..ended(&hub, Some("seen on site")) },
    );
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!(hub.code(asked), ErrorCode::Conflict);
    assert_eq!(hub.code(PlansRequest::Fail(unversioned)), ErrorCode::Precondition);
    assert!(last(&hub).completion.is_none() && last(&hub).message.is_empty());
}

#[test]
fn a_delete_completed_by_hand_holds_its_node_until_the_node_is_rid_of_it() {
    let mut hub = hub_with_running(Some("DELETE"));
    let node = hub.instances()[0].placements[0].node.clone();
    hub.ask(complete(&hub)).unwrap();
    hub.converge();
    assert_eq!(hub.revision_state("r2"), RevisionState::Completed);
    let instance = &hub.instances()[0];
    assert_eq!((instance.state, instance.placements.len()), (InstanceState::MarkedForDeletion, 1));
    assert!(hub.state.usage(&node).is_some(), "the node may still run it");
    let delete = PlansRequest::PlanDelete(request(json!({ "plan": "web" })));
    let refused = hub.ask(delete.clone()).unwrap_err();
    let words = format!("node {node} has not reported that it removed instance");
    assert!(refused.message.starts_with(&words), "{}", refused.message);
    let mut retired = hub.clone();
    retired.devices.retired.push(node.clone());
    hub.devices.silent.clear();
    hub.converge();
    assert!(hub.devices.standing.is_empty());
    // A person who retires the device says that it is gone.
    retired.second += 1;
    retired.state.time_passed();
    retired.state.advance(&retired.devices, retired.now(), 10);
    for mut hub in [hub, retired] {
        assert!(hub.instances().is_empty() && hub.state.usage(&node).is_none());
        hub.ask(delete.clone()).unwrap();
    }
}

#[test]
fn no_revision_takes_an_instance_whose_delete_ended_by_hand() {
    for (end, state) in
        [(complete as fn(&Hub) -> PlansRequest, RevisionState::Completed), (fail, RevisionState::Failed)]
    {
        let mut hub = hub_with_running(Some("DELETE"));
        let Instance { name, placements, .. } = hub.instances().remove(0);
        let node = placements[0].node.clone();
        hub.ask(end(&hub)).unwrap();
        hub.converge();
        assert_eq!(hub.revision_state("r2"), state);
        hub.deploy("r3", 1, "1");
        let pending = hub.pending();
        assert!(pending.len() == 1 && pending[0].0 != name, "a new instance is made: {pending:?}");
        let reject = PlansRequest::Reject(Hub::verdict(&pending[0].0, &pending[0].1));
        hub.ask(reject).unwrap();
        hub.converge();
        let kept = hub.state.instance(&plan_name(), &name).unwrap();
        assert_eq!((kept.state, kept.placements.len()), (InstanceState::MarkedForDeletion, 1));
        assert!(hub.state.usage(&node).is_some(), "the node may still run it");
        hub.devices.silent.clear();
        hub.converge();
        assert!(hub.state.instance(&plan_name(), &name).is_none() && hub.devices.standing.is_empty());
        assert!(hub.state.usage(&node).is_none());
        hub.deploy("r4", 1, "1");
        hub.approve_all();
        assert_eq!((hub.running(), hub.instances().len()), (1, 1));
    }
}

#[test]
fn a_rejected_create_drops_no_placement_of_an_earlier_order() {
    // A planner of an older release gave such an instance to the next revision.
    let mut hub = hub_with_running(Some("DELETE"));
    hub.ask(fail(&hub)).unwrap();
    hub.converge();
    let mut old = hub.instances().remove(0);
    old.state = InstanceState::Active;
    hub.state.apply(PlansDocument::Instance(old));
    hub.deploy("r3", 1, "1");
    let (instance, create) = hub.pending().remove(0);
    assert_eq!(create.operation_type, OperationType::Create);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &create))).unwrap();
    assert_eq!(hub.instances()[0].placements.len(), 1);
}

#[test]
fn a_relocate_is_not_completed_by_hand_before_its_new_node_runs() {
    let mut hub = hub_with_running(Some("RELOCATE"));
    let old = hub.instances()[0].active().unwrap().node.clone();
    assert_eq!(hub.code(complete(&hub)), ErrorCode::Precondition, "the old node would stop");
    let mut failed = hub.clone();
    failed.ask(fail(&failed)).unwrap();
    failed.devices.silent.clear();
    failed.converge();
    assert_eq!(failed.instances()[0].placements.len(), 1);
    assert_eq!((&failed.instances()[0].placements[0].node, failed.running()), (&old, 1));
    // The new node is heard, and the old one is not: it alone is left to be confirmed.
    hub.devices.silent = vec![old.clone()];
    hub.converge();
    hub.ask(complete(&hub)).unwrap();
    hub.converge();
    assert_eq!(last(&hub).state, OperationState::Succeeded);
    let instance = hub.instances().remove(0);
    assert_eq!(instance.placements.len(), 2, "the old node keeps its resources");
    let again = json!({ "plan": "web", "instance": instance.name, "type": "RELOCATE" });
    hub.ask(PlansRequest::Operation(request(again))).unwrap();
    hub.converge();
    assert_eq!(last(&hub).message, format!("waits until node {old} has removed the instance"));
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!((last(&hub).state, hub.running()), (OperationState::PendingApproval, 1));
}

#[test]
fn a_completion_by_hand_needs_a_reason_and_an_operation_that_runs() {
    let mut hub = hub_with_running(None);
    for reason in [None, Some(" ")] {
        let refused = hub.ask(PlansRequest::Complete(ended(&hub, reason))).unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("reason"));
    }
    hub.devices.silent.clear();
    hub.converge();
    let instance = &hub.instances()[0].name;
    let stop = json!({ "plan": "web", "instance": instance, "type": "STOP", "notBefore": second(500) });
    hub.ask(PlansRequest::Operation(request(stop))).unwrap();
    assert_eq!(hub.code(complete(&hub)), ErrorCode::Precondition, "it waits for an approval");
    hub.approve_all();
    let refused = hub.ask(complete(&hub)).unwrap_err();
    assert!(refused.message.ends_with("is APPROVED, and does not run"), "{}", refused.message);
}

#[test]
fn an_update_completed_by_hand_is_no_proof_for_the_next_turn() {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 3, "1");
    hub.approve_all();
    hub.ask(rolling::rolling_request("r2", 3, "2")).unwrap();
    hub.converge();
    for (instance, operation) in hub.pending() {
        hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &operation))).unwrap();
    }
    // The order is not even published: the node still runs the earlier revision.
    let (devices, now) = (hub.devices.clone(), hub.now());
    let advance = |hub: &mut Hub| {
        hub.state.time_passed();
        let made = hub.state.advance(&devices, now, 100);
        hub.log.extend(made.into_iter().map(|(document, _)| document));
    };
    advance(&mut hub);
    let states = |hub: &Hub, state: OperationState| {
        let all = hub.instances();
        let last: Vec<_> =
            all.into_iter().filter(|one| one.operations.last().unwrap().state == state).collect();
        last
    };
    let running = states(&hub, OperationState::Running).remove(0);
    let asked = OperationVerdictRequest {
        reason: Some("seen on site".to_owned()),
        ..Hub::verdict(&running.name, running.operations.last().unwrap())
    };
    hub.ask(PlansRequest::Complete(asked)).unwrap();
    advance(&mut hub);
    assert_eq!(states(&hub, OperationState::Running).len(), 0, "another update would be a second one down");
    hub.converge();
    assert_eq!((hub.running(), hub.revision_state("r2")), (3, RevisionState::Completed));
}
