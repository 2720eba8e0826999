//! The choice of nodes, rule by rule.

use super::*;
use crate::plans::schedule::{Hooks, Scheduler, Wanted};

fn place(hub: &Hub, extra: &Value) -> Result<DeviceKey, String> {
    let PlansRequest::PlanApply(apply) = plan_request(extra) else { panic!() };
    Scheduler::new(&hub.state, Wanted { spec: &apply.spec, coordinates: None, hooks: Hooks::All }, hub.now())
        .place()
        .map(|(node, _)| node)
}

#[test]
fn a_plan_that_fits_nowhere_waits_with_the_reason_of_each_node() {
    let mut hub = Hub::with_nodes(&[3, 16]);
    hub.ask(node_request(2, "d", 16)).unwrap();
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 3, "1");
    assert_eq!(hub.pending().len(), 1);
    let waiting = hub.instances().into_iter().find(|instance| instance.placements.is_empty()).unwrap();
    assert_eq!(waiting.operations[0].state, OperationState::Preparing);
    let message = &waiting.operations[0].message;
    for words in [
        "no node of 3 has room",
        "1 not allocated",
        "1 without enough cores or memory",
        "1 with the payload already",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let before = hub.log.len();
    hub.converge();
    assert_eq!(hub.log.len(), before, "the same reason is not written again");
    hub.node_state(2, "allocating", Some("north")).unwrap();
    hub.node_state(2, "allocated", Some("north")).unwrap();
    hub.converge();
    assert_eq!(hub.pending().len(), 2, "a new node is used at once");
}

#[test]
fn instances_spread_over_update_domains() {
    let mut hub = Hub::with_nodes(&[64, 16, 64, 16, 64]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 4, "1");
    let mut domains: Vec<_> = hub.instances().iter().map(|one| one.placements[0].node.clone()).collect();
    domains.sort();
    let of_d1 = domains.iter().filter(|key| [node_key(1), node_key(3)].contains(key)).count();
    assert_eq!(of_d1, 2, "two of each domain, though the nodes of d0 are larger");
}

#[test]
fn the_freest_node_of_a_domain_is_chosen_and_always_the_same() {
    let mut hub = Hub::with_nodes(&[16, 16, 16]);
    hub.ask(plan_request(&json!({ "name": "other", "applications": [
        { "payloadName": "other", "resources": { "cores": 8, "memory": 1 } }] })))
        .unwrap();
    let first = place(&hub, &json!({})).unwrap();
    assert!((0..10).all(|_| place(&hub, &json!({})).as_ref() == Ok(&first)));
    let change = json!({ "at": second(0), "message": "instance is made" });
    let other = json!({ "apiVersion": "muster/v1", "kind": "Instance", "name": "other-1", "displayName": "other-1",
        "plan": "other", "revision": "r1", "version": 0, "state": "active", "createdAt": second(0),
        "placements": [{ "node": first, "active": true }], "change": change });
    hub.state.apply(PlansDocument::Instance(request(other)));
    assert_ne!(place(&hub, &json!({})), Ok(first), "its free share is the smallest now");
    assert!(place(&hub, &json!({ "cluster": "north" })).is_ok());
    assert!(place(&hub, &json!({ "cluster": "south" })).is_err());
}

fn capability(hub: &mut Hub, name: &str, score: u64) {
    let item = json!({ "item": { "capability": { "name": name, "type": "GPU", "score": score } } });
    hub.ask(PlansRequest::InventoryApply(request(item))).unwrap();
}

