//! Rollback of a plan: what it repeats, and each refusal.

use super::*;

fn rollback(id: &str, to: &str) -> PlansRequest {
    PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": id, "to": to })))
}

/// A hub on which r1 (two instances of version 1) and r2 (one of version 2) have completed.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    for (id, instances, version) in [("r1", 2, "1"), ("r2", 1, "2")] {
        hub.deploy(id, instances, version);
        hub.approve_all();
    }
    hub
}

#[test]
fn a_rollback_repeats_an_earlier_revision_as_a_new_one() {
    let mut hub = hub();
    hub.ask(rollback("r3", "r1")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Create, OperationType::Update], "approved as any other");
    hub.approve_all();
    let plan = hub.state.plan(&plan_name()).unwrap().clone();
    let ids: Vec<&str> = plan.revisions.iter().map(|revision| revision.id.as_str()).collect();
    assert_eq!(ids, ["r1", "r2", "r3"], "earlier revisions stay");
    let (first, third) = (&plan.revisions[0], &plan.revisions[2]);
    assert_eq!((third.instances, &third.coordinates), (first.instances, &first.coordinates));
    assert_eq!((third.state, third.rollback_to.as_ref()), (RevisionState::Completed, Some(&first.id)));
    assert_eq!(hub.running(), 2);
    assert!(hub.instances().iter().all(|instance| instance.revision == third.id));
}

#[test]
fn a_rollback_that_cannot_be_is_refused_by_name() {
    let refused = |hub: &mut Hub, id: &str, to: &str| {
        let before = hub.log.len();
        let body = hub.ask(rollback(id, to)).unwrap_err();
        assert_eq!(hub.log.len(), before, "nothing is appended");
        (body.code, body.message)
    };
    let mut hub = hub();
    for (id, to, code, words) in [
        ("r3", "r9", ErrorCode::NotFound, "there is no revision r9 of plan web"),
        ("r3", "r2", ErrorCode::Precondition, "revision r2 is the newest of plan web: name an earlier one"),
        ("r2", "r1", ErrorCode::Conflict, "plan web has a revision r2"),
    ] {
        assert_eq!(refused(&mut hub, id, to), (code, words.to_owned()), "{id} to {to}");
    }
    hub.deploy("r3", 1, "3");
    let (code, words) = refused(&mut hub, "r4", "r1");
    assert_eq!(code, ErrorCode::Precondition);
    assert_eq!(words, "revision r3 is inProgress: wait for it, or cancel it");
    hub.ask(PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r3", "verb": "cancel" }))))
        .unwrap();
    hub.converge();
    let words = "revision r3 of plan web is cancelled: name one that is completed";
    assert_eq!(refused(&mut hub, "r4", "r3"), (ErrorCode::Precondition, words.to_owned()));
    hub.ask(PlansRequest::PlanState(request(json!({ "plan": "web", "state": "inactive" })))).unwrap();
    let words = "plan web is inactive";
    assert_eq!(refused(&mut hub, "r4", "r1"), (ErrorCode::Precondition, words.to_owned()));
}
