//! Versions, repeated requests, transitions and deletions of documents.

use super::*;

#[test]
fn a_stale_version_changes_nothing_and_names_the_current_one() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    let refused = hub.ask(plan_request(&json!({}))).unwrap_err();
    assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(0)), "it exists");
    let refused = hub.ask(plan_request(&json!({ "expectedVersion": 5 }))).unwrap_err();
    assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(0)));
    let changed = hub.ask(plan_request(&json!({ "expectedVersion": 0, "namespace": "other" }))).unwrap();
    assert_eq!(changed.version(), 1);
}

#[test]
fn each_kind_of_document_is_made_as_version_0_and_once_a_name() {
    let item = |item: Value| PlansRequest::InventoryApply(request(json!({ "item": item })));
    let mut hub = Hub::default();
    for made in [
        item(json!({ "cluster": { "name": "north" } })),
        item(json!({ "capability": { "name": "gpu", "type": "GPU", "score": 1 } })),
        node_request(0, "d", 8),
        plan_request(&json!({})),
    ] {
        assert_eq!(hub.ask(made.clone()).unwrap().version(), 0);
        let refused = hub.ask(made).unwrap_err();
        assert_eq!((refused.code, refused.current_version), (ErrorCode::Conflict, Some(0)));
    }
}

#[test]
fn each_plan_and_each_instance_has_an_id_of_its_own() {
    let mut hub = Hub::with_nodes(&[64; 4]);
    let mut ids = BTreeSet::new();
    for name in ["blue", "green", "blue"] {
        let apps = json!([{ "payloadName": "main", "resources": { "cores": 1, "memory": 1 } }]);
        let made = hub.ask(plan_request(&json!({ "name": name, "applications": apps }))).unwrap();
        let PlansDocument::Plan(plan) = made else { panic!() };
        assert!(ids.insert(plan.uid), "{name}");
        let deploy = |id: &str, count: u32| {
            let deploy = json!({ "plan": name, "id": id, "instances": count, "coordinates": { "main": {} } });
            PlansRequest::PlanDeploy(request(deploy))
        };
        hub.ask(deploy("r1", 2)).unwrap();
        hub.converge();
        hub.approve_all();
        for instance in hub.state.instances_of(&name.parse().unwrap()) {
            assert!(ids.insert(instance.name.to_string()), "{name}");
        }
        hub.ask(deploy("r2", 0)).unwrap();
        hub.converge();
        hub.approve_all();
        hub.ask(PlansRequest::PlanDelete(request(json!({ "plan": name })))).unwrap();
    }
    assert_eq!(ids.len(), 3 + 6);
}

#[test]
fn a_repeated_request_id_changes_nothing_for_a_day() {
    let mut hub = Hub::with_nodes(&[16]);
    let apply = plan_request(&json!({ "requestId": "a" }));
    let first = hub.ask(apply.clone()).unwrap();
    let count = hub.log.len();
    assert_eq!(hub.ask(apply.clone()), Ok(first));
    assert_eq!(hub.log.len(), count);
    let other = plan_request(&json!({ "requestId": "a", "namespace": "other" }));
    assert_eq!(hub.code(other.clone()), ErrorCode::Conflict, "the id is that of another request");
    let by = Some(request(json!({ "name": "anna", "key": "U1" })));
    let of_anna = hub.state.decide(&other, by, hub.now()).unwrap_err();
    assert!(of_anna.message.contains("exists"), "an id of another requester means nothing: {of_anna:?}");
    hub.second += 24 * 60 * 60 + 1;
    assert_eq!(hub.code(apply), ErrorCode::Conflict, "the id is forgotten, and the plan exists");
}