#[test]
fn comparators_compare_names_and_scores() {
    let mut hub = Hub::with_nodes(&[]);
    for (name, score) in [("low", 10), ("mid", 20), ("high", 30)] {
        capability(&mut hub, name, score);
    }
    for (at, name) in ["low", "mid", "high"].into_iter().enumerate() {
        let key = node_key(at);
        let node = json!({ "item": { "node": { "site": key.site, "device": key.device, "updateDomain": "d",
            "totalResources": { "cores": 16, "memory": 64 }, "capabilities": [name] } } });
        hub.ask(PlansRequest::InventoryApply(request(node))).unwrap();
        hub.node_state(at, "allocating", Some("north")).unwrap();
        hub.node_state(at, "allocated", Some("north")).unwrap();
    }
    let fits = |hub: &Hub, comparator: &str, names: &[&str]| {
        let matcher = json!({ "matchingComputeCapabilities": [
            { "capabilityType": "GPU", "comparator": comparator, "capabilityNames": names }] });
        let PlansRequest::PlanApply(apply) = plan_request(&matcher) else { panic!() };
        let mut scheduler = Scheduler::new(
            &hub.state,
            Wanted { spec: &apply.spec, coordinates: None, hooks: Hooks::All },
            hub.now(),
        );
        let mut nodes: Vec<_> = std::iter::from_fn(|| scheduler.place().ok()).map(|(node, _)| node).collect();
        nodes.sort();
        nodes.iter().map(|key| key.device.as_str()[5..].parse().unwrap()).collect::<Vec<usize>>()
    };
    assert_eq!(fits(&hub, "in", &["low", "mid"]), [0, 1]);
    assert_eq!(fits(&hub, "eq", &["mid"]), [1]);
    assert_eq!(fits(&hub, "NOT_IN", &["low"]), [1, 2]);
    assert_eq!(fits(&hub, "gte", &["mid", "high"]), [1, 2], "at least the lowest score");
    assert_eq!(fits(&hub, "lte", &["low", "mid"]), [0, 1], "at most the highest score");
    let unknown = json!({ "matchingComputeCapabilities": [
        { "capabilityType": "GPU", "comparator": "in", "capabilityNames": ["none"] }] });
    assert_eq!(hub.code(plan_request(&unknown)), ErrorCode::BadRequest, "a name must be in the inventory");
}

#[test]
fn a_port_and_a_volume_are_given_once() {
    let mut hub = Hub::with_nodes(&[]);
    let node = json!({ "item": { "node": { "site": "plant", "device": "n00000", "updateDomain": "d",
        "totalResources": { "cores": 16, "memory": 64 },
        "localVolumes": [{ "mountPath": "/ssd", "storageClass": "ssd", "storageCapacity": 10 }] } } });
    hub.ask(PlansRequest::InventoryApply(request(node))).unwrap();
    hub.node_state(0, "allocating", Some("north")).unwrap();
    hub.node_state(0, "allocated", Some("north")).unwrap();
    let with = |payload: &str, more: Value| {
        let mut app = json!({ "payloadName": payload, "resources": { "cores": 1, "memory": 1 } });
        more.as_object().unwrap().iter().for_each(|(key, value)| app[key] = value.clone());
        json!({ "applications": [app] })
    };
    let port = json!({ "ports": [{ "protocol": "TCP", "port": 80 }] });
    let volume = |capacity: u64, class: &str| json!({ "persistentVolumes": [{ "storageClass": class, "capacity": capacity, "mountPath": "/data" }] });
    let both = json!({ "ports": port["ports"], "persistentVolumes": volume(8, "ssd")["persistentVolumes"] });
    hub.ask(plan_request(&with("main", both))).unwrap();
    hub.deploy("r1", 1, "1");
    assert_eq!(hub.pending().len(), 1);
    let refused = |more: Value| place(&hub, &with("other", more)).unwrap_err();
    assert!(refused(port).contains("with a port taken"));
    assert!(refused(volume(3, "ssd")).contains("without enough storage"));
    assert!(refused(volume(1, "hdd")).contains("without enough storage"));
    assert!(place(&hub, &with("other", volume(2, "ssd"))).is_ok());
    assert!(place(&hub, &with("main", json!({}))).unwrap_err().contains("with the payload already"));
}

