//! The reason of a placement, and nodes with disruptions.

use super::*;

fn disruption(at: usize, start: Timestamp, should_evict: bool) -> PlansRequest {
    let (node, id) = (node_key(at), format!("d{at}"));
    let add = json!({ "node": node, "id": id, "verb": "add", "start": start, "shouldEvict": should_evict });
    PlansRequest::Disruption(request(add))
}

fn explained(hub: &Hub) -> Vec<Operation> {
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let answer = read.operations(&OperationsQuery::default(), 100);
    answer.operations.into_iter().map(|status| status.operation).collect()
}

#[test]
fn an_operation_says_the_score_of_its_node_and_why_others_are_none() {
    let mut hub = Hub::with_nodes(&[3, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    let pending = explained(&hub).remove(0);
    assert_eq!(
        pending.message,
        "Operation is pending approval; node plant/n00001: score 1000 in update domain d1, which has 0 instances of the plan; \
         16 cores and 64 memory were free; other nodes were rejected: 1 without enough cores or memory"
    );
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let answer = read.explain(&PlanQuery { plan: plan_name() }).unwrap();
    assert_eq!(
        answer.candidates_count, 0,
        "the plan runs on one of the nodes, and the other one is too small"
    );
    hub.ask(node_request(2, "d2", 8)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(2, state, Some("north")).unwrap();
    }
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    assert_eq!(read.explain(&PlanQuery { plan: plan_name() }).unwrap().candidates[0].score, 1000);
}

#[test]
fn a_node_with_a_disruption_is_taken_only_if_no_other_has_room() {
    let mut hub = Hub::with_nodes(&[64, 16, 16, 16]);
    // Nodes 0 and 2 are of one update domain, and 1 and 3 of the other one.
    for (at, verb) in [(0, "approve"), (2, "")] {
        hub.ask(disruption(at, second(3600), false)).unwrap();
        if !verb.is_empty() {
            let approve = json!({ "node": node_key(at), "id": format!("d{at}"), "verb": verb });
            hub.ask(PlansRequest::Disruption(request(approve))).unwrap();
        }
    }
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 2, "1");
    let nodes = |hub: &Hub| {
        let all = hub.instances().into_iter().flat_map(|one| one.placements);
        all.map(|on| on.node).collect::<BTreeSet<_>>()
    };
    assert_eq!(nodes(&hub), BTreeSet::from([node_key(1), node_key(3)]), "also of one update domain");
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let next = read.explain(&PlanQuery { plan: plan_name() }).unwrap().candidates.remove(0);
    assert!(next.reason.contains("; it has disruption d2 from "), "{}", next.reason);
    hub.approve_all();
    hub.deploy("r2", 3, "1");
    assert_eq!(nodes(&hub).len(), 3, "a node with a disruption is taken at last");
}

#[test]
fn a_relocate_waits_for_approval_before_the_disruption_begins() {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let left = usize::from(hub.instances()[0].placements[0].node != node_key(0));
    let start = second(hub.second + 3600);
    hub.ask(disruption(left, start, true)).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Relocate]);
    assert_eq!(hub.free_cores(left), 12, "nothing moves without an approval");
    hub.approve_all();
    assert!(hub.now() < start && hub.running() == 1);
    assert_eq!((hub.free_cores(left), hub.free_cores(1 - left)), (16, 12));
}