#[test]
fn a_person_repeats_a_request_through_another_gateway() {
    let mut hub = Hub::with_nodes(&[16]);
    let apply = plan_request(&json!({ "requestId": "a" }));
    let through = |gateway: &str, person: &str| {
        let person = json!({ "key": person, "role": "operator" });
        Some(request(json!({ "key": gateway, "role": "gateway", "onBehalfOf": person })))
    };
    let first = hub.state.decide(&apply, through("UG1", "UANNA"), hub.now());
    let Ok(Decision::Append(plan)) = first else { panic!("the plan is made") };
    hub.state.apply((*plan).clone());
    let again = hub.state.decide(&apply, through("UG2", "UANNA"), hub.now());
    assert_eq!(again, Ok(Decision::Unchanged(plan)));
    let of_bob = hub.state.decide(&apply, through("UG2", "UBOB"), hub.now());
    assert_eq!(of_bob.unwrap_err().code, ErrorCode::Conflict, "his id is another one, and the plan exists");
}

#[test]
fn a_deleted_name_is_hidden_and_free_again() {
    let mut hub = Hub::with_nodes(&[16]);
    let PlansDocument::Plan(first) = hub.ask(plan_request(&json!({}))).unwrap() else { panic!() };
    hub.ask(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))).unwrap();
    assert_eq!(hub.code(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))), ErrorCode::NotFound);
    let read = |hub: &Hub, query: Value| {
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        read.plans(&request(query), 10).plans.len()
    };
    assert_eq!((read(&hub, json!({})), read(&hub, json!({ "state": ["deleted"] }))), (0, 1));
    hub.second += 1;
    let PlansDocument::Plan(second) = hub.ask(plan_request(&json!({}))).unwrap() else { panic!() };
    assert!(second.uid != first.uid && second.version == 0);
}

#[test]
fn what_is_in_use_is_not_deleted() {
    let mut hub = Hub::with_nodes(&[16]);
    hub.ask(plan_request(&json!({ "cluster": "north" }))).unwrap();
    hub.deploy("r1", 1, "1");
    for item in [json!({ "node": node_key(0) }), json!({ "cluster": "north" })] {
        let delete = PlansRequest::InventoryDelete(request(json!({ "item": item })));
        assert_eq!(hub.code(delete), ErrorCode::Precondition, "{item}");
    }
    assert_eq!(
        hub.code(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))),
        ErrorCode::Precondition
    );
    let smaller = json!({ "expectedVersion": 2, "item": { "node": {
        "site": "plant", "device": "n00000", "updateDomain": "d0", "totalResources": { "cores": 3, "memory": 64 } } } });
    assert_eq!(hub.code(PlansRequest::InventoryApply(request(smaller))), ErrorCode::Precondition);
}

#[test]
fn a_node_follows_the_transitions_of_mrds_and_no_others() {
    let all = ["unallocated", "allocating", "allocated", "evicted", "sanitizing"];
    let legal = [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (4, 0), (4, 3)];
    let path: [&[&str]; 5] = [
        &[],
        &["allocating"],
        &["allocating", "allocated"],
        &["allocating", "evicted"],
        &["allocating", "evicted", "sanitizing"],
    ];
    let cluster = |state: &str| state.starts_with("alloc").then_some("north");
    for (from, path) in path.iter().enumerate() {
        for (to, state) in all.iter().enumerate() {
            let mut hub = Hub::with_nodes(&[]);
            hub.ask(node_request(0, "d", 8)).unwrap();
            path.iter().for_each(|step| drop(hub.node_state(0, step, cluster(step)).unwrap()));
            let moved = hub.node_state(0, state, cluster(state)).map_err(|refused| refused.code);
            let is_legal = legal.contains(&(from, to));
            assert_eq!(moved.is_ok(), is_legal, "{} to {state}", all[from]);
            assert!(is_legal || moved == Err(ErrorCode::Precondition), "{} to {state}", all[from]);
        }
    }
}

