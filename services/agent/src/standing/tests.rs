//! Claims about one standing: how it changes and what it says.

use muster_contract::limits::{COMPONENTS_MAX, MESSAGE_BYTES_MAX};
use serde_json::json;

use super::*;
use crate::outbox::RANGES_PER_ROW_MAX;

fn generation(number: u64) -> Generation {
    Generation::new(number).unwrap()
}

fn entry(components: &serde_json::Value, parameters: &serde_json::Value) -> DesiredDeployment {
    let json = json!({
        "id": "web", "name": "Web", "applicationId": "com-acme-web", "targetGeneration": 1,
        "digest": Digest::of_bytes(b""), "profile": { "type": "process", "components": components },
        "parameters": parameters,
    });
    serde_json::from_value(json).unwrap()
}

fn two(command: &str, port: u16) -> DesiredDeployment {
    let components = json!([
        { "name": "db", "properties": { "command": "sleep", "args": ["1"] } },
        { "name": "web", "properties": { "command": command, "stopTimeout": "3s" } },
    ]);
    let port = json!({ "value": port, "targets": [{ "pointer": "PORT", "components": ["web"] }] });
    entry(&components, &json!({ "port": port }))
}

fn name(text: &str) -> ComponentName {
    text.parse().unwrap()
}

fn states(standing: &Standing) -> Vec<State> {
    standing.components.iter().map(|component| component.state).collect()
}

fn installed(entry: DesiredDeployment) -> Standing {
    let mut standing = Standing::new(entry, generation(1));
    for component in ["db", "web"] {
        assert!(standing.set(&name(component), State::Installed, None));
    }
    standing
}

#[test]
fn every_component_is_there_from_the_first_report_on() {
    let body = Standing::new(two("serve", 80), generation(7)).body(Timestamp::UNIX_EPOCH);
    assert_eq!(body.components.len(), 2);
    assert_eq!((body.status.state, body.generation.get()), (State::Pending, 7));
}

#[test]
fn whatever_is_pending_says_why_and_nothing_else_does() {
    let reason = |standing: &Standing| standing.body(Timestamp::UNIX_EPOCH).status.reason;
    let mut standing = Standing::new(two("serve", 80), generation(1));
    standing.reason = Some("waits for its turn".to_owned());
    assert_eq!(reason(&standing).unwrap(), "waits for its turn");
    standing.set(&name("db"), State::Installing, None);
    assert_eq!(reason(&standing), None, "it is at work");
    standing.set(&name("db"), State::Installed, None);
    assert_eq!(reason(&standing).unwrap(), "component web is next; 1 of 2 are installed");
    standing.set(&name("web"), State::Failed, Some(StatusError::new(code::EXITED, "web", "exit code 3")));
    assert_eq!(reason(&standing), None, "an error says it");
    standing.retry();
    assert!(reason(&standing).unwrap().starts_with("component web is next"));
    standing.set(&name("web"), State::Installed, None);
    assert_eq!(reason(&standing), None);
}

#[test]
fn only_components_that_changed_are_touched_by_an_update() {
    let table = [
        ("nothing", two("serve", 80), [State::Installed, State::Installed]),
        ("a command", two("serve2", 80), [State::Installed, State::Pending]),
        ("a parameter", two("serve", 81), [State::Installed, State::Pending]),
    ];
    for (changed, entry, expected) in table {
        let next = installed(two("serve", 80)).towards(entry, generation(2));
        assert_eq!(states(&next), expected, "{changed} changed");
        assert_eq!(next.generation.get(), 2);
    }
    let mut leaving = installed(two("serve", 80));
    leaving.leave(generation(2));
    let back = leaving.towards(two("serve", 80), generation(3));
    assert_eq!(states(&back), [State::Pending, State::Pending], "what was being taken away is not installed");
}

#[test]
fn a_parameter_reaches_the_components_it_aims_at_and_no_other() {
    let device = "plant7/press-4".parse().unwrap();
    let units = Standing::new(two("serve", 80), generation(1)).units(&device).unwrap();
    assert_eq!(units[0].environment, BTreeMap::new());
    assert_eq!(units[1].environment, BTreeMap::from([("PORT".to_owned(), "80".to_owned())]));
}

#[test]
fn what_says_nothing_new_is_no_news() {
    let mut standing = installed(two("serve", 80));
    assert!(!standing.set(&name("web"), State::Installed, None));
    assert!(!standing.set(&name("stranger"), State::Failed, None));
    let error = StatusError::new(code::EXITED, "web", "exit code 3");
    assert!(standing.set(&name("web"), State::Failed, Some(error.clone())));
    assert!(!standing.set(&name("web"), State::Failed, Some(error)));
    assert_eq!(standing.state(), State::Failed);
}

#[test]
fn a_removal_ends_when_every_component_is_gone() {
    let mut standing = installed(two("serve", 80));
    standing.leave(generation(2));
    assert_eq!(standing.state(), State::Removing);
    standing.set(&name("db"), State::Removed, None);
    assert!(!standing.is_gone());
    standing.set(&name("web"), State::Removed, None);
    assert!(standing.is_gone());
}

#[test]
fn only_what_wants_to_is_tried_again() {
    let stubborn = json!([{ "name": "web", "properties": { "command": "x", "restart": "never" } }]);
    let error = || Some(StatusError::new(code::EXITED, "web", "exit code 3"));
    let mut never = Standing::new(entry(&stubborn, &json!({})), generation(1));
    never.set(&name("web"), State::Failed, error());
    assert!(!never.may_retry());
    never.leave(generation(2));
    never.set(&name("web"), State::Failed, error());
    assert!(never.may_retry(), "a removal always is");
    let mut always = Standing::new(two("x", 1), generation(1));
    always.set(&name("web"), State::Failed, error());
    assert!(always.may_retry());
    always.error = Some(StatusError::new(code::UNSUPPORTED_PROFILE, "web", "no"));
    assert!(!always.may_retry(), "what cannot run here will not run the next time either");
}

#[test]
fn the_largest_report_fits_on_the_bus() {
    let components: Vec<_> = (0..COMPONENTS_MAX)
        .map(|at| json!({ "name": format!("component-{at}-{}", "x".repeat(40)), "properties": { "command": "x" } }))
        .collect();
    let mut standing = Standing::new(entry(&json!(components), &json!({})), generation(1));
    for component in standing.components.clone() {
        // A control character takes six bytes in JSON.
        let error = StatusError::new(code::EXITED, component.name.as_str(), "\u{1}".repeat(4_000));
        standing.set(&component.name, State::Failed, Some(error));
    }
    let body = standing.body(Timestamp::UNIX_EPOCH);
    assert!(body.stored_bytes() <= REPORT_BYTES_MAX, "{} bytes", body.stored_bytes());
    assert!(body.stored_bytes() + RANGES_PER_ROW_MAX < MESSAGE_BYTES_MAX);
    let message = &body.components[0].error.as_ref().unwrap().message;
    assert!(message.ends_with("bytes in all)"), "a cut is declared: {message:?}");
}

#[test]
fn a_standing_is_read_as_it_was_kept() {
    let mut standing = installed(two("serve", 80));
    standing.reason = Some("because".to_owned());
    let again: Standing = serde_json::from_slice(&serde_json::to_vec(&standing).unwrap()).unwrap();
    assert_eq!(again, standing);
}
