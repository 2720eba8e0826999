//! Deployments that skip unchanged instances: which of them get no operation, and which get their UPDATE all the same.

use super::*;

pub(super) fn skipping_request(id: &str, instances: u32, version: &str) -> PlansRequest {
    PlansRequest::PlanDeploy(request(
        json!({ "plan": "web", "id": id, "instances": instances, "skipUnchanged": true,
        "coordinates": { "main": { "version": version } } }),
    ))
}

/// A hub with three running instances of version 1.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16; 5]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 3, "1");
    hub.approve_all();
    hub
}

fn revision(hub: &Hub, id: &str) -> PlanRevision {
    hub.state.plan(&plan_name()).unwrap().revision(&id.parse().unwrap()).unwrap().clone()
}

#[test]
fn a_deployment_that_changes_nothing_completes_without_operations() {
    let mut hub = hub();
    let orders = hub.devices.desired.clone();
    hub.ask(skipping_request("r2", 3, "1")).unwrap();
    hub.converge();
    let r2 = revision(&hub, "r2");
    assert_eq!(r2.state, RevisionState::Completed);
    assert_eq!(r2.message, "Deployment completed, 3 instances were unchanged");
    for instance in hub.instances() {
        assert_eq!(
            (&instance.revision, &instance.active().unwrap().revision),
            (&r2.id, &Some(r2.id.clone()))
        );
        let of_r2 = instance.operations.iter().filter(|one| one.revision.as_ref() == Some(&r2.id));
        assert_eq!(of_r2.count(), 0);
    }
    assert_eq!(hub.devices.desired, orders, "no node gets another order");
}

#[test]
fn scaling_without_another_content_makes_only_creates_or_deletes() {
    let mut hub = hub();
    hub.ask(skipping_request("r2", 5, "1")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Create; 2]);
    hub.approve_all();
    hub.ask(skipping_request("r3", 2, "1")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Delete; 3]);
    hub.approve_all();
    assert_eq!((hub.revision_state("r3"), hub.instances().len()), (RevisionState::Completed, 2));
}

#[test]
fn an_instance_that_is_not_proven_to_run_the_content_gets_its_update() {
    let silent = |hub: &mut Hub| {
        let node = hub.instances()[0].active().unwrap().node.clone();
        hub.devices.silent.push(node);
    };
    let failing = |hub: &mut Hub| {
        let on = hub.devices.standing.keys().next().unwrap().clone();
        hub.devices.failing.push(hub.devices.desired[&on].0);
        hub.devices.run();
    };
    let stopped = |hub: &mut Hub| {
        let name = hub.instances()[0].name.clone();
        let stop = json!({ "plan": "web", "instance": name, "type": "STOP" });
        hub.ask(PlansRequest::Operation(request(stop))).unwrap();
        hub.approve_all();
    };
    let makes: [&dyn Fn(&mut Hub); 3] = [&silent, &failing, &stopped];
    for ((name, updates), make) in [("silent", 1), ("failing", 3), ("stopped", 1)].into_iter().zip(makes) {
        let mut hub = hub();
        make(&mut hub);
        hub.ask(skipping_request("r2", 3, "1")).unwrap();
        hub.converge();
        assert_eq!(hub.pending_types(), vec![OperationType::Update; updates], "{name}");
    }
    let mut hub = hub();
    hub.ask(skipping_request("r2", 3, "2")).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Update; 3], "another content");
}
