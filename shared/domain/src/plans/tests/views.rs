//! Plans and instances as a reader sees them before and between the steps of a planner.

use super::*;

fn read(hub: &Hub) -> PlansRead<'_, Devices> {
    PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() }
}

#[test]
fn before_any_planner_acts_a_deployment_is_pending_without_instances() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.ask(deploy_request("r1", 2, "1")).unwrap();
    let listed = read(&hub).plans(&PlansQuery::default(), 10).plans;
    let answer = read(&hub).plan(&PlanQuery { plan: plan_name() }).unwrap();
    assert_eq!(listed, std::slice::from_ref(&answer));
    let [revision] = &answer.plan.revisions[..] else { panic!("{answer:?}") };
    assert_eq!((revision.state, revision.message.as_str()), (RevisionState::Pending, ""));
    assert_eq!(answer.summary, PlanSummary::default(), "no instance, no operation");
    assert!(read(&hub).instances(&InstancesQuery::default(), 10).instances.is_empty());
    assert!(read(&hub).operations(&OperationsQuery::default(), 10).operations.is_empty());
}

#[test]
fn an_instance_implements_a_new_revision_before_it_runs_it() {
    let mut hub = Hub::with_nodes(&[16; 3]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    let seen = |hub: &Hub| {
        let statuses = read(hub).instances(&InstancesQuery::default(), 10).instances;
        let of = |status: InstanceStatus| {
            let runs = status.instance.active().and_then(|placement| placement.revision.clone());
            assert_eq!(status.placements[0].state, RuntimeState::Running);
            (status.instance.revision.to_string(), runs.map(|runs| runs.to_string()).unwrap_or_default())
        };
        statuses.into_iter().map(of).collect::<Vec<_>>()
    };
    let both = |implements: &str, runs: &str| vec![(implements.to_owned(), runs.to_owned()); 2];
    hub.ask(deploy_request("r2", 2, "2")).unwrap();
    assert_eq!(seen(&hub), both("r1", "r1"), "no planner has acted");
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Update; 2]);
    assert_eq!(seen(&hub), both("r2", "r1"), "before the approvals");
    hub.approve_all();
    assert_eq!(seen(&hub), both("r2", "r2"));
}
