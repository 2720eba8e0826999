//! Migrations of a plan to another one.

use super::*;

fn next() -> PlanName {
    "next".parse().unwrap()
}

/// A hub whose plan `web` runs two instances, and whose plan `next` has none.
fn hub() -> Hub {
    let mut hub = Hub::with_nodes(&[16; 6]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.ask(plan_request(&json!({ "name": "next" }))).unwrap();
    hub.deploy("r1", 2, "1");
    hub.approve_all();
    assert_eq!(hub.running(), 2);
    hub
}

pub(super) fn migrate_request(extra: &Value) -> PlansRequest {
    let mut value = json!({ "plan": "web", "to": "next", "id": "m1" });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    PlansRequest::PlanMigrate(request(value))
}

/// Another content than that of `web`.
fn other_content() -> Value {
    json!({ "coordinates": { "main": { "version": "2" } } })
}

fn plan<'a>(hub: &'a Hub, name: &PlanName) -> &'a Plan {
    hub.state.plan(name).unwrap()
}

fn newest<'a>(hub: &'a Hub, name: &PlanName) -> &'a PlanRevision {
    plan(hub, name).revisions.last().unwrap()
}

fn approve_first(hub: &mut Hub, name: &PlanName) {
    let (instance, operation) = hub.pending_of(name).remove(0);
    hub.ask(PlansRequest::Approve(Hub::verdict_of(name, &instance, &operation))).unwrap();
    hub.converge();
}

fn cancel(id: &str) -> PlansRequest {
    PlansRequest::PlanRevision(request(json!({ "plan": "next", "id": id, "verb": "cancel" })))
}

/// The sentences of a plan's changes, the newest last.
fn history(hub: &Hub, name: &PlanName) -> Vec<String> {
    let of_plan = |document: &PlansDocument| match document {
        PlansDocument::Plan(plan) if plan.spec.name == *name => Some(plan.change.message.clone()),
        _ => None,
    };
    hub.log.iter().filter_map(of_plan).collect()
}

/// Whether `web` is as it was before the migration.
fn is_unchanged(hub: &Hub) -> bool {
    let web = plan(hub, &plan_name());
    let has_order = hub.instances().iter().all(operations::keeps_revision);
    web.migration.is_none() && web.revisions.len() == 1 && hub.instances().len() == 2 && has_order
}

#[test]
fn a_migration_runs_the_other_plan_before_this_one_stops() {
    let mut hub = hub();
    hub.ask(migrate_request(&json!({}))).unwrap();
    hub.converge();
    assert_eq!(hub.pending_of(&next()).len(), 2);
    approve_first(&mut hub, &next());
    assert_eq!(hub.running(), 2, "no work before every operation is approved");
    let read = PlansRead { state: &hub.state, evidence: &hub.devices, now: hub.now() };
    let query = OperationsQuery { state: vec![OperationState::Approved], ..OperationsQuery::default() };
    let waiting = read.operations(&query, 10).operations.remove(0).operation;
    assert_eq!(waiting.message, "it waits until every operation of the migration is approved");

    approve_first(&mut hub, &next());
    assert_eq!((hub.running(), newest(&hub, &next()).state), (4, RevisionState::Completed));
    let last = newest(&hub, &plan_name());
    assert_eq!((last.id.as_str(), last.instances, last.migrated_to.clone()), ("m1", 0, Some(next())));
    assert_eq!(newest(&hub, &next()).migrated_from, Some(plan_name()));
    assert_eq!(hub.pending_types(), [OperationType::Delete, OperationType::Delete]);

    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (2, 0));
    assert_eq!(hub.revision_state("m1"), RevisionState::Completed);
    let sentences = history(&hub, &plan_name());
    let said = |words: &str| sentences.iter().any(|sentence| sentence == words);
    assert!(said("plan is migrating to next"), "{sentences:?}");
    assert!(said("revision m1 is added: the plan has migrated to next"), "{sentences:?}");
    let sentences = history(&hub, &next());
    assert!(sentences.contains(&"revision m1 is added: plan web migrates to it".to_owned()), "{sentences:?}");
}

