//! Requests of a person to the planner, in a whole system.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_contract::subjects;
use serde_json::{Value, json};

use crate::system::System;

const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Asks the planner; the answer, also a refusal.
pub async fn ask(system: &System, verb: &str, request: &Value) -> Value {
    let subject = format!("{}.{verb}", subjects::PLANNER_PREFIX);
    let payload = serde_json::to_vec(request).unwrap();
    let asked = async || {
        let answer = system.bus.request(&subject, payload.clone().into(), ANSWER_WITHIN).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        if answer["error"]["code"] == "notReady" { Err(answer.to_string()) } else { Ok(answer) }
    };
    system.eventually(&format!("{verb} is answered"), asked).await
}

/// Asks the planner for a change, which it must not refuse.
pub async fn change(system: &System, verb: &str, request: Value) -> Value {
    let answer = ask(system, verb, &request).await;
    assert!(answer["error"].is_null(), "{verb} {request}: {answer}");
    answer
}

/// Waits until so many operations wait for approval.
pub async fn pending(system: &System, types: &[&str]) -> Vec<Value> {
    let found = async || {
        let answer = ask(system, "operation-list", &json!({ "state": ["PENDING_APPROVAL"] })).await;
        let found = answer["operations"].as_array().cloned().unwrap_or_default();
        let mut words: Vec<_> = found.iter().map(|one| one["operation"]["type"].as_str().unwrap()).collect();
        words.sort_unstable();
        if words == types { Ok(found) } else { Err(answer.to_string()) }
    };
    system.eventually(&format!("{types:?} wait for approval"), found).await
}

/// The request that approves or rejects an operation of a list.
pub fn verdict(operation: &Value) -> Value {
    json!({ "plan": operation["plan"], "instance": operation["instance"], "operation": operation["operation"]["id"] })
}

/// Approves so many operations, once they wait for it.
pub async fn approve(system: &System, types: &[&str]) {
    for operation in pending(system, types).await {
        change(system, "operation-approve", verdict(&operation)).await;
    }
}

/// Waits until a revision has a state; the plan's answer.
pub async fn revision(system: &System, id: &str, state: &str) -> Value {
    let reached = async || {
        let answer = ask(system, "plan-get", &json!({ "plan": "web" })).await;
        let revisions = answer["plan"]["revisions"].as_array().cloned().unwrap_or_default();
        let is_reached = revisions.iter().any(|one| one["id"] == id && one["state"] == state);
        if is_reached { Ok(answer) } else { Err(answer.to_string()) }
    };
    system.eventually(&format!("revision {id} is {state}"), reached).await
}
