//! Each request about a plan in each state of its lifecycle, and each verdict in each state of an operation: accepted, or the code of
//! the refusal.

use super::*;

/// Requests by the states of plan `web`. A cell is `ok`, `pre` (precondition), `conf` (conflict), `bad` (badRequest) or `none` (notFound).
///
/// The newest revision is r1, after r0. Its operations wait for approval in `waits`, and run on silent nodes in `runs`; a person has
/// stopped it in `stopped`. In `ending`, `ended` and `end-stopped` it has 0 instances.
///
/// EMCO's instantiate and update are `deploy`, and its terminate is `deploy-0`. `make` names no version of the plan, and `modify` does.
const REQUESTS: &str = "
                created pending waits runs paused completed failed stopped cancelled ending ended end-stopped migrating inactive deleted
make            conf    conf    conf  conf conf   conf      conf   conf    conf      conf   conf  conf        conf      conf     ok
modify          ok      pre     pre   pre  pre    pre       pre    pre     pre       pre    ok    pre         pre       pre      none
deploy          ok      pre     pre   pre  pre    ok        ok     ok      ok        pre    ok    ok          pre       pre      none
deploy-0        ok      ok      ok    ok   ok     ok        ok     ok      ok        ok     ok    ok          pre       pre      none
deploy-r1       ok      pre     pre   pre  pre    conf      conf   conf    conf      pre    conf  conf        pre       pre      none
deploy-bad      bad     pre     pre   pre  pre    bad       bad    bad     bad       pre    bad   bad         pre       pre      none
approve         none    ok      ok    ok   ok     pre       pre    pre     pre       ok     pre   pre         pre       pre      none
rollback        none    pre     pre   pre  pre    ok        ok     ok      ok        pre    ok    ok          pre       pre      none
migrate         pre     pre     pre   pre  pre    ok        ok     ok      ok        pre    pre   pre         pre       pre      none
pause           none    pre     ok    ok   pre    pre       pre    pre     pre       ok     pre   pre         pre       pre      none
resume          none    pre     pre   pre  ok     pre       pre    pre     pre       pre    pre   pre         pre       pre      none
cancel          none    ok      ok    ok   ok     pre       pre    pre     pre       ok     pre   pre         pre       pre      none
stop            none    pre     ok    ok   ok     pre       pre    pre     pre       ok     pre   pre         pre       pre      none
deactivate      ok      ok      ok    ok   ok     ok        ok     ok      ok        ok     ok    ok          pre       pre      none
activate        pre     pre     pre   pre  pre    pre       pre    pre     pre       pre    pre   pre         pre       ok       none
delete          ok      pre     pre   pre  pre    pre       pre    pre     pre       pre    ok    pre         pre       pre      none
instance-create pre     pre     pre   pre  pre    ok        pre    pre     pre       pre    pre   pre         pre       pre      none
CREATE          none    pre     pre   pre  pre    ok        pre    pre     pre       pre    none  pre         pre       pre      none
UPDATE          none    pre     pre   pre  pre    ok        pre    pre     pre       pre    none  pre         pre       pre      none
UPDATE-to-r0    none    pre     pre   pre  pre    ok        ok     ok      ok        pre    none  pre         pre       pre      none
DELETE          none    pre     pre   pre  pre    ok        ok     ok      ok        pre    none  pre         pre       ok       none
STOP            none    ok      ok    ok   ok     ok        ok     ok      ok        pre    none  pre         ok        ok       none
RESTART         none    ok      ok    ok   ok     ok        ok     ok      ok        pre    none  pre         ok        ok       none
RELOCATE        none    ok      ok    ok   ok     ok        ok     ok      ok        pre    none  pre         ok        ok       none
";

/// Verdicts by the states of a CREATE, and of a RELOCATE that runs (`relocating`).
const VERDICTS: &str = "
          preparing waits approved running relocating succeeded failed rejected expired cancelled
approve   pre       ok    pre      pre     pre        pre       pre    pre      pre     pre
reject    pre       ok    pre      pre     pre        pre       pre    pre      pre     pre
cancel    ok        ok    ok       pre     ok         pre       pre    pre      pre     pre
complete  pre       pre   pre      ok      pre        pre       pre    pre      pre     pre
fail      pre       pre   pre      ok      ok         pre       pre    pre      pre     pre
";

#[test]
fn each_request_in_each_state_is_legal_or_refused_as_the_table_says() {
    check(REQUESTS, hub_in, request_of);
}

#[test]
fn each_verdict_in_each_state_of_an_operation_is_as_the_table_says() {
    check(VERDICTS, hub_with_operation, verdict);
}