#[test]
fn a_node_with_a_disruption_that_evicts_is_not_chosen() {
    let mut hub = Hub::with_nodes(&[16]);
    let add = json!({ "node": node_key(0), "id": "d1", "verb": "add", "start": "2030-01-01T00:00:00Z", "shouldEvict": true });
    hub.ask(PlansRequest::Disruption(request(add))).unwrap();
    assert!(place(&hub, &json!({})).unwrap_err().contains("with a disruption that evicts"));
}

#[test]
fn a_node_that_is_not_allocated_is_never_chosen_and_refused_by_name() {
    let paths: [&[&str]; 4] =
        [&[], &["allocating"], &["allocating", "evicted"], &["allocating", "evicted", "sanitizing"]];
    for path in paths {
        let mut hub = Hub::with_nodes(&[16]);
        hub.ask(plan_request(&json!({}))).unwrap();
        hub.deploy("r1", 1, "1");
        hub.approve_all();
        hub.ask(node_request(1, "d", 16)).unwrap();
        let cluster = |state: &str| (state == "allocating").then_some("north");
        path.iter().for_each(|state| drop(hub.node_state(1, state, cluster(state)).unwrap()));
        let (node, instance) = (node_key(1), hub.instances()[0].name.clone());
        let create = PlansRequest::InstanceCreate(request(json!({ "plan": "web", "node": node })));
        let relocate = json!({ "plan": "web", "instance": instance, "type": "RELOCATE", "node": node });
        for asked in [create, PlansRequest::Operation(request(relocate))] {
            let refused = hub.ask(asked).unwrap_err();
            let said = format!("node {node} cannot run it: it is not allocated to a cluster");
            assert_eq!((refused.code, refused.message), (ErrorCode::Precondition, said), "{path:?}");
        }
        let said = "no node of 2 has room: 1 not allocated, 1 with the payload already";
        assert_eq!(place(&hub, &json!({})), Err(said.to_owned()), "{path:?}");
        let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
        let rejected = read.explain(&PlanQuery { plan: plan_name() }).unwrap().rejected;
        let of_node = rejected.into_iter().find(|one| one.node == node).unwrap();
        assert_eq!(of_node.reasons, ["it is not allocated to a cluster"], "{path:?}");
    }
}

#[test]
fn a_node_with_any_payload_of_the_plan_is_never_chosen() {
    let apps = |names: &[&str]| {
        let app = |name: &&str| json!({ "payloadName": name, "resources": { "cores": 1, "memory": 1 } });
        json!({ "applications": names.iter().map(app).collect::<Vec<_>>() })
    };
    let mut hub = Hub::with_nodes(&[64]);
    hub.ask(plan_request(&apps(&["a", "b", "c"]))).unwrap();
    let deploy =
        json!({ "plan": "web", "id": "r1", "instances": 1, "coordinates": { "a": {}, "b": {}, "c": {} } });
    hub.ask(PlansRequest::PlanDeploy(request(deploy))).unwrap();
    hub.converge();
    for taken in [&["a"][..], &["c"], &["x", "b"], &["c", "x", "y"], &["a", "b", "c"]] {
        let refused = place(&hub, &apps(taken)).unwrap_err();
        assert_eq!(refused, "no node of 1 has room: 1 with the payload already", "{taken:?}");
    }
    assert_eq!(place(&hub, &apps(&["x", "y"])), Ok(node_key(0)));
}

#[test]
fn a_plan_of_a_cluster_runs_on_its_nodes_alone() {
    let mut hub = Hub::with_nodes(&[64, 64]);
    hub.ask(PlansRequest::InventoryApply(request(json!({ "item": { "cluster": { "name": "south" } } }))))
        .unwrap();
    hub.ask(node_request(2, "d2", 8)).unwrap();
    for state in ["allocating", "allocated"] {
        hub.node_state(2, state, Some("south")).unwrap();
    }
    hub.ask(plan_request(&json!({ "cluster": "south" }))).unwrap();
    hub.deploy("r1", 2, "1");
    let placed: Vec<_> = hub.instances().iter().flat_map(|one| one.placements.clone()).collect();
    assert_eq!(placed.iter().map(|on| &on.node).collect::<Vec<_>>(), [&node_key(2)], "the smallest node");
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let rejected = read.explain(&PlanQuery { plan: plan_name() }).unwrap().rejected;
    for of_north in rejected.iter().filter(|one| one.node != node_key(2)) {
        assert_eq!(of_north.reasons, ["it is not of cluster south"]);
    }
    assert_eq!(rejected.len(), 3);
}

