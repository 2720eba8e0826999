//! Times of operations: not before a moment, and the grace of a stop and of a removal.

use super::*;

/// A hub with one running instance of a process that gets 30 s to end.
fn hub() -> Hub {
    hub_with(&json!({ "command": "serve", "stopTimeout": "30s" }))
}

fn hub_with(coordinates: &Value) -> Hub {
    let mut hub = Hub::with_nodes(&[16; 2]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy_coordinates("r1", 1, coordinates);
    hub.approve_all();
    assert_eq!(hub.running(), 1);
    hub
}

fn operation(hub: &Hub, kind: OperationType, not_before: Option<Timestamp>) -> PlansRequest {
    let value =
        json!({ "plan": "web", "instance": hub.instances()[0].name, "type": kind, "notBefore": not_before });
    PlansRequest::Operation(request(value))
}

#[test]
fn no_type_of_operation_begins_before_its_time() {
    use OperationType::{Delete, Relocate, Restart, Stop, Update};
    for kind in [Update, Delete, Stop, Restart, Relocate] {
        let mut hub = hub();
        let at = hub.second + 1_000;
        let time = second(at);
        hub.ask(operation(&hub, kind, Some(time))).unwrap();
        hub.converge();
        let (orders, documents) = (hub.devices.desired.clone(), hub.devices.documents.clone());
        hub.approve_all();
        while hub.second < at - 1 {
            hub.round();
        }
        let newest = hub.instances()[0].operations.last().unwrap().clone();
        assert_eq!((newest.state, newest.not_before), (OperationState::Approved, Some(time)), "{kind:?}");
        assert_eq!((&hub.devices.desired, &hub.devices.documents), (&orders, &documents), "{kind:?}");
        hub.converge();
        let plan = plan_name();
        let deleted = hub.state.deleted_instances(&plan).cloned();
        let all: Vec<_> = hub.instances().into_iter().chain(deleted).collect();
        let ended = all[0].operations.last().unwrap();
        assert_eq!((ended.operation_type, ended.state), (kind, OperationState::Succeeded));
        let begun = ended.history.iter().find(|step| step.state == OperationState::Running).unwrap();
        assert!(begun.at >= time, "{kind:?} began at {}", begun.at);
    }
}

#[test]
fn the_orders_to_run_and_to_stop_have_the_grace_of_the_coordinates() {
    let grace = |hub: &Hub| {
        let document: Value = serde_json::from_str(hub.devices.documents.values().next().unwrap()).unwrap();
        let properties = &document["spec"]["deploymentProfile"]["components"][0]["properties"];
        let is_stop = document["metadata"]["annotations"]["io.muster.stopped"] == "true";
        (is_stop, properties["stopTimeout"].clone())
    };
    for runtime in [json!({ "command": "serve" }), json!({ "image": "nginx:1" })] {
        let mut coordinates = runtime;
        coordinates["stopTimeout"] = json!("30s");
        let mut hub = hub_with(&coordinates);
        // The agent removes an instance by the order that it had last, so a DELETE needs no grace of its own.
        assert_eq!(grace(&hub), (false, json!("30s")), "{coordinates}");
        hub.ask(operation(&hub, OperationType::Stop, None)).unwrap();
        hub.approve_all();
        assert_eq!(grace(&hub), (true, json!("30s")), "{coordinates}");
    }
}