/// Asks each request of a table in each of its states.
fn check(table: &str, hub_in: fn(&str) -> Hub, request_of: fn(&Hub, &str) -> PlansRequest) {
    let mut rows = table.trim().lines().map(|line| line.split_whitespace());
    let hubs: Vec<_> = rows.next().unwrap().map(|state| (state, hub_in(state))).collect();
    for mut row in rows {
        let name = row.next().unwrap();
        let cells: Vec<_> = row.collect();
        let found: Vec<_> = hubs.iter().map(|(_, hub)| answer(hub, request_of(hub, name))).collect();
        let states: Vec<_> = hubs.iter().map(|(state, _)| *state).collect();
        assert_eq!(found, cells, "{name} in {states:?}");
    }
}

/// `ok`, or the code of the refusal. A refusal appends nothing, and an accepted request leaves a hub that comes to rest.
fn answer(hub: &Hub, asked: PlansRequest) -> &'static str {
    let mut hub = hub.clone();
    let before = hub.log.len();
    let answered = hub.ask(asked);
    assert_eq!(hub.log.len() - before, usize::from(answered.is_ok()), "{answered:?}");
    hub.devices.silent.clear();
    hub.converge();
    match answered.map_err(|refused| refused.code) {
        Ok(_) => "ok",
        Err(ErrorCode::Precondition) => "pre",
        Err(ErrorCode::Conflict) => "conf",
        Err(ErrorCode::BadRequest) => "bad",
        Err(ErrorCode::NotFound) => "none",
        Err(code) => panic!("{code:?}"),
    }
}

fn of_revision(verb: &str) -> PlansRequest {
    PlansRequest::PlanRevision(request(json!({ "plan": "web", "id": "r1", "verb": verb })))
}

fn plan_state(state: &str) -> PlansRequest {
    PlansRequest::PlanState(request(json!({ "plan": "web", "state": state })))
}

fn silence(hub: &mut Hub) {
    hub.devices.silent = (0..6).map(node_key).collect();
}

/// A hub whose plan `web` has a state.
fn hub_in(state: &str) -> Hub {
    let hub = made_in(state);
    let newest = hub.state.plan(&plan_name()).and_then(|plan| plan.revisions.last());
    let expected = match state {
        "created" | "deleted" => None,
        "pending" => Some(RevisionState::Pending),
        "waits" | "runs" | "ending" => Some(RevisionState::InProgress),
        "paused" => Some(RevisionState::Paused),
        "failed" | "stopped" | "end-stopped" => Some(RevisionState::Failed),
        "cancelled" => Some(RevisionState::Cancelled),
        _ => Some(RevisionState::Completed),
    };
    assert_eq!(newest.map(|newest| newest.state), expected, "{state}");
    hub
}

fn made_in(state: &str) -> Hub {
    let mut hub = Hub::with_nodes(&[16; 6]);
    hub.ask(plan_request(&json!({}))).unwrap();
    hub.ask(plan_request(&json!({ "name": "next" }))).unwrap();
    if state == "created" {
        return hub;
    }
    hub.deploy("r0", 1, "0");
    hub.approve_all();
    let is_end = ["ending", "ended", "end-stopped", "deleted"].contains(&state);
    hub.ask(deploy_request("r1", if is_end { 0 } else { 2 }, "1")).unwrap();
    if state == "pending" {
        return hub;
    }
    hub.converge();
    match state {
        "waits" => {}
        "paused" => drop(hub.ask(of_revision("pause")).unwrap()),
        "cancelled" => drop(hub.ask(of_revision("cancel")).unwrap()),
        "runs" | "ending" | "stopped" | "end-stopped" => {
            silence(&mut hub);
            hub.approve_all();
            if state.ends_with("stopped") {
                hub.ask(of_revision("stop")).unwrap();
            }
        }
        "failed" => {
            hub.devices.failing.push(hub.digest_of("r1"));
            hub.approve_all();
        }
        _ => converge_all(&mut hub, state),
    }
    hub.converge();
    hub
}

/// Completes the newest revision, and brings the plan into a state that follows.
fn converge_all(hub: &mut Hub, state: &str) {
    hub.approve_all();
    match state {
        "completed" => {
            // The only instance that takes a CREATE is one without an order.
            hub.ask(PlansRequest::InstanceCreate(request(json!({ "plan": "web" })))).unwrap();
            hub.converge();
            let (instance, create) = hub.pending().remove(0);
            hub.ask(PlansRequest::Reject(Hub::verdict(&instance, &create))).unwrap();
        }
        "inactive" => drop(hub.ask(plan_state("inactive")).unwrap()),
        "migrating" => drop(hub.ask(migrate::migrate_request(&json!({}))).unwrap()),
        "deleted" => drop(hub.ask(PlansRequest::PlanDelete(request(json!({ "plan": "web" })))).unwrap()),
        other => assert_eq!(other, "ended"),
    }
}