#[test]
fn a_migration_that_cannot_be_is_refused_by_name_and_changes_nothing() {
    let mut hub = hub();
    hub.ask(plan_request(&json!({ "name": "busy" }))).unwrap();
    let busy = json!({ "plan": "busy", "id": "b1", "instances": 1, "coordinates": { "main": {} } });
    hub.ask(PlansRequest::PlanDeploy(request(busy))).unwrap();
    hub.ask(plan_request(&json!({ "name": "off" }))).unwrap();
    hub.ask(PlansRequest::PlanState(request(json!({ "plan": "off", "state": "inactive" })))).unwrap();
    for (extra, code, words) in [
        (json!({ "to": "web" }), ErrorCode::BadRequest, "to: 'web' is the plan itself"),
        (json!({ "to": "none" }), ErrorCode::NotFound, "there is no plan none"),
        (json!({ "plan": "none" }), ErrorCode::NotFound, "there is no plan none"),
        (json!({ "to": "busy" }), ErrorCode::Precondition, "revision b1 of plan busy is pending"),
        (json!({ "to": "off" }), ErrorCode::Precondition, "plan off is inactive"),
        (
            json!({ "plan": "next", "to": "web" }),
            ErrorCode::Precondition,
            "has no instance that could migrate",
        ),
        (json!({ "id": "r1" }), ErrorCode::Conflict, "plan web has a revision r1"),
        (json!({ "instances": 0 }), ErrorCode::BadRequest, "instances: is not 1 to 10000"),
        (json!({ "coordinates": { "other": {} } }), ErrorCode::BadRequest, "coordinates: "),
        (json!({ "expectedVersion": 0 }), ErrorCode::Conflict, "has version 3"),
    ] {
        let before = hub.log.len();
        let refused = hub.ask(migrate_request(&extra)).unwrap_err();
        assert_eq!(refused.code, code, "{extra}: {}", refused.message);
        assert!(refused.message.contains(words), "{extra}: {}", refused.message);
        assert_eq!(hub.log.len(), before);
    }
    hub.ask(cancel_of("busy", "b1")).unwrap();
    hub.ask(migrate_request(&json!({}))).unwrap();
    let twice = hub.ask(migrate_request(&json!({ "to": "busy", "id": "m2" }))).unwrap_err();
    let words = "plan web is migrating to plan next: wait, or cancel revision m1 of plan next";
    assert_eq!((twice.code, twice.message.as_str()), (ErrorCode::Precondition, words));
}

fn cancel_of(name: &str, id: &str) -> PlansRequest {
    PlansRequest::PlanRevision(request(json!({ "plan": name, "id": id, "verb": "cancel" })))
}

#[test]
fn neither_plan_of_a_migration_is_changed_or_deleted_meanwhile() {
    let mut hub = hub();
    hub.ask(migrate_request(&json!({}))).unwrap();
    // Before its revision is added, the other plan has nothing but the migration.
    for _ in 0..2 {
        for name in ["web", "next"] {
            let delete = PlansRequest::PlanDelete(request(json!({ "plan": name })));
            let deploy = json!({ "plan": name, "id": "r9", "instances": 0, "coordinates": { "main": {} } });
            let apply =
                json!({ "name": name, "expectedVersion": plan(&hub, &name.parse().unwrap()).version });
            let state = PlansRequest::PlanState(request(json!({ "plan": name, "state": "inactive" })));
            for asked in [delete, state, PlansRequest::PlanDeploy(request(deploy)), plan_request(&apply)] {
                let refused = hub.ask(asked).unwrap_err();
                assert_eq!(refused.code, ErrorCode::Precondition);
                assert!(
                    refused.message.contains("plan web is migrating to plan next"),
                    "{}",
                    refused.message
                );
            }
        }
        hub.converge();
    }
    hub.ask(plan_request(&json!({ "name": "third" }))).unwrap();
    let third = json!({ "plan": "third", "id": "t1", "instances": 1, "coordinates": { "main": {} } });
    hub.ask(PlansRequest::PlanDeploy(request(third))).unwrap();
    hub.approve_all();
}