#[test]
fn a_node_keeps_the_cluster_of_its_allocation_until_it_leaves() {
    let mut hub = Hub::with_nodes(&[]);
    hub.ask(PlansRequest::InventoryApply(request(json!({ "item": { "cluster": { "name": "south" } } }))))
        .unwrap();
    hub.ask(node_request(0, "d", 8)).unwrap();
    let refused = |hub: &mut Hub, state: &str, cluster: Option<&str>| {
        let before = hub.log.len();
        let refused = hub.node_state(0, state, cluster).unwrap_err();
        assert_eq!((refused.code, hub.log.len()), (ErrorCode::BadRequest, before));
        assert_eq!(refused.field.as_deref(), Some("cluster"));
        refused.message
    };
    let missing = "cluster: is missing: a node is allocated to one";
    assert_eq!(refused(&mut hub, "allocating", None), missing);
    let unknown = "cluster: there is no cluster west: add it to the inventory";
    assert_eq!(refused(&mut hub, "allocating", Some("west")), unknown);
    hub.node_state(0, "allocating", Some("north")).unwrap();
    let another = "cluster: south is not the one that the node is allocating to";
    assert_eq!(refused(&mut hub, "allocated", Some("south")), another);
    assert_eq!(refused(&mut hub, "allocated", None), missing);
    let cluster = |document: PlansDocument| {
        let PlansDocument::Node(node) = document else { panic!() };
        node.cluster.map(|cluster| cluster.to_string())
    };
    let allocated = hub.node_state(0, "allocated", Some("north")).unwrap();
    assert_eq!(cluster(allocated).as_deref(), Some("north"));
    let useless = "cluster: is of no use here: the node leaves its cluster";
    assert_eq!(refused(&mut hub, "evicted", Some("north")), useless);
    assert_eq!(cluster(hub.node_state(0, "evicted", None).unwrap()), None);
}

#[test]
fn a_node_is_not_free_before_its_instances_are_relocated() {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let at = usize::from(hub.instances()[0].placements[0].node != node_key(0));
    for state in ["evicted", "sanitizing"] {
        hub.node_state(at, state, None).unwrap();
        hub.converge();
        assert_eq!((hub.pending_types(), hub.running()), (vec![OperationType::Relocate], 1), "{state}");
    }
    let refused = hub.node_state(at, "unallocated", None).unwrap_err();
    let said = format!("node {} has 1 placements: relocate them first", node_key(at));
    assert_eq!((refused.code, refused.message), (ErrorCode::Precondition, said));
    hub.approve_all();
    assert_eq!((&hub.instances()[0].placements[0].node, hub.running()), (&node_key(1 - at), 1));
    hub.node_state(at, "unallocated", None).unwrap();
}

#[test]
fn a_cluster_and_a_capability_follow_the_transitions_of_mrds() {
    let states = ["pending", "active", "inactive", "deleted"];
    let paths: [&[&str]; 3] = [&[], &["active"], &["inactive"]];
    for item in [json!({ "cluster": "east" }), json!({ "capability": "gpu" })] {
        let set =
            |state: &str| PlansRequest::InventoryState(request(json!({ "item": item, "state": state })));
        for (from, path) in paths.iter().enumerate() {
            for (to, state) in states.iter().enumerate() {
                let mut hub = Hub::default();
                for made in [
                    json!({ "cluster": { "name": "east" } }),
                    json!({ "capability": { "name": "gpu", "type": "GPU", "score": 1 } }),
                ] {
                    hub.ask(PlansRequest::InventoryApply(request(json!({ "item": made })))).unwrap();
                }
                path.iter().for_each(|step| drop(hub.ask(set(step)).unwrap()));
                if [(0, 1), (0, 2), (1, 2), (2, 1)].contains(&(from, to)) {
                    hub.ask(set(state)).unwrap();
                } else {
                    assert_eq!(hub.code(set(state)), ErrorCode::Precondition, "{} to {state}", states[from]);
                }
            }
        }
    }
}

