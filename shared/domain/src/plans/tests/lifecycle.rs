//! The lifecycle of a plan: its termination and deletion, and revisions that a person stops.

use super::*;

/// A hub whose newest revision, r1, has a state; r0 has completed before it.
fn hub_in(state: &str) -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r0", 1, "0");
    hub.approve_all();
    hub.deploy("r1", 2, "1");
    match state {
        "runs" => {
            hub.devices.silent = (0..4).map(node_key).collect();
            hub.approve_all();
        }
        "completed" => hub.approve_all(),
        "paused" => hub.ask(revision_request("r1", "pause")).map(drop).unwrap(),
        other => assert_eq!(other, "waits for approval"),
    }
    hub.converge();
    hub
}

fn revision_request(id: &str, verb: &str) -> PlansRequest {
    PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": id, "verb": verb })))
}

fn last_revision(hub: &Hub) -> PlanRevision {
    hub.state.plan(&plan_name()).unwrap().revisions.last().unwrap().clone()
}

fn open_operations(hub: &Hub) -> usize {
    let operations = hub.instances().into_iter().flat_map(|one| one.operations);
    operations.filter(|one| !one.state.is_final()).count()
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

#[test]
fn a_stopped_revision_fails_with_its_operations_and_another_one_follows() {
    let mut hub = hub_in("runs");
    assert!(open_operations(&hub) > 0, "silent nodes hold the operations");
    hub.ask(revision_request("r1", "stop")).unwrap();
    hub.converge();
    let revision = last_revision(&hub);
    assert_eq!(
        (revision.state, revision.message.as_str()),
        (RevisionState::Failed, "Deployment was stopped")
    );
    assert_eq!(open_operations(&hub), 0, "no operation waits for a node that is silent");
    let ended = hub.instances().into_iter().flat_map(|one| one.operations);
    let of_revision = ended.filter(|one| one.revision.as_ref() == Some(&revision.id));
    assert!(of_revision.clone().count() > 0);
    for operation in of_revision {
        assert_eq!(operation.state, OperationState::Failed, "{}", operation.message);
    }
    hub.devices.silent.clear();
    hub.deploy("r2", 2, "2");
    hub.approve_all();
    assert_eq!(last_revision(&hub).state, RevisionState::Completed);
}

#[test]
fn a_termination_after_a_stopped_one_waits_for_the_nodes() {
    let mut hub = hub_in("completed");
    let (all, used) = (hub.instances().len(), hub.state.usage.clone());
    hub.devices.silent = (0..4).map(node_key).collect();
    for id in ["r2", "r3"] {
        hub.ask(deploy_request(id, 0, "1")).unwrap();
        hub.converge();
        hub.approve_all();
        assert_eq!(last_revision(&hub).state, RevisionState::InProgress, "{id} waits for the silent nodes");
        hub.ask(revision_request(id, "stop")).unwrap();
        hub.converge();
        assert_eq!(last_revision(&hub).state, RevisionState::Failed);
        assert_eq!(hub.instances().len(), all, "no node has reported");
        assert_eq!(hub.state.usage, used, "their resources stay taken");
    }
    hub.ask(deploy_request("r4", 1, "1")).unwrap();
    hub.converge();
    hub.approve_all();
    assert_eq!(hub.instances().len(), all + 1, "no revision takes an instance whose DELETE was stopped");
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!((last_revision(&hub).state, hub.instances().len()), (RevisionState::Completed, 1));
}

#[test]
fn a_cancelled_revision_whose_operations_run_is_stopped_as_well() {
    let mut hub = hub_in("runs");
    hub.ask(deploy_request("r2", 0, "1")).unwrap();
    hub.converge();
    hub.approve_all();
    hub.ask(revision_request("r2", "stop")).unwrap();
    hub.converge();
    assert!(open_operations(&hub) > 0, "those of the cancelled revision run on");
    hub.ask(revision_request("r1", "stop")).unwrap();
    hub.converge();
    assert_eq!(open_operations(&hub), 0);
    assert_eq!(hub.code(revision_request("r1", "stop")), ErrorCode::Precondition, "it is failed");
    hub.devices.silent.clear();
    hub.deploy("r3", 0, "1");
    hub.approve_all();
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
}

#[test]
fn a_stopped_revision_releases_what_its_waiting_operations_have_reserved() {
    for state in ["waits for approval", "paused"] {
        let mut hub = hub_in(state);
        hub.ask(revision_request("r1", "stop")).unwrap();
        hub.converge();
        assert_eq!((last_revision(&hub).state, open_operations(&hub)), (RevisionState::Failed, 0));
        let of_revision = |one: &Operation| one.revision.as_ref().is_some_and(|id| id.as_str() == "r1");
        let ended = hub.instances().into_iter().flat_map(|one| one.operations).filter(of_revision);
        assert!(ended.clone().count() > 0);
        ended.for_each(|one| assert_eq!(one.state, OperationState::Cancelled, "{}", one.message));
        let placed = hub.instances().iter().flat_map(|one| &one.placements).count();
        assert_eq!(placed, 1, "that of the revision before");
    }
}
