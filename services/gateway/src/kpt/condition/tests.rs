//! Tests of the rules: each status of a member, each property of a group, revisions, components, and deployments that leave.

use serde_json::{Value, json};

use super::super::group::ResourceGroups;
use super::*;
use crate::margo::manifest::tests::{desired, entry};

/// A target of two components, from generation 3 on, of revision 1.0.0.
fn target() -> DesiredState {
    let mut web =
        entry("web", "compose", &json!({"repository": "oci://registry.example/web", "revision": "1.0.0"}));
    let mut db = web.profile.components[0].clone();
    web.profile.components[0].name = "web".parse().unwrap();
    db.name = "db".parse().unwrap();
    web.profile.components.push(db);
    web.target_generation = Generation::new(3).unwrap();
    desired(5, vec![web])
}

fn resource(kind: &str, name: &str) -> Value {
    json!({"group": "apps", "kind": kind, "namespace": "line", "name": name})
}

fn with(mut resource: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        resource[name] = value.clone();
    }
    resource
}

/// A group of these resources, each with its fields of a status; none leaves it out.
fn group(resources: &[(&str, Option<Value>)]) -> Value {
    let listed: Vec<_> = resources.iter().map(|(name, _)| resource("Deployment", name)).collect();
    let has =
        |(name, status): &(&str, Option<Value>)| Some(with(resource("Deployment", name), status.as_ref()?));
    let statuses: Vec<_> = resources.iter().filter_map(has).collect();
    json!({
        "apiVersion": "kpt.dev/v1alpha1", "kind": "ResourceGroup",
        "metadata": {"name": "web", "namespace": "line", "generation": 2},
        "spec": {"resources": listed, "descriptor": {"revision": "1.0.0"}},
        "status": {"observedGeneration": 2, "resourceStatuses": statuses, "conditions": []},
    })
}

fn of(status: &str) -> Option<Value> {
    Some(json!({"status": status}))
}

fn made_of(groups: &[Value], desired: &DesiredState) -> Result<StatusManifest, Problem> {
    let read = |group: &Value| ResourceGroups::read(group.to_string().as_bytes()).unwrap().groups.remove(0);
    let groups: Vec<_> = groups.iter().map(read).collect();
    let id = "web".parse().unwrap();
    let made = status(&id, &groups.iter().collect::<Vec<_>>(), desired)?;
    made.check(&id).map(|()| made)
}

fn made(group: Value) -> StatusManifest {
    made_of(&[group], &target()).unwrap()
}

/// The state of the whole, and of web and db.
fn states(made: &StatusManifest) -> (State, State, State) {
    (made.status.state, made.components[0].state, made.components[1].state)
}

#[test]
fn each_status_of_a_member_has_its_state_and_no_other_succeeds() {
    for (status, state) in [
        (json!({"status": "Current"}), State::Installed),
        (json!({"status": "Current", "strategy": "Apply", "actuation": "Succeeded"}), State::Installed),
        (json!({"status": "InProgress"}), State::Installing),
        (json!({"status": "Unknown"}), State::Installing),
        (json!({"status": "Novel"}), State::Installing),
        (json!({"status": "Failed"}), State::Failed),
        (json!({"status": "Terminating"}), State::Removing),
        (json!({"status": "NotFound"}), State::Pending),
        (json!({"status": ""}), State::Pending),
        (json!({"status": "Current", "actuation": "Failed"}), State::Failed),
        (json!({"status": "Current", "actuation": "Pending"}), State::Pending),
        (json!({"status": "Current", "actuation": "Skipped"}), State::Pending),
        (json!({"status": "Current", "strategy": "Delete"}), State::Installing),
    ] {
        let made = made(group(&[("shared", Some(status.clone()))]));
        assert_eq!(states(&made), (state, state, state), "{status}");
        assert_eq!(
            made.status.reason.is_some(),
            !matches!(state, State::Installed | State::Failed),
            "{status}"
        );
    }
    let made = made(group(&[("shared", None)]));
    assert_eq!(made.status.state, State::Pending, "no status yet");
}

#[test]
fn a_failed_member_is_named_with_its_reason() {
    let condition =
        json!([{"type": "Ready", "status": "False", "reason": "BackOff", "message": "image not found"}]);
    let made = made(group(&[
        ("web", Some(json!({"status": "Failed", "conditions": condition}))),
        ("db", of("Current")),
    ]));
    assert_eq!(states(&made), (State::Failed, State::Failed, State::Installed));
    let error = made.components[0].error.clone().unwrap();
    assert_eq!(
        (error.code.as_str(), error.source.as_str(), error.message.as_str()),
        ("BackOff", "web", "Deployment line/web is Failed: image not found")
    );
    assert_eq!(made.components[1].error, None);
}

#[test]
fn a_component_has_the_members_of_its_name_and_the_shared_ones() {
    let shown = |all: &[(&str, Option<Value>)]| states(&made(group(all)));
    let (installed, installing) = (State::Installed, State::Installing);
    assert_eq!(
        shown(&[("web", of("Current")), ("db", of("InProgress"))]),
        (installing, installed, installing)
    );
    let shared = [("web", of("Current")), ("db", of("Current")), ("config", of("InProgress"))];
    assert_eq!(shown(&shared), (installing, installing, installing));
    // Nothing is named like db, so everything is.
    assert_eq!(shown(&[("web", of("Current")), ("x", of("Current"))]), (installed, installed, installed));
}

