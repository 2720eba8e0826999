//! Approvers log in to a gateway of a secured hub: they approve and reject waves and operations, and change nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use muster_bus::Bus;
use muster_identity::Role;
use muster_tests::rollouts::PLANNER;
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::{Answer, send};
use super::login::{LoginStage, ask, decisions, with_services};

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_approves_and_rejects_waves_and_decides_nothing_else() {
    let (stage, _repository) = with_services().await;
    let addr = stage.addr;
    let mut approver = stage.browser(Role::Approver).await;
    let look = async || approver.clone().get(addr, "/rollouts/web").await;
    let page = until("the rollout waits", look, |page| page.body.contains("Approve wave ours")).await.body;
    assert!(page.contains("approver, approver") && page.contains("Reject wave ours"), "{page}");
    for verb in ["pause", "stop", "rollback", "retry"] {
        assert!(!page.contains(&format!("action=\"/rollouts/web/{verb}\"")), "{verb}: {page}");
        let refused = approver.post(addr, &format!("/rollouts/web/{verb}"), "").await;
        assert!(refused.status == 403 && refused.body.contains("role operator"), "{verb}: {refused:?}");
    }
    let approved = approver.post(addr, "/rollouts/web/approve", "wave=ours&reason=seen").await;
    assert_eq!(approved.status, 303, "{approved:?}");

    let token = stage.token(&stage.hub.creds(Role::Approver)).unwrap();
    for (method, path) in [
        ("POST", "/api/v1/rollouts/web/stop"),
        ("POST", "/api/v1/rollouts/web/next"),
        ("GET", "/api/v1/quarantine"),
    ] {
        let refused = ask(addr, method, path, &token).await;
        assert!(refused.status == 403 && refused.body.contains("role operator"), "{path}: {refused:?}");
    }
    let rejected = ask(addr, "POST", "/api/v1/rollouts/web/reject", &token).await;
    assert_eq!((rejected.status, &rejected.json()[0]["verb"]), (200, &json!("stop")), "{rejected:?}");
    let recorded = decisions(&stage, &token).await;
    let verbs: Vec<_> = recorded.iter().map(|decision| &decision["verb"]).collect();
    assert_eq!(verbs, ["approve", "stop"], "{recorded:?}");
    for decision in &recorded {
        let by = &decision["requestedBy"];
        assert_eq!((&by["role"], &by["onBehalfOf"]["role"]), (&json!("gateway"), &json!("approver")), "{by}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wave_begins_once_two_different_persons_have_approved_it() {
    let (mut stage, _repository) = with_services().await;
    start_planner(&mut stage).await;
    let addr = stage.addr;
    let [operator, approver] =
        [Role::Operator, Role::Approver].map(|role| stage.token(&stage.hub.creds(role)).unwrap());
    let count = async || ask(addr, "GET", "/api/v1/rollouts/web", &operator).await.body;
    until("the rollout waits", count, |shown| shown.contains(r#""given":0,"needed":2"#)).await;
    let verbs = async || {
        let all = decisions(&stage, &operator).await;
        all.iter().map(|decision| decision["verb"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(ask(addr, "POST", "/api/v1/rollouts/web/approve", &operator).await.status, 200);
    }
    until("one person counts once", count, |shown| shown.contains(r#""given":1,"needed":2"#)).await;
    assert_eq!(verbs().await, ["approve"]);
    assert_eq!(ask(addr, "POST", "/api/v1/rollouts/web/approve", &approver).await.status, 200);
    until("the wave begins", verbs, |verbs| *verbs == ["approve", "approve", "begin"]).await;
}

/// Makes a change with a token.
pub(crate) async fn change(addr: SocketAddr, token: &str, line: &str, body: Value) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let (body, head) = (body.to_string(), format!("{method} /api/v1{path} HTTP/1.1\r\nHost: {addr}\r\n"));
    let length = body.len();
    let request = format!(
        "{head}Authorization: Bearer {token}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    send(addr, &request).await.unwrap()
}

/// Starts a planner, and waits until it has made a cluster.
pub(crate) async fn start_planner(stage: &mut LoginStage) {
    let scheduler = stage.hub.creds(Role::Scheduler).display().to_string();
    stage.spawn(Role::Planner, PLANNER, &["--plans-creds", &scheduler]);
    let (addr, operator) = (stage.addr, stage.token(&stage.hub.creds(Role::Operator)).unwrap());
    let begun = async || change(addr, &operator, "PUT /clusters/north", json!({})).await.status;
    until("the planner makes a cluster", begun, |status| matches!(status, 201 | 409)).await;
}

/// The changes that make a node, and a plan with an operation that waits for its approval.
pub(crate) fn changes() -> [(&'static str, Value); 6] {
    let state = |state: &str| json!({ "nodeState": state, "cluster": "north" });
    let (node, plan) = (
        json!({ "updateDomain": "a", "totalResources": { "cores": 4, "memory": 8 } }),
        json!({ "namespace": "demo", "serviceName": "web", "profile": "simulated",
            "applications": [{ "payloadName": "main", "resources": { "cores": 1, "memory": 1 } }] }),
    );
    [
        ("POST /clusters/north/activate", json!({})),
        ("PUT /nodes/plant7/press-4", node),
        ("POST /nodes/plant7/press-4/state", state("allocating")),
        ("POST /nodes/plant7/press-4/state", state("allocated")),
        ("PUT /plans/web", plan),
        ("POST /plans/web/revisions", json!({ "id": "r1", "instances": 1, "coordinates": { "main": {} } })),
    ]
}

/// The operation that waits for its approval.
pub(crate) async fn waiting(stage: &LoginStage) -> Value {
    let bus = Bus::connect(stage.hub.config(Role::Viewer), &CancellationToken::new()).await.unwrap();
    let question = json!({ "state": ["PENDING_APPROVAL"] }).to_string();
    let look = async || {
        let subject = "muster.planner.operation-list";
        let answer = bus.request(subject, question.clone().into(), Duration::from_secs(2)).await;
        answer.map_or(Value::Null, |answer| {
            serde_json::from_slice::<Value>(&answer).unwrap()["operations"][0].clone()
        })
    };
    until("an operation waits for approval", look, |operation| !operation.is_null()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_approves_an_operation_at_a_gateway_and_cancels_none() {
    let mut stage = LoginStage::start().await;
    start_planner(&mut stage).await;
    let (addr, operator) = (stage.addr, stage.token(&stage.hub.creds(Role::Operator)).unwrap());
    let approver = stage.token(&stage.hub.creds(Role::Approver)).unwrap();
    for (line, body) in changes() {
        let refused = change(addr, &approver, line, body.clone()).await;
        assert!(refused.status == 403 && refused.body.contains("role operator"), "{line}: {refused:?}");
        let made = change(addr, &operator, line, body).await;
        assert!(matches!(made.status, 200..=202), "{line}: {made:?}");
    }
    let found = waiting(&stage).await;
    let (instance, id) = (found["instance"].as_str().unwrap(), found["operation"]["id"].as_str().unwrap());
    let operation = format!("POST /plans/web/instances/{instance}/operations/{id}");
    let verdict = async |verb: &str| change(addr, &approver, &format!("{operation}/{verb}"), json!({})).await;
    assert_eq!(verdict("cancel").await.status, 403);
    let approved = verdict("approve").await;
    let by = &approved.json()["operations"][0]["approval"]["by"];
    assert_eq!(approved.status, 202, "{approved:?}");
    assert_eq!((&by["role"], &by["onBehalfOf"]["role"]), (&json!("gateway"), &json!("approver")), "{by}");
    let late = verdict("reject").await;
    assert_eq!(late.status, 409, "the planner refuses it by the state, not by the role: {late:?}");
}