#[test]
fn a_migration_whose_target_fails_leaves_its_plan_running_and_says_why() {
    let mut hub = hub();
    hub.ask(migrate_request(&other_content())).unwrap();
    hub.converge();
    let failing = super::super::advance::digest(plan(&hub, &next()), &"m1".parse().unwrap(), &[]).unwrap();
    hub.devices.failing.push(failing);
    hub.approve_all();
    assert!(is_unchanged(&hub) && hub.running() == 2);
    assert_eq!(newest(&hub, &next()).state, RevisionState::Failed);
    let said = &plan(&hub, &plan_name()).change.message;
    assert!(said.starts_with("the migration to next has ended, and the plan stays as it was"), "{said}");
    assert!(
        said.contains("revision m1 of plan next is failed: 2 of 2") && said.contains("could not run"),
        "{said}"
    );
    let again = json!({ "id": "m2" });
    assert_eq!(hub.code(migrate_request(&again)), ErrorCode::Precondition, "next has instances of its own");
    let zero = json!({ "plan": "next", "id": "z", "instances": 0, "coordinates": { "main": {} } });
    hub.ask(PlansRequest::PlanDeploy(request(zero))).unwrap();
    hub.converge();
    hub.approve_all();
    hub.ask(migrate_request(&again)).unwrap();
    hub.converge();
    hub.approve_all();
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (2, 0));
}

#[test]
fn a_migration_with_a_refused_operation_begins_none_of_them() {
    let mut hub = hub();
    hub.ask(migrate_request(&json!({}))).unwrap();
    hub.converge();
    approve_first(&mut hub, &next());
    let (instance, operation) = hub.pending_of(&next()).remove(0);
    hub.ask(PlansRequest::Reject(Hub::verdict_of(&next(), &instance, &operation))).unwrap();
    hub.converge();
    assert!(is_unchanged(&hub) && hub.running() == 2);
    assert_eq!(newest(&hub, &next()).state, RevisionState::Failed);
    assert!(hub.devices.documents.len() == 2, "next was never ordered anywhere");
    hub.ask(migrate_request(&json!({ "id": "m2" }))).unwrap();
    hub.converge();
    hub.approve_all();
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (2, 0), "the instances without an order were used");
}

#[test]
fn a_cancelled_migration_leaves_its_plan_as_it_was() {
    let mut hub = hub();
    hub.ask(migrate_request(&json!({}))).unwrap();
    hub.converge();
    hub.ask(cancel("m1")).unwrap();
    hub.converge();
    assert!(is_unchanged(&hub) && hub.running() == 2);
    let said = &plan(&hub, &plan_name()).change.message;
    assert!(said.ends_with("revision m1 of plan next is cancelled"), "{said}");
    hub.ask(migrate_request(&json!({ "id": "m2", "instances": 3 }))).unwrap();
    hub.converge();
    hub.approve_all();
    hub.approve_all();
    assert_eq!((hub.running(), hub.instances().len()), (3, 0));
}

#[test]
fn a_target_that_changed_before_its_revision_ends_the_migration() {
    let mut hub = hub();
    hub.ask(migrate_request(&json!({}))).unwrap();
    // No request can do that; a planner of an older release could.
    let changed = plan(&hub, &next()).clone();
    hub.state.apply(PlansDocument::Plan(Plan { state: PlanState::Inactive, ..changed }));
    hub.converge();
    assert!(is_unchanged(&hub));
    let said = &plan(&hub, &plan_name()).change.message;
    assert!(said.ends_with("plan next is inactive"), "{said}");
}
