//! Nodes that are not heard: their orders wait, nothing of them is stopped, and they hold up no other node.

use super::*;

/// A hub with an instance of r1 that runs on each of three nodes; the first node is silent.
fn hub() -> (Hub, DeviceKey) {
    let mut hub = Hub::with_nodes(&[16; 3]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 3, "1");
    hub.approve_all();
    assert_eq!(hub.running(), 3);
    hub.devices.silent = vec![node_key(0)];
    (hub, node_key(0))
}

fn approve(hub: &mut Hub) {
    for (instance, operation) in hub.pending() {
        hub.ask(PlansRequest::Approve(Hub::verdict(&instance, &operation))).unwrap();
    }
}

/// The newest operation of each node, as a reader sees it.
fn operations_by_node(hub: &Hub) -> BTreeMap<DeviceKey, Operation> {
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let of = |one: &Instance| {
        let query = OperationsQuery { instance: vec![one.name.to_string()], ..OperationsQuery::default() };
        let newest = read.operations(&query, 100).operations.pop().unwrap().operation;
        (one.active().unwrap().node.clone(), newest)
    };
    hub.instances().iter().map(of).collect()
}

/// Runs rounds until nothing changes; returns the orders to run something that the publisher was asked for, and those to remove it,
/// by node.
fn orders_until_rest(hub: &mut Hub) -> BTreeMap<DeviceKey, (usize, usize)> {
    let mut asked: BTreeMap<DeviceKey, (usize, usize)> = BTreeMap::new();
    for _ in 0..20 {
        hub.second += 1;
        hub.state.time_passed();
        let made = hub.state.advance(&hub.devices, hub.now(), 1_000);
        hub.log.extend(made.into_iter().map(|(document, _)| document));
        for effect in hub.state.effects(&hub.devices, hub.devices.ordered()) {
            let counts = asked.entry(effect.target().0.clone()).or_default();
            let is_apply = matches!(effect, Effect::Apply { .. });
            *counts = (counts.0 + usize::from(is_apply), counts.1 + usize::from(!is_apply));
            hub.devices.carry_out(effect, &plan_name());
        }
        hub.devices.run();
        check_invariants(&hub.state);
    }
    asked
}

#[test]
fn a_silent_node_holds_up_no_other_and_completes_once_it_returns() {
    let (mut hub, silent) = hub();
    hub.deploy("r2", 3, "2");
    hub.approve_all();
    for (node, operation) in operations_by_node(&hub) {
        if node == silent {
            assert_eq!(operation.state, OperationState::Running);
            let said = format!("the state is unknown: node {silent} was never heard");
            assert_eq!(operation.message, said);
        } else {
            assert_eq!(operation.state, OperationState::Succeeded, "{node}");
        }
    }
    assert_eq!(hub.revision_state("r2"), RevisionState::InProgress);
    hub.devices.silent.clear();
    hub.converge();
    assert_eq!(operations_by_node(&hub)[&silent].state, OperationState::Succeeded);
    assert_eq!((hub.running(), hub.revision_state("r2")), (3, RevisionState::Completed));
}

#[test]
fn an_order_for_a_silent_node_is_made_once_and_waits_for_its_return() {
    let (mut hub, silent) = hub();
    let used = hub.state.usage.clone();
    hub.deploy("r2", 3, "2");
    approve(&mut hub);
    let away = orders_until_rest(&mut hub);
    assert_eq!(away[&silent], (1, 0), "one order, and none that stops what runs there");
    let on = hub.devices.desired.keys().find(|(node, _)| *node == silent).cloned().unwrap();
    assert_eq!(hub.devices.standing[&on], Standing::Waiting);
    let placed = hub.state.instance(&plan_name(), &on.1).unwrap();
    assert_eq!((placed.placements.len(), &placed.placements[0].node), (1, &silent), "it is not moved");
    assert_eq!(hub.state.usage, used);

    hub.devices.silent.clear();
    let back = orders_until_rest(&mut hub);
    assert!(back.is_empty(), "the order was there already: {back:?}");
    assert_eq!(hub.devices.standing[&on], Standing::Installed);
    let steps: Vec<_> = operations_by_node(&hub)[&silent].history.iter().map(|step| step.state).collect();
    let runs = steps.iter().filter(|state| **state == OperationState::Running).count();
    assert_eq!((runs, steps.last()), (1, Some(&OperationState::Succeeded)), "{steps:?}");
}
