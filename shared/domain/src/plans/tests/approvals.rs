//! Approvals of whole revisions, as EMCO approves a deployment intent group: which operations they approve, and until when.

use super::*;

fn approval(id: &str) -> PlansRequest {
    PlansRequest::PlanApprove(request(json!({ "plan": "web", "id": id, "rule": "night shift" })))
}

fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16; 4]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub
}

#[test]
fn an_approved_revision_runs_without_an_approval_of_each_operation() {
    for is_early in [true, false] {
        let mut hub = hub();
        hub.ask(deploy_request("r1", 3, "1")).unwrap();
        if !is_early {
            hub.converge();
            assert_eq!((hub.pending().len(), hub.running()), (3, 0), "nothing runs before the approval");
        }
        hub.ask(approval("r1")).unwrap();
        hub.converge();
        assert_eq!((hub.revision_state("r1"), hub.running()), (RevisionState::Completed, 3));
        for operation in hub.instances().into_iter().flat_map(|one| one.operations) {
            let steps: Vec<_> = operation.history.iter().map(|step| step.state).collect();
            assert!(steps.contains(&OperationState::PendingApproval), "{steps:?}");
            assert_eq!(operation.approval.unwrap().rule.unwrap(), "night shift");
        }
    }
}

#[test]
fn the_next_revision_needs_an_approval_of_its_own() {
    let mut hub = hub();
    hub.ask(deploy_request("r1", 1, "1")).unwrap();
    hub.ask(approval("r1")).unwrap();
    hub.converge();
    hub.deploy("r2", 1, "2");
    assert_eq!(hub.pending_types(), [OperationType::Update]);
    let name = hub.instances()[0].name.clone();
    let stop = json!({ "plan": "web", "instance": name, "type": "RESTART" });
    hub.ask(PlansRequest::Operation(request(stop))).unwrap();
    hub.ask(approval("r2")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Restart], "a person's operation needs its own approval");
}

#[test]
fn an_approved_termination_removes_all_instances() {
    let mut hub = hub();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    hub.ask(deploy_request("r2", 0, "1")).unwrap();
    hub.ask(approval("r2")).unwrap();
    hub.converge();
    assert!(hub.instances().is_empty() && hub.devices.desired.is_empty());
}

#[test]
fn a_second_approval_changes_nothing_and_a_late_one_is_refused() {
    let mut hub = hub();
    hub.ask(deploy_request("r1", 1, "1")).unwrap();
    let first = hub.ask(approval("r1")).unwrap();
    let appended = hub.log.len();
    assert_eq!(hub.ask(approval("r1")).unwrap(), first);
    assert_eq!(hub.log.len(), appended, "nothing is appended");
    hub.converge();
    let refused = hub.ask(approval("r1")).unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (ErrorCode::Precondition, "revision r1 is completed, and waits for no approval")
    );
    assert_eq!(hub.code(approval("r9")), ErrorCode::NotFound);
}

#[test]
fn an_operation_that_expired_before_the_approval_stays_expired() {
    let mut hub = hub();
    hub.ask(deploy_request("r1", 1, "1")).unwrap();
    hub.converge();
    hub.second += 25 * 60 * 60;
    hub.ask(approval("r1")).unwrap();
    hub.converge();
    assert_eq!((hub.revision_state("r1"), hub.running()), (RevisionState::Failed, 0));
}

#[test]
fn a_revision_whose_hooks_may_change_it_cannot_be_approved() {
    let mut hub = Hub::with_nodes(&[16; 4]);
    hub.ask(plan_request(&json!({ "hooks": [{ "before": "placement", "request": "muster.check.sites" }] })))
        .unwrap();
    hub.ask(deploy_request("r1", 1, "1")).unwrap();
    let refused = hub.ask(approval("r1")).unwrap_err().message;
    assert_eq!(refused, "the hooks of revision r1 may change it yet: approve it once they have answered");
}