#[test]
fn an_explanation_lists_candidates_in_order_and_why_others_are_none() {
    let mut hub = Hub::with_nodes(&[16, 2, 32]);
    hub.ask(plan_request(&json!({}))).unwrap();
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let answer = read.explain(&PlanQuery { plan: plan_name() }).unwrap();
    assert_eq!((answer.candidates_count, answer.rejected_count), (2, 1));
    assert_eq!(Ok(answer.candidates[0].node.clone()), place(&hub, &json!({})));
    assert!(answer.rejected[0].reasons[0].contains("4 cores and 8 memory are needed, 2 and 64 are free"));
}

#[test]
fn ten_thousand_instances_are_placed_on_distinct_nodes() {
    let mut state = PlansState::default();
    for at in 0..20_000 {
        let key = node_key(at);
        let node: Node = request(json!({ "apiVersion": "muster/v1", "kind": "Node", "site": key.site,
            "device": key.device, "version": 0, "state": "allocated", "updateDomain": format!("d{}", at % 100),
            "totalResources": { "cores": 8, "memory": 64 }, "createdAt": second(0),
            "change": { "at": second(0), "message": "node is made" } }));
        state.apply(PlansDocument::Node(node));
    }
    let PlansRequest::PlanApply(apply) = plan_request(&json!({})) else { panic!() };
    let mut scheduler =
        Scheduler::new(&state, Wanted { spec: &apply.spec, coordinates: None, hooks: Hooks::All }, second(0));
    let nodes: std::collections::BTreeSet<_> = (0..10_000).map(|_| scheduler.place().unwrap().0).collect();
    assert_eq!(nodes.len(), 10_000);
}

#[test]
fn one_plan_is_served_by_agents_of_every_runtime() {
    let mut hub = Hub::with_nodes(&[]);
    for (at, runtime) in ["process", "compose", "kubernetes", "simulated", "helm"].iter().enumerate() {
        let node = json!({ "item": { "node": { "site": "plant", "device": format!("n{at:05}"), "updateDomain": "d",
            "totalResources": { "cores": 16, "memory": 64 }, "runtimes": [runtime] } } });
        hub.ask(PlansRequest::InventoryApply(request(node))).unwrap();
        hub.node_state(at, "allocating", Some("north")).unwrap();
        hub.node_state(at, "allocated", Some("north")).unwrap();
    }
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy_coordinates("r1", 5, &json!({ "image": "nginx:1", "command": "serve" }));
    let waiting = hub.instances().into_iter().find(|instance| instance.placements.is_empty()).unwrap();
    let message = &waiting.operations[0].message;
    assert!(message.contains("1 without a runtime for it"), "charts must be named by the plan: {message}");
    hub.approve_all();
    assert_eq!(hub.running(), 4);
    let mut types: Vec<_> = hub
        .devices
        .documents
        .values()
        .map(|text| {
            let document: Value = serde_json::from_str(text).unwrap();
            document["spec"]["deploymentProfile"]["type"].as_str().unwrap().to_owned()
        })
        .collect();
    types.sort();
    assert_eq!(types, ["compose", "kubernetes", "process", "simulated"]);
    let changed = json!({ "item": { "node": { "site": "plant", "device": "n00000", "updateDomain": "d",
        "totalResources": { "cores": 16, "memory": 64 }, "runtimes": ["compose"] } }, "expectedVersion": 2 });
    let refused = hub.ask(PlansRequest::InventoryApply(request(changed))).unwrap_err();
    assert!(refused.message.contains("relocate them first"), "{}", refused.message);
}
