//! Tests of one record: its changes and its reports.

use muster_contract::canonical::Digest;
use muster_contract::desired::ProfileType;
use muster_contract::limits::{COMPONENTS_MAX, RETRIES_MAX};
use serde_json::json;

use super::*;
use crate::attempts::CrashLoopRule;

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

fn states(record: &DeploymentRecord) -> Vec<State> {
    record.components.iter().map(|component| component.state).collect()
}

fn installed(entry: DesiredDeployment) -> DeploymentRecord {
    let mut record = DeploymentRecord::new(entry, generation(1));
    for component in ["db", "web"] {
        assert!(record.set(&name(component), State::Installed, None));
    }
    record
}

#[test]
fn every_component_is_there_from_the_first_report_on() {
    let body = DeploymentRecord::new(two("serve", 80), generation(7)).body(Timestamp::UNIX_EPOCH);
    assert_eq!(body.components.len(), 2);
    assert_eq!((body.status.state, body.generation.get()), (State::Pending, 7));
}

#[test]
fn whatever_is_pending_says_why_and_nothing_else_does() {
    let reason = |record: &DeploymentRecord| record.body(Timestamp::UNIX_EPOCH).status.reason;
    let mut record = DeploymentRecord::new(two("serve", 80), generation(1));
    record.reason = Some("waits for its turn".to_owned());
    assert_eq!(reason(&record).unwrap(), "waits for its turn");
    record.set(&name("db"), State::Installing, None);
    assert_eq!(reason(&record), None, "it is at work");
    record.set(&name("db"), State::Installed, None);
    assert_eq!(reason(&record).unwrap(), "component web is next; 1 of 2 are installed");
    record.set(&name("web"), State::Failed, Some(StatusError::new(code::EXITED, "web", "exit code 3")));
    assert_eq!(reason(&record), None, "an error says it");
    record.retry();
    assert!(reason(&record).unwrap().starts_with("component web is next"));
    record.set(&name("web"), State::Installed, None);
    assert_eq!(reason(&record), None);
}

#[test]
fn only_components_that_changed_are_touched_by_an_update() {
    let table = [
        ("nothing", two("serve", 80), [State::Installed, State::Installed]),
        ("a command", two("serve2", 80), [State::Installed, State::Pending]),
        ("a parameter", two("serve", 81), [State::Installed, State::Pending]),
    ];
    for (changed, entry, expected) in table {
        let next = installed(two("serve", 80)).retarget(entry, generation(2));
        assert_eq!(states(&next), expected, "{changed} changed");
        assert_eq!(next.generation.get(), 2);
    }
    let mut leaving = installed(two("serve", 80));
    leaving.start_removal(generation(2));
    let back = leaving.retarget(two("serve", 80), generation(3));
    assert_eq!(states(&back), [State::Pending, State::Pending], "what was being taken away is not installed");
}

#[test]
fn a_parameter_reaches_the_components_it_aims_at_and_no_other() {
    let device = "plant7/press-4".parse().unwrap();
    let units = DeploymentRecord::new(two("serve", 80), generation(1)).units(&device).unwrap();
    assert_eq!(units[0].environment, BTreeMap::new());
    assert_eq!(units[1].environment, BTreeMap::from([("PORT".to_owned(), "80".to_owned())]));
}

#[test]
fn an_unchanged_state_is_not_reported() {
    let mut record = installed(two("serve", 80));
    assert!(!record.set(&name("web"), State::Installed, None));
    assert!(!record.set(&name("stranger"), State::Failed, None));
    let error = StatusError::new(code::EXITED, "web", "exit code 3");
    assert!(record.set(&name("web"), State::Failed, Some(error.clone())));
    assert!(!record.set(&name("web"), State::Failed, Some(error)));
    assert_eq!(record.state(), State::Failed);
}

#[test]
fn a_removal_ends_when_every_component_is_gone() {
    let mut record = installed(two("serve", 80));
    record.start_removal(generation(2));
    assert_eq!(record.state(), State::Removing);
    record.set(&name("db"), State::Removed, None);
    assert!(!record.is_removed());
    record.set(&name("web"), State::Removed, None);
    assert!(record.is_removed());
}

#[test]
fn only_what_wants_to_is_tried_again() {
    let stubborn = json!([{ "name": "web", "properties": { "command": "x", "restart": "never" } }]);
    let error = || Some(StatusError::new(code::EXITED, "web", "exit code 3"));
    let mut never = DeploymentRecord::new(entry(&stubborn, &json!({})), generation(1));
    never.set(&name("web"), State::Failed, error());
    assert!(!never.may_retry());
    never.start_removal(generation(2));
    never.set(&name("web"), State::Failed, error());
    assert!(never.may_retry(), "a removal always is");
    let mut always = DeploymentRecord::new(two("x", 1), generation(1));
    always.set(&name("web"), State::Failed, error());
    assert!(always.may_retry());
    always.error = Some(StatusError::new(code::UNSUPPORTED_PROFILE, "web", "no"));
    assert!(!always.may_retry(), "what cannot run here will not run the next time either");
}

