//! Failures of nodes that may be tried again before they fail an operation.

use super::*;

/// A hub whose plan has these retries, with a CREATE that fails on a device with these attempts.
fn hub(retries: &Value, tried: &[Value]) -> Hub {
    let mut hub = Hub::with_nodes(&[16, 16]);
    hub.ask(plan_request(&json!({ "retries": retries }))).unwrap();
    hub.deploy("r1", 1, "1");
    hub.devices.failing.push(hub.digest_of("r1"));
    hub.devices.retries = tried.iter().map(|one| request(one.clone())).collect();
    hub.approve_all();
    hub
}

fn attempt(number: u32, code: &str) -> Value {
    json!({ "attempt": number, "since": second(0), "lastError": { "code": code, "message": "m", "at": second(1) } })
}

fn state(hub: &Hub) -> OperationState {
    hub.instances()[0].operations[0].state
}

#[test]
fn an_operation_fails_once_the_attempts_of_its_node_are_used_up() {
    let (any, of_class) = (json!({ "max": 2 }), json!({ "max": 2, "classes": ["pull"] }));
    let (running, failed) = (OperationState::Running, OperationState::Failed);
    for (retries, tried, wanted) in [
        (Value::Null, vec![attempt(1, "pull")], failed),
        (any.clone(), vec![attempt(1, "pull")], running),
        (any.clone(), vec![attempt(2, "exit")], running),
        (any.clone(), vec![attempt(3, "pull")], failed),
        (any.clone(), vec![], failed),
        (any, vec![attempt(1, "pull"), attempt(3, "exit")], failed),
        (of_class.clone(), vec![attempt(2, "pull")], running),
        (of_class, vec![attempt(1, "exit")], failed),
    ] {
        assert_eq!(state(&hub(&retries, &tried)), wanted, "{retries} {tried:?}");
    }
}

#[test]
fn an_operation_says_which_attempt_it_waits_for_until_its_report() {
    let mut waiting = hub(&json!({ "max": 2 }), &[attempt(2, "pull")]);
    let read = PlansRead { state: &waiting.state, evidence: &waiting.devices, now: waiting.now() };
    let operation = read.operations(&OperationsQuery::default(), 1).operations.remove(0).operation;
    assert!(operation.message.contains("tries again: attempt 2"), "{}", operation.message);
    let placed = read.instances(&InstancesQuery::default(), 1).instances.remove(0).placements.remove(0);
    assert_eq!(placed.state, RuntimeState::Starting, "it has not failed yet, and does not run");

    let mut recovered = waiting.clone();
    recovered.devices.failing.clear();
    recovered.converge();
    assert_eq!((state(&recovered), recovered.running()), (OperationState::Succeeded, 1));
    waiting.devices.retries = vec![request(attempt(3, "pull"))];
    waiting.converge();
    assert_eq!(
        (state(&waiting), waiting.revision_state("r1")),
        (OperationState::Failed, RevisionState::Failed)
    );
}

#[test]
fn retries_of_a_plan_have_no_backoff_of_their_own() {
    let mut hub = Hub::with_nodes(&[16]);
    let backoff = json!({ "retries": { "max": 2, "backoff": { "min": "1s", "max": "2s" } } });
    let refused = hub.ask(plan_request(&backoff)).unwrap_err();
    assert_eq!(refused.field.as_deref(), Some("retries.backoff"));
    let empty = json!({ "retries": { "max": 2, "classes": [""] } });
    assert_eq!(hub.ask(plan_request(&empty)).unwrap_err().field.as_deref(), Some("retries.classes"));
}