#[test]
fn a_node_without_room_for_its_reserved_part_is_refused() {
    let mut hub = Hub::default();
    for (total, reserved, domain) in
        [((0, 8), (0, 0), "d"), ((8, 0), (0, 0), "d"), ((8, 8), (9, 0), "d"), ((8, 8), (0, 0), " ")]
    {
        let node = json!({ "item": { "node": { "site": "a", "device": "b", "updateDomain": domain,
            "totalResources": { "cores": total.0, "memory": total.1 },
            "systemReservedResources": { "cores": reserved.0, "memory": reserved.1 } } } });
        assert_eq!(hub.code(PlansRequest::InventoryApply(request(node))), ErrorCode::BadRequest);
    }
}

fn disruption(verb: &str, id: &str) -> PlansRequest {
    PlansRequest::Disruption(request(json!({
        "node": node_key(0), "id": id, "verb": verb, "start": "2026-12-01T00:00:00Z", "shouldEvict": true })))
}

#[test]
fn a_disruption_is_scheduled_approved_completed_and_then_removed() {
    let mut hub = Hub::with_nodes(&[16]);
    assert_eq!(hub.code(disruption("approve", "d1")), ErrorCode::NotFound);
    hub.ask(disruption("add", "d1")).unwrap();
    for verb in ["add", "remove"] {
        assert_eq!(hub.code(disruption(verb, "d1")), ErrorCode::Precondition, "{verb}");
    }
    for verb in ["approve", "complete", "remove"] {
        hub.ask(disruption(verb, "d1")).unwrap();
    }
    let PlansDocument::Node(node) = hub.log.last().unwrap() else { panic!() };
    assert!(node.disruptions.is_empty() && node.version == 6, "each change of a disruption is a version");
}

#[test]
fn a_disruption_keeps_its_start_and_follows_the_transitions_of_mrds() {
    let verbs = ["approve", "complete", "remove"];
    // The verbs that lead to a state, and whether each verb is legal in it.
    let states: [(&str, &[&str], [bool; 3]); 3] = [
        ("scheduled", &[], [true, true, false]),
        ("approved", &["approve"], [false, true, false]),
        ("completed", &["complete"], [false, false, true]),
    ];
    let no_start =
        PlansRequest::Disruption(request(json!({ "node": node_key(0), "id": "d1", "verb": "add" })));
    assert_eq!(Hub::with_nodes(&[16]).code(no_start), ErrorCode::BadRequest);
    for (state, path, legal) in states {
        let mut hub = Hub::with_nodes(&[16]);
        hub.ask(disruption("add", "d1")).unwrap();
        path.iter().for_each(|verb| drop(hub.ask(disruption(verb, "d1")).unwrap()));
        let [held] = &hub.state.node(&node_key(0)).unwrap().disruptions[..] else { panic!() };
        assert_eq!(json!(held.state), json!(state));
        assert_eq!(json!(held.start), json!("2026-12-01T00:00:00Z"), "its start, whatever is asked later");
        for (verb, is_legal) in verbs.into_iter().zip(legal) {
            let asked = hub.clone().ask(disruption(verb, "d1")).map_err(|refused| refused.code);
            assert_eq!(asked.is_ok(), is_legal, "{verb} in {state}");
            assert!(is_legal || asked == Err(ErrorCode::Precondition), "{verb} in {state}");
        }
    }
}

#[test]
fn a_disruption_that_evicts_relocates_the_instances_of_its_node() {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.approve_all();
    let at = usize::from(hub.instances()[0].placements[0].node != node_key(0));
    let mut add = disruption("add", "d1");
    if let PlansRequest::Disruption(request) = &mut add {
        request.node = node_key(at);
    }
    hub.ask(add).unwrap();
    hub.converge();
    assert_eq!(hub.pending_types(), [OperationType::Relocate]);
    let (instance, operation) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &operation))).unwrap();
    hub.converge();
    assert!(hub.pending().is_empty(), "a rejected one is not repeated");
    hub.node_state(at, "evicted", None).unwrap();
    hub.converge();
    hub.approve_all();
    assert_eq!(hub.instances()[0].placements[0].node, node_key(1 - at));
    assert!(
        hub.node_state(at, "sanitizing", None).is_ok() && hub.node_state(at, "unallocated", None).is_ok()
    );
}