#[test]
fn the_largest_report_fits_on_the_bus() {
    for (count, texts_stay) in [(COMPONENTS_MAX / 4, true), (COMPONENTS_MAX, false)] {
        let body = largest_body(count);
        assert!(body.stored_bytes() <= BODY_BYTES_MAX, "{count} components: {} bytes", body.stored_bytes());
        let error = body.components[0].error.as_ref().unwrap();
        let declared = if texts_stay { "bytes in all)" } else { CUT };
        assert!(error.message.ends_with(declared), "a cut is declared: {error:?}");
        assert_eq!((error.code.as_str(), body.retries.len()), (code::EXITED, count.min(RETRIES_MAX)));
        let error = body.status.error.unwrap();
        assert!(error.message.ends_with("bytes in all)"), "of the deployment as a whole: {error:?}");
    }
}

/// A deployment whose components have the longest names and have each failed with the longest message.
fn largest_body(components: usize) -> StatusBody {
    let components: Vec<_> = (0..components)
        .map(|at| json!({ "name": format!("{at:03}{}", "x".repeat(60)), "properties": { "command": "x" } }))
        .collect();
    let mut record = DeploymentRecord::new(entry(&json!(components), &json!({})), generation(1));
    record.error = Some(StatusError::new(code::EXITED, "web", "\u{1}".repeat(4_000)));
    for component in record.components.clone() {
        // A control character takes six bytes in JSON.
        let error = StatusError::new(code::EXITED, component.name.as_str(), "\u{1}".repeat(4_000));
        record.attempts.record_failure(
            Some(&component.name),
            &error,
            CrashLoopRule::default(),
            Timestamp::UNIX_EPOCH,
        );
        record.set(&component.name, State::Failed, Some(error));
    }
    record.body(Timestamp::UNIX_EPOCH)
}

#[test]
fn a_record_is_read_as_it_was_stored() {
    let mut record = installed(two("serve", 80));
    record.reason = Some("because".to_owned());
    let again: DeploymentRecord = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(again, record);
}

#[test]
fn a_stopped_deployment_is_pending_and_says_why_from_the_first_report_on() {
    let told = |record: &DeploymentRecord| {
        let status = record.body(Timestamp::UNIX_EPOCH).status;
        (status.state, status.reason.unwrap_or_default())
    };
    let stopped = DesiredDeployment { stopped: true, ..two("serve", 80) };
    let mut record = DeploymentRecord::stopping(stopped, generation(2));
    assert_eq!(told(&record), (State::Removing, "stopping on request".to_owned()));
    let error = StatusError::new(code::STOP_FAILED, "web", "it holds on");
    record.set(&name("web"), State::Failed, Some(error));
    assert!(record.may_retry(), "also of a component with restart: never");
    record.retry();
    assert_eq!(record.component(&name("web")), Some(State::Removing));
    record.set(&name("web"), State::Pending, None);
    record.set(&name("db"), State::Pending, None);
    assert_eq!(told(&record), (State::Pending, "stopped on request".to_owned()));
    assert!(!record.is_removed(), "it stays on the device");
}

#[test]
fn only_another_restart_counter_makes_another_version_of_every_component() {
    let device = "plant7/press-4".parse().unwrap();
    let versions = |stopped, restart| {
        let entry = DesiredDeployment { stopped, restart, ..two("serve", 80) };
        let units = DeploymentRecord::new(entry, generation(1)).units(&device).unwrap();
        units.iter().map(Unit::digest_prefix).collect::<Vec<_>>()
    };
    let (plain, first) = (versions(false, 0), versions(false, 1));
    assert_eq!(versions(true, 0), plain, "stopped and started again it is the same version");
    assert!(plain.iter().zip(&first).all(|(plain, first)| plain != first));
    assert_ne!(first, versions(false, 2));
    let restarted = DesiredDeployment { restart: 1, ..two("serve", 80) };
    assert_eq!(states(&installed(two("serve", 80)).retarget(restarted, generation(2))), [State::Pending; 2]);
}

#[test]
fn a_namespace_and_labels_make_another_version_of_packages_alone() {
    let device = "plant7/press-4".parse().unwrap();
    let unit = |profile_type, has_metadata: bool| {
        let mut entry = two("serve", 80);
        entry.profile.profile_type = profile_type;
        let (namespace, labels) =
            (Some("margo-apps".parse().unwrap()), [("line".into(), "press".into())].into());
        if has_metadata {
            (entry.namespace, entry.labels) = (namespace, labels);
        }
        DeploymentRecord::new(entry, generation(1)).units(&device).unwrap().remove(0)
    };
    let (with, without) = (unit(ProfileType::Compose, true), unit(ProfileType::Compose, false));
    assert_ne!(with.digest, without.digest);
    assert_eq!((with.namespace.unwrap().as_str(), with.labels["line"].as_str()), ("margo-apps", "press"));
    let (with, without) = (unit(ProfileType::Process, true), unit(ProfileType::Process, false));
    assert_eq!(with, without, "a process has no use for them");
}

#[test]
fn a_process_and_a_compose_package_have_a_stop_timeout_of_their_own() {
    let of_web =
        |entry: DesiredDeployment| DeploymentRecord::new(entry, generation(1)).stop_timeouts()[&name("web")];
    assert_eq!(of_web(two("serve", 80)), Duration::from_secs(3));
    let compose = |stop_timeout: serde_json::Value| {
        let mut entry = two("serve", 80);
        entry.profile.profile_type = ProfileType::Compose;
        let properties = json!({ "composeFile": "services: {}", "stopTimeout": stop_timeout });
        entry.profile.components[1].properties = serde_json::from_value(properties).unwrap();
        of_web(entry)
    };
    assert_eq!(compose(json!("45s")), Duration::from_secs(45));
    assert_eq!(compose(json!(null)), STOP_TIMEOUT_DEFAULT);
}
