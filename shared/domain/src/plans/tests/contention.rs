//! Planners with the same fold of PLANS that decide at once: one document is appended for each position of the log, and the others
//! fold it and decide again.

use super::*;

/// A planner with its own fold, which decides about one plan alone.
struct Contender {
    plan: PlanName,
    state: PlansState,
    read: usize,
    decided: Vec<PlansDocument>,
}

impl Contender {
    fn new(hub: &Hub, plan: &str) -> Self {
        let mut contender =
            Self { plan: plan.parse().unwrap(), state: PlansState::default(), read: 0, decided: Vec::new() };
        contender.decide_again(hub);
        contender
    }

    fn decide_again(&mut self, hub: &Hub) {
        self.state = PlansState::default();
        hub.log.iter().for_each(|document| drop(self.state.apply(document.clone())));
        self.read = hub.log.len();
        self.state.dirty = BTreeSet::from([self.plan.clone()]);
        let made = self.state.advance(&hub.devices, hub.now(), 100);
        self.decided = made.into_iter().map(|(document, _)| document).collect();
    }

    /// The node that the planner has chosen and not appended.
    fn chosen(&self) -> Option<DeviceKey> {
        let placed = self.decided.iter().find_map(|document| match document {
            PlansDocument::Instance(instance) => instance.placements.first(),
            _ => None,
        });
        placed.map(|placement| placement.node.clone())
    }

    /// Appends the next document, or folds those of others and decides again; returns whether it has appended.
    fn append(&mut self, hub: &mut Hub) -> bool {
        if self.read < hub.log.len() {
            self.decide_again(hub);
            return false;
        }
        let next = self.decided.remove(0);
        hub.log.push(next.clone());
        hub.state.apply(next);
        self.read += 1;
        true
    }
}

fn small_plan(name: &str) -> PlansRequest {
    let application = json!({ "payloadName": name, "resources": { "cores": 4, "memory": 8 } });
    plan_request(&json!({ "name": name, "applications": [application] }))
}

fn deploy_once(plan: &str) -> PlansRequest {
    let coordinates = json!({ plan: {} });
    PlansRequest::PlanDeploy(request(
        json!({ "plan": plan, "id": "r1", "instances": 1, "coordinates": coordinates }),
    ))
}

/// A hub with a node of one slot, that the scheduler prefers; if there is `another`, its first slot is taken.
fn hub_with_a_last_slot(another: bool) -> Hub {
    let mut hub = Hub::with_nodes(if another { &[8] } else { &[] });
    if another {
        hub.ask(small_plan("busy")).unwrap();
        hub.ask(deploy_once("busy")).unwrap();
        hub.converge();
    }
    hub.ask(node_request(9, "d0", 4)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(9, state, Some("north")).unwrap();
    }
    for plan in ["blue", "green"] {
        hub.ask(small_plan(plan)).unwrap();
        hub.ask(deploy_once(plan)).unwrap();
    }
    hub
}

fn instance_of(hub: &Hub, plan: &PlanName) -> Instance {
    hub.state.instances_of(plan).next().unwrap().clone()
}

#[test]
fn two_plans_that_race_for_the_last_slot_never_share_it() {
    for (another, names) in
        [(false, ["blue", "green"]), (false, ["green", "blue"]), (true, ["blue", "green"])]
    {
        let mut hub = hub_with_a_last_slot(another);
        let mut planners = names.map(|plan| Contender::new(&hub, plan));
        let slot = Some(node_key(9));
        assert_eq!([planners[0].chosen(), planners[1].chosen()], [slot.clone(), slot], "both want it");
        let mut refused = 0;
        while planners.iter().any(|planner| !planner.decided.is_empty()) {
            for planner in planners.iter_mut().filter(|planner| !planner.decided.is_empty()) {
                refused += usize::from(!planner.append(&mut hub));
                check_invariants(&hub.state);
            }
        }
        assert!(refused > 0, "the second planner has lost a document");
        let [winner, loser] = names.map(|plan| instance_of(&hub, &plan.parse().unwrap()));
        assert_eq!((&winner.placements[0].node, hub.free_cores(9)), (&node_key(9), 0));
        let operation = &loser.operations[0];
        if another {
            assert_eq!((&loser.placements[0].node, hub.free_cores(0)), (&node_key(0), 0));
            assert_eq!(operation.state, OperationState::PendingApproval);
        } else {
            assert_eq!((loser.placements.len(), operation.state), (0, OperationState::Preparing));
            let said = "no node of 1 has room: 1 without enough cores or memory";
            assert_eq!(operation.message, said);
        }
    }
}

/// A change by its number and the version that it expects.
type Change<'a> = &'a dyn Fn(usize, u64) -> PlansRequest;

#[test]
fn one_of_five_changes_of_the_same_version_is_made_and_four_conflict() {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    let plan = |at: usize, version| {
        plan_request(&json!({ "expectedVersion": version, "namespace": format!("n{at}") }))
    };
    let node = |at: usize, version| {
        let total = json!({ "cores": 16 + at, "memory": 64 });
        let node =
            json!({ "site": "plant", "device": "n00000", "updateDomain": "d", "totalResources": total });
        PlansRequest::InventoryApply(request(json!({ "expectedVersion": version, "item": { "node": node } })))
    };
    let disruption = |at: usize, version| {
        PlansRequest::Disruption(request(json!({ "expectedVersion": version, "node": node_key(1),
            "id": format!("d{at}"), "verb": "add", "start": second(0) })))
    };
    let changes: [(Change<'_>, u64); 3] = [(&plan, 0), (&node, 2), (&disruption, 2)];
    for (change, version) in changes {
        let base = hub.state.clone();
        let decided = (0..5).map(|at| base.decide(&change(at, version), None, hub.now()));
        assert!(decided.into_iter().all(|one| matches!(one, Ok(Decision::Append(_)))), "each could be made");
        let mut answers: Vec<_> = [3, 0, 4, 1, 2].map(|at| hub.ask(change(at, version))).into();
        assert_eq!(answers.remove(0).unwrap().version(), version + 1);
        for refused in answers.into_iter().map(Result::unwrap_err) {
            assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(version + 1)));
        }
        hub.ask(change(0, version + 1)).unwrap();
    }
}