/// A request by its name in the table.
fn request_of(hub: &Hub, name: &str) -> PlansRequest {
    let version = hub.state.plans[&plan_name()].version;
    match name {
        "make" => plan_request(&json!({})),
        "modify" => plan_request(&json!({ "expectedVersion": version, "namespace": "other" })),
        "deploy" => deploy_request("r2", 1, "2"),
        "deploy-0" => deploy_request("r2", 0, "2"),
        "deploy-r1" => deploy_request("r1", 1, "2"),
        "deploy-bad" => deploy_request("r2", 20_000, "2"),
        "approve" => PlansRequest::PlanApprove(request(json!({ "plan": "web", "id": "r1" }))),
        "rollback" => PlansRequest::PlanRollback(request(json!({ "plan": "web", "id": "r2", "to": "r0" }))),
        "migrate" => migrate::migrate_request(&json!({ "id": "m2" })),
        "activate" => plan_state("active"),
        "deactivate" => plan_state("inactive"),
        "delete" => PlansRequest::PlanDelete(request(json!({ "plan": "web" }))),
        "instance-create" => PlansRequest::InstanceCreate(request(json!({ "plan": "web" }))),
        verb @ ("pause" | "resume" | "cancel" | "stop") => of_revision(verb),
        kind => {
            let mut value = json!({ "plan": "web", "instance": target(hub, kind), "type": kind });
            if let Some(kind) = kind.strip_suffix("-to-r0") {
                (value["type"], value["revision"]) = (json!(kind), json!("r0"));
            }
            PlansRequest::Operation(request(value))
        }
    }
}

/// The instance that an operation is requested on: the oldest one; for a CREATE one without an order, if there is one.
fn target(hub: &Hub, kind: &str) -> InstanceName {
    let mut instances = hub.instances();
    instances.sort_by_key(|one| (kind == "CREATE" && operations::keeps_revision(one), one.created_at));
    instances.first().map_or_else(|| "web-none".parse().unwrap(), |one| one.name.clone())
}

/// A hub whose newest operation has a state.
fn hub_with_operation(state: &str) -> Hub {
    let hub = made_with_operation(state);
    let newest = hub.instances()[0].operations.last().unwrap().state;
    let expected = match state {
        "waits" => "PENDING_APPROVAL".to_owned(),
        "relocating" => "RUNNING".to_owned(),
        state => state.to_uppercase(),
    };
    assert_eq!(newest.as_str(), expected);
    hub
}

fn made_with_operation(state: &str) -> Hub {
    let mut hub = Hub::with_nodes(if state == "preparing" { &[] } else { &[16, 16] });
    hub.ask(plan_request(&json!({ "approvalExpiresAfter": "1m" }))).unwrap();
    hub.deploy("r1", 1, "1");
    match state {
        "preparing" | "waits" => {}
        "approved" => {
            hub.ask(of_revision("pause")).unwrap();
            hub.approve_all();
        }
        "running" => {
            silence(&mut hub);
            hub.approve_all();
        }
        "relocating" => {
            hub.approve_all();
            let relocate = json!({ "plan": "web", "instance": hub.instances()[0].name, "type": "RELOCATE" });
            hub.ask(PlansRequest::Operation(request(relocate))).unwrap();
            silence(&mut hub);
            hub.converge();
            hub.approve_all();
        }
        "succeeded" => hub.approve_all(),
        "failed" => {
            hub.devices.failing.push(hub.digest_of("r1"));
            hub.approve_all();
        }
        "rejected" => drop(hub.ask(verdict(&hub, "reject")).unwrap()),
        "cancelled" => drop(hub.ask(verdict(&hub, "cancel")).unwrap()),
        _ => hub.second += 60,
    }
    hub.converge();
    hub
}

/// The verdict of a person about the newest operation.
fn verdict(hub: &Hub, verb: &str) -> PlansRequest {
    let instance = hub.instances().remove(0);
    let of = Hub::verdict(&instance.name, instance.operations.last().unwrap());
    let of = OperationVerdictRequest { reason: Some("seen on site".to_owned()), ..of };
    match verb {
        "approve" => PlansRequest::Approve(of),
        "reject" => PlansRequest::Reject(of),
        "cancel" => PlansRequest::Cancel(of),
        "complete" => PlansRequest::Complete(of),
        _ => PlansRequest::Fail(of),
    }
}
