//! Revisions side by side: a canary of k of n instances, and blue-green.

use super::*;

fn canary_request(id: &str, instances: u32, canary: u32, version: &str) -> PlansRequest {
    PlansRequest::PlanDeploy(request(
        json!({ "plan": "web", "id": id, "instances": instances, "canary": canary,
        "coordinates": { "main": { "version": version } } }),
    ))
}

/// A revision for one of so many instances.
pub(super) fn one_canary(id: &str, instances: u32, version: &str) -> PlansRequest {
    canary_request(id, instances, 1, version)
}

/// A hub with eight nodes and four instances of r1 that run.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16; 8]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.deploy("r1", 4, "1");
    hub.approve_all();
    assert_eq!(hub.running(), 4);
    hub
}

/// Asks for a canary and approves its operations; returns their types.
fn canary(hub: &mut Hub, id: &str, instances: u32, canary: u32) -> Vec<OperationType> {
    hub.ask(canary_request(id, instances, canary, "2")).unwrap();
    hub.converge();
    let types = hub.pending_types();
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state(id)), (instances as usize, RevisionState::Completed));
    types
}

/// The number of instances whose node has the order of each revision.
fn ordered(hub: &Hub) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for instance in hub.instances() {
        let revision = instance.active().unwrap().revision.clone().unwrap();
        *counts.entry(revision.to_string()).or_insert(0) += 1;
    }
    counts
}

fn counts<const N: usize>(of: [(&str, usize); N]) -> BTreeMap<String, usize> {
    of.into_iter().map(|(id, count)| (id.to_owned(), count)).collect()
}

/// The nodes of the instances.
fn nodes(hub: &Hub) -> BTreeSet<DeviceKey> {
    hub.instances().iter().map(|instance| instance.active().unwrap().node.clone()).collect()
}

#[test]
fn a_canary_changes_k_of_n_instances_and_grows_to_all_of_them() {
    use OperationType::Update;
    let mut hub = hub();
    assert_eq!(canary(&mut hub, "r2", 4, 1), [Update]);
    assert_eq!(ordered(&hub), counts([("r1", 3), ("r2", 1)]));
    let first: Vec<_> =
        hub.instances().into_iter().filter(|instance| instance.revision.as_str() == "r2").collect();
    assert_eq!(canary(&mut hub, "r3", 4, 3), [Update; 3]);
    assert_eq!(
        ordered(&hub),
        counts([("r1", 1), ("r3", 3)]),
        "the one that has the coordinates is among the three"
    );
    let grown = hub.instances().into_iter().find(|instance| instance.name == first[0].name).unwrap();
    assert_eq!(grown.revision.as_str(), "r3");
    hub.deploy("r4", 4, "2");
    hub.approve_all();
    assert_eq!(ordered(&hub), counts([("r4", 4)]));
}

#[test]
fn a_canary_is_rolled_back_and_no_revision_of_several_is_repeated() {
    let mut hub = hub();
    canary(&mut hub, "r2", 4, 2);
    let back = |id: &str, to: &str| {
        PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": id, "to": to })))
    };
    hub.ask(back("r3", "r1")).unwrap();
    hub.converge();
    hub.approve_all();
    assert_eq!((ordered(&hub), hub.running()), (counts([("r3", 4)]), 4));
    assert_eq!(hub.code(back("r4", "r2")), ErrorCode::Precondition);
}

#[test]
fn a_switch_keeps_the_new_instances_and_a_switch_back_the_old_ones() {
    use OperationType::{Create, Delete, Update};
    let mut hub = hub();
    let blue = nodes(&hub);
    assert_eq!(canary(&mut hub, "r2", 8, 4), [Create; 4]);
    assert_eq!(ordered(&hub), counts([("r1", 4), ("r2", 4)]));
    let green: BTreeSet<_> = nodes(&hub).difference(&blue).cloned().collect();
    let back = PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": "r3", "to": "r1" })));
    for (next, kept) in [(deploy_request("r3", 4, "2"), &green), (back, &blue)] {
        let mut hub = hub.clone();
        hub.ask(next).unwrap();
        hub.converge();
        let pending = hub.pending_types();
        let count = |of| pending.iter().filter(|one| **one == of).count();
        assert_eq!((count(Delete), count(Update), pending.len()), (4, 4, 8));
        hub.approve_all();
        assert_eq!((&nodes(&hub), hub.running()), (kept, 4), "what runs as the revision says is kept");
    }
}

#[test]
fn a_canary_that_the_plan_has_no_instances_for_is_refused() {
    let mut hub = hub();
    for (instances, canary, words) in [
        (4, 0, "canary: is 0 of 4 instances: name at least 1"),
        (0, 1, "canary: is 1 of 0 instances"),
        (4, 5, "canary: is 5 of 4 instances"),
        (9, 1, "instances: is 9, of which 1 get the coordinates, and the plan has 4 others"),
    ] {
        let refusal = hub.ask(canary_request("r2", instances, canary, "2")).unwrap_err();
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

#[test]
fn an_instance_that_runs_nothing_keeps_no_revision_beside_a_canary() {
    let mut hub = hub();
    hub.ask(canary_request("r2", 5, 1, "2")).unwrap();
    hub.converge();
    let (instance, operation) = hub.pending().remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &operation))).unwrap();
    hub.converge();
    assert_eq!((hub.running(), hub.revision_state("r2")), (4, RevisionState::Failed));
    assert_eq!(
        hub.code(canary_request("r3", 6, 1, "2")),
        ErrorCode::BadRequest,
        "only four could keep theirs"
    );
    assert_eq!(
        canary(&mut hub, "r3", 5, 1),
        [OperationType::Create],
        "the instance that runs nothing gets it"
    );
    assert_eq!(ordered(&hub), counts([("r1", 4), ("r3", 1)]));
}

#[test]
fn a_canary_of_all_instances_is_a_revision_like_any_other() {
    let mut hub = hub();
    canary(&mut hub, "r2", 4, 4);
    canary(&mut hub, "r3", 4, 1);
    hub.ask(PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": "r4", "to": "r2" })))).unwrap();
}

#[test]
fn a_canary_that_fails_leaves_the_others_as_they_are() {
    let mut hub = hub();
    hub.ask(canary_request("r2", 4, 1, "2")).unwrap();
    hub.converge();
    hub.devices.failing.push(hub.digest_of("r2"));
    hub.approve_all();
    assert_eq!((hub.running(), hub.revision_state("r2")), (3, RevisionState::Failed));
    assert_eq!(ordered(&hub), counts([("r1", 3), ("r2", 1)]));
}
