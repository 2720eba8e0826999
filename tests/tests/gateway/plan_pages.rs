//! Plans on the pages: what waits for a decision, the decision of an approver, and the changes of an operator by forms.

use std::net::SocketAddr;

use muster_identity::Role;
use muster_tests::system::System;
use muster_tests::wait::until;
use serde_json::{Value, json};

use super::client::{get, post};
use super::login::with_services;
use super::login_approver::{change, changes, start_planner, waiting};
use super::planning::{done, plan, planned};
use super::served;

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_finds_an_operation_and_approves_it_by_its_form() {
    let (mut stage, _repository) = with_services().await;
    start_planner(&mut stage).await;
    let (addr, operator) = (stage.addr, stage.token(&stage.hub.creds(Role::Operator)).unwrap());
    for (line, body) in changes() {
        let made = change(addr, &operator, line, body).await;
        assert!(matches!(made.status, 200..=202), "{line}: {made:?}");
    }
    let found = waiting(&stage).await;
    let (instance, id) = (found["instance"].as_str().unwrap(), found["operation"]["id"].as_str().unwrap());
    let operation = format!("/plans/web/instances/{instance}/operations/{id}");
    let (approve, cancel) =
        (format!("action=\"{operation}/approve\""), format!("action=\"{operation}/cancel\""));

    let mut approver = stage.browser(Role::Approver).await;
    let first = async || approver.clone().get(addr, "/").await.body;
    let wave = "Approve or reject wave ours of web";
    let page = until("the first screen shows what waits", first, |page| {
        page.contains(&approve) && page.contains(wave)
    })
    .await;
    assert!(page.contains("Waits for a decision") && !page.contains("No planner runs."), "{page}");
    let page = approver.get(addr, "/plans/web").await;
    assert!(page.status == 200 && page.body.contains(&approve), "{page:?}");
    assert!(!page.body.contains(&cancel) && !page.body.contains("/plans/web/deactivate"), "{page:?}");
    for path in [format!("{operation}/cancel"), "/plans/web/deactivate".to_owned()] {
        let refused = approver.post(addr, &path, "").await;
        assert!(refused.status == 403 && refused.body.contains("role operator"), "{path}: {refused:?}");
    }

    let approved = approver.post(addr, &format!("{operation}/approve"), "").await;
    assert_eq!((approved.status, approved.header("location")), (303, Some("/plans/web")), "{approved:?}");
    let first = async || approver.clone().get(addr, "/").await.body;
    until("the operation waits no more", first, |page| !page.contains(&approve) && page.contains(wave)).await;
    let page = approver.get(addr, "/plans/web").await.body;
    assert!(!page.contains(&approve) && page.contains("approved by approver at "), "{page}");
    assert!(page.contains("CREATE is approved, by approver"), "the history names the person: {page}");
    let again = approver.post(addr, &format!("{operation}/approve"), "").await;
    assert!(again.status == 409 && again.body.contains("waits for no approval"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_without_a_planner_says_so_and_raises_no_alarm() {
    let (_system, addr) = served().await;
    for path in ["/", "/plans"] {
        let page = get(addr, path).await.unwrap();
        assert!(page.status == 200 && page.body.contains("No planner runs."), "{path}: {page:?}");
        assert!(!page.body.contains("Operations that wait are not known"), "{path}: {page:?}");
    }
    assert_eq!(get(addr, "/plans/web").await.unwrap().status, 503);
}

/// Posts a form of the page of the plan `web`, which leads back to the page.
async fn ask(addr: SocketAddr, change: &str, form: &str) {
    let answer = post(addr, &format!("/plans/web/{change}"), form).await.unwrap();
    assert_eq!((answer.status, answer.header("location")), (303, Some("/plans/web")), "{change}: {answer:?}");
}

async fn page(addr: SocketAddr) -> String {
    get(addr, "/plans/web").await.unwrap().body
}

/// Deploys the plan `web`, and waits until the deployment has a state.
async fn deploy(system: &System, addr: SocketAddr, id: &str, instances: u32, state: &str) {
    let deployment = json!({ "id": id, "instances": instances, "coordinates": { "main": {} } });
    done(addr, "POST /plans/web/revisions", deployment, 202).await;
    revision(system, addr, id, state).await;
}

/// Waits until a deployment of the plan `web` has a state.
async fn revision(system: &System, addr: SocketAddr, id: &str, state: &str) -> Value {
    let reached = async || {
        let answer = get(addr, "/api/v1/plans/web").await.map_err(|error| error.to_string())?;
        let revisions = answer.json()["plan"]["revisions"].as_array().cloned().unwrap_or_default();
        let found = revisions.into_iter().find(|one| one["id"] == id && one["state"] == state);
        found.ok_or(answer.body)
    };
    system.eventually(&format!("deployment {id} is {state}"), reached).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_a_plan_and_its_deployments_by_forms() {
    let (system, addr) = planned().await;
    done(addr, "PUT /plans/web", plan(1), 201).await;
    deploy(&system, addr, "r1", 0, "completed").await;
    deploy(&system, addr, "r2", 0, "completed").await;
    let shown = page(addr).await;
    assert_eq!(shown.matches("action=\"/plans/web/rollback\"").count(), 1, "to r1 alone: {shown}");
    let (_, rest) = shown.split_once("name=\"id\" value=\"").unwrap();
    let back = rest.split('"').next().unwrap().to_owned();
    ask(addr, "rollback", &format!("to=r1&id={back}")).await;
    let added = revision(&system, addr, &back, "completed").await;
    assert_eq!(added["rollbackTo"], "r1", "{added}");
    let twice = post(addr, "/plans/web/rollback", &format!("to=r1&id={back}")).await.unwrap();
    assert_eq!(twice.status, 409, "a form that is sent twice adds one deployment: {twice:?}");

    // No node has room, so the deployment stays in progress.
    deploy(&system, addr, "r3", 1, "inProgress").await;
    for (verb, next) in [("pause", "resume"), ("resume", "pause")] {
        assert!(page(addr).await.contains(&format!("action=\"/plans/web/revisions/r3/{verb}\"")));
        ask(addr, &format!("revisions/r3/{verb}"), "").await;
        assert!(page(addr).await.contains(&format!("action=\"/plans/web/revisions/r3/{next}\"")));
    }
    let instances = async || {
        let list = get(addr, "/api/v1/instances?plan=web").await.map_err(|error| error.to_string())?;
        let name = list.json()["instances"][0]["instance"]["name"].as_str().map(str::to_owned);
        name.ok_or(list.body)
    };
    let instance = system.eventually("the plan has an instance", instances).await;
    let stopped = post(addr, &format!("/plans/web/instances/{instance}/stop"), "").await.unwrap();
    assert!(stopped.status == 409 && stopped.body.contains("runs on no node"), "{stopped:?}");
    ask(addr, "revisions/r3/cancel", "").await;
    revision(&system, addr, "r3", "cancelled").await;
    deploy(&system, addr, "r4", 1, "inProgress").await;
    assert!(page(addr).await.contains("action=\"/plans/web/revisions/r4/stop\""));
    ask(addr, "revisions/r4/stop", "").await;
    revision(&system, addr, "r4", "failed").await;

    ask(addr, "deactivate", "").await;
    let shown = page(addr).await;
    assert!(
        shown.contains("action=\"/plans/web/activate\"") && shown.contains("revision r4 is stopped"),
        "{shown}"
    );
    assert!(get(addr, "/plans").await.unwrap().body.contains("inactive"));
    ask(addr, "activate", "").await;
    assert_eq!(get(addr, "/plans/nosuch").await.unwrap().status, 404);
}