#[test]
fn a_group_that_is_not_observed_reconciling_or_empty_is_no_success() {
    let state = |change: &dyn Fn(&mut Value)| {
        let mut group = group(&[("shared", of("Current"))]);
        change(&mut group);
        made(group).status.state
    };
    assert_eq!(state(&|_| {}), State::Installed);
    assert_eq!(state(&|group| group["status"]["observedGeneration"] = json!(1)), State::Installing);
    assert_eq!(
        state(&|group| group["metadata"]["deletionTimestamp"] = json!("2026-11-27T08:00:00Z")),
        State::Removing
    );
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
    assert_eq!(state(&|group| group["status"]["conditions"] = condition("Reconciling")), State::Installing);
    assert_eq!(state(&|group| group["status"]["conditions"] = condition("Stalled")), State::Failed);
    assert_eq!(state(&|group| group["status"] = Value::Null), State::Pending);
    assert_eq!(made(self::group(&[])).status.state, State::Pending, "an empty group");
}

#[test]
fn a_failure_counts_although_the_group_was_changed_since() {
    let mut stale = group(&[("shared", of("Failed"))]);
    stale["status"]["observedGeneration"] = json!(1);
    assert_eq!(made(stale).status.state, State::Failed);
}

#[test]
fn only_the_revision_of_the_target_or_a_generation_says_the_content() {
    let generation = |change: &dyn Fn(&mut Value)| {
        let mut group = group(&[("shared", of("Current"))]);
        change(&mut group);
        let made = made_of(&[group], &target())?;
        Ok::<_, Problem>((made.adopted_manifest_version.get(), made.status.state))
    };
    let revision =
        |text: &'static str| move |group: &mut Value| group["spec"]["descriptor"]["revision"] = json!(text);
    assert_eq!(generation(&|_| {}).unwrap(), (3, State::Installed));
    // The commit of the desired state is "a".
    assert_eq!(generation(&revision("a")).unwrap(), (3, State::Installed));
    assert_eq!(
        generation(&revision("0.9.0")).unwrap(),
        (3, State::Pending),
        "another revision is no success"
    );
    let none = generation(&|group| group["spec"] = json!({"resources": []})).unwrap_err();
    assert_eq!((none.status, none.errors[0].field.as_str()), (422, "metadata.annotations"));
    let annotated = |text: &'static str| {
        move |group: &mut Value| group["metadata"]["annotations"] = json!({GENERATION: text})
    };
    assert_eq!(generation(&annotated("2")).unwrap(), (2, State::Installed), "older than the target");
    for bad in ["0", "x", "6"] {
        let field = generation(&annotated(bad)).unwrap_err().errors[0].field.clone();
        assert_eq!(field, format!("metadata.annotations.{GENERATION}"), "{bad}");
    }
}

#[test]
fn groups_of_components_make_one_deployment_together() {
    let labelled = |component: &str, status: &str| {
        let mut group = group(&[("x", of(status))]);
        group["metadata"]["labels"] = json!({"io.muster.component": component});
        group
    };
    let both = made_of(&[labelled("web", "Current"), labelled("db", "Failed")], &target()).unwrap();
    assert_eq!(states(&both), (State::Failed, State::Installed, State::Failed));
    let one = made_of(&[labelled("web", "Current")], &target()).unwrap();
    assert_eq!(states(&one), (State::Pending, State::Installed, State::Pending), "the other has no group");
}

#[test]
fn subgroups_count_as_members() {
    let mut body = group(&[]);
    body["spec"]["subgroups"] = json!([{"namespace": "line", "name": "part"}]);
    let status = json!({"group": "kpt.dev", "kind": "ResourceGroup", "namespace": "line", "name": "part", "status": "Failed"});
    body["status"]["subgroupStatuses"] = json!([status]);
    let made = made(body);
    assert_eq!(made.status.state, State::Failed);
    assert!(made.components[0].error.clone().unwrap().message.starts_with("ResourceGroup line/part"));
}

#[test]
fn a_deployment_that_leaves_is_removed_when_its_resources_are() {
    let state = |groups: &[Value]| made_of(groups, &desired(6, vec![])).unwrap().status.state;
    let deleted = |mut group: Value| {
        group["metadata"]["deletionTimestamp"] = json!("2026-11-27T08:00:00Z");
        group
    };
    assert_eq!(state(&[group(&[("a", of("Current"))])]), State::Installed);
    assert_eq!(state(&[deleted(group(&[("a", of("Current"))]))]), State::Removing);
    assert_eq!(state(&[deleted(group(&[]))]), State::Removing);
    assert_eq!(state(&[group(&[("a", of("NotFound"))])]), State::Removed);
    assert_eq!(state(&[]), State::Removed);
    let absent = made_of(&[], &target()).unwrap();
    assert_eq!(absent.status.state, State::Pending, "a target without a group");
}

#[test]
fn the_longest_report_fits_into_a_message_of_a_device() {
    let mut desired = target();
    let component = desired.deployments[0].profile.components[0].clone();
    let named = |at: usize| {
        let mut component = component.clone();
        component.name = format!("{at:0>63}").parse().unwrap();
        component
    };
    desired.deployments[0].profile.components = (0..256).map(named).collect();
    let text = "x".repeat(100_000);
    let condition = json!([{"type": "T", "status": "True", "reason": text, "message": text}]);
    let failed = json!({"status": "Failed", "conditions": condition});
    let made = made_of(&[group(&[("shared", Some(failed))])], &desired).unwrap();
    let bytes = serde_json::to_vec(&made).unwrap().len();
    assert!(bytes < muster_contract::limits::REPORT_BYTES_MAX, "{bytes}");
}
