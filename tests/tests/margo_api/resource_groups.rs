//! kpt's ResourceGroups that a cluster without an agent pushes: their effect on the fleet's views, how long they are fresh, what is
//! refused, and gateways that die.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::cut::{Cut, LinkProxy};
use crate::fleet::{DEVICE, Fleet, WEB, is_complete, standing, status, status_path};
use crate::kills::{DYING, facts, version};

const PUSH: &str = "/ingest/v1/resourcegroup";
/// Publishes of one group: assign the number, send the report, confirm the number, read the record as the newest.
const STEPS: usize = 4;

/// A group of a database and a web server, as kpt's controller writes it.
pub(crate) fn group(deployment: &str, revision: &str, [db, web]: [&str; 2]) -> Value {
    let resource =
        |name: &str| json!({"group": "apps", "kind": "Deployment", "namespace": "line", "name": name});
    let status = |name: &str, status: &str| {
        let condition =
            json!({"type": "Ready", "status": "False", "reason": "BackOff", "message": "no such image"});
        json!({
            "group": "apps", "kind": "Deployment", "namespace": "line", "name": name, "status": status,
            "strategy": "Apply", "actuation": "Succeeded", "conditions": if status == "Failed" { json!([condition]) } else { json!([]) },
        })
    };
    json!({
        "apiVersion": "kpt.dev/v1alpha1", "kind": "ResourceGroup",
        "metadata": {"name": deployment, "namespace": "line", "generation": 1, "uid": "unknown to Muster"},
        "spec": {"descriptor": {"type": "kpt", "revision": revision}, "resources": [resource("db"), resource("web")]},
        "status": {"observedGeneration": 1, "resourceStatuses": [status("db", db), status("web", web)]},
    })
}

async fn deployed() -> (Fleet, Client) {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    version(&fleet, &client).await;
    (fleet, client)
}

async fn push(client: &Client, body: &Value) -> Answer {
    client.send("POST", PUSH, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_group_is_seen_with_its_fidelity() {
    let (fleet, client) = deployed().await;
    let answer = push(&client, &group(WEB, "1.0.0", ["Current", "InProgress"])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let reports = answer.json()["reports"].clone();
    assert_eq!(
        (&reports[0]["state"], &reports[0]["deployment"]),
        (&json!("installing"), &json!(WEB)),
        "{reports}"
    );
    fleet.state(DEVICE, WEB, "installing").await;
    assert_eq!(push(&client, &group(WEB, "1.0.0", ["Current", "Current"])).await.status, 200);
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    let line = standing(&shown, WEB);
    assert_eq!(
        (&line["standing"], &line["report"]["fidelity"]),
        (&json!("installed"), &json!("snapshot")),
        "{line}"
    );
    let is_fresh = |shown: &Value| shown["device"]["freshness"] == "fresh";
    fleet.device(DEVICE, "the device is fresh", is_fresh).await;
    let text = fleet.muster(&["device", DEVICE]).await;
    assert!(text.contains("snapshot by push"), "{text}");
    let answer: Value =
        serde_json::from_str(&fleet.muster(&["status", WEB, "--format", "json", "--output", "all"]).await)
            .unwrap();
    assert_eq!(answer["targets"][0]["report"]["fidelity"], "snapshot", "{answer}");
    assert_eq!(push(&client, &group(WEB, "1.0.0", ["Current", "Failed"])).await.status, 200);
    let shown = fleet.state(DEVICE, WEB, "failed").await;
    assert!(
        shown.to_string().contains("BackOff in web: Deployment line/web is Failed: no such image"),
        "{shown}"
    );
    // The same group again is no second report.
    assert_eq!(push(&client, &group(WEB, "1.0.0", ["Current", "Failed"])).await.status, 200);
    let three = |shown: &Value| is_complete(shown, 3) && shown["device"]["head"] == 3;
    fleet.device(DEVICE, "there are three reports", three).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_fresh_for_its_period_and_polls_do_not_prolong_it() {
    let (fleet, client) = deployed().await;
    // Longer than the lease of the test's hub.
    let period = Duration::from_secs(6);
    let path = format!("{PUSH}?period={}s", period.as_secs());
    let since = Instant::now();
    assert_eq!(client.send("POST", &path, &group(WEB, "1.0.0", ["Current", "Current"])).await.status, 200);
    fleet.state(DEVICE, WEB, "installed").await;
    let freshness = async |wanted: &str| {
        let look = async || {
            client.get("/api/v1/deployments").await;
            let shown: Value =
                serde_json::from_str(&fleet.muster(&["device", DEVICE, "--format", "json"]).await).unwrap();
            if shown["device"]["freshness"] == wanted { Ok(()) } else { Err(shown.to_string()) }
        };
        fleet.system.eventually(wanted, look).await;
    };
    freshness("fresh").await;
    freshness("stale").await;
    assert!(since.elapsed() >= period, "stale after {:?}", since.elapsed());
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    assert_eq!(standing(&shown, WEB)["kstatus"], "Unknown", "old evidence is no success: {shown}");
    assert_eq!(push(&client, &group(WEB, "1.0.0", ["Current", "Current"])).await.status, 200);
    freshness("fresh").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_other_content_is_no_success() {
    let (fleet, client) = deployed().await;
    let answer = push(&client, &group(WEB, "0.9.0", ["Current", "Current"])).await.json();
    assert_eq!(answer["reports"][0]["state"], "pending", "{answer}");
    assert!(answer["reports"][0]["reason"].as_str().unwrap().contains("0.9.0"), "{answer}");
    fleet.state(DEVICE, WEB, "pending").await;
    let mut unobserved = group(WEB, "1.0.0", ["Current", "Current"]);
    unobserved["metadata"]["generation"] = json!(2);
    assert_eq!(push(&client, &unobserved).await.json()["reports"][0]["state"], "installing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_the_whole_cluster_and_a_missing_group_is_seen() {
    let (fleet, client) = deployed().await;
    let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "items": items});
    let foreign = group("kube-prometheus", "1", ["Current", "Current"]);
    let answer = push(&client, &list(json!([group(WEB, "1.0.0", ["Current", "Current"]), foreign]))).await;
    assert_eq!((answer.status, answer.json()["ignored"].clone()), (200, json!(1)), "{answer:?}");
    fleet.state(DEVICE, WEB, "installed").await;
    assert_eq!(push(&client, &list(json!([foreign]))).await.status, 200);
    let shown = fleet.state(DEVICE, WEB, "pending").await;
    assert!(shown.to_string().contains("the cluster has no ResourceGroup of it"), "{shown}");
    fleet.publish(&[]).await;
    fleet.manifest(&client, |manifest| manifest["bundle"].is_null()).await;
    assert_eq!(push(&client, &list(json!([]))).await.status, 200);
    let is_gone = |shown: &Value| {
        standing(shown, WEB)["report"]["state"].as_str().is_none_or(|state| state == "removed")
    };
    fleet.device(DEVICE, "the deployment is removed", is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_against_the_rules_is_refused_with_its_field() {
    let (fleet, client) = deployed().await;
    let whole = group(WEB, "1.0.0", ["Current", "Current"]);
    let refused = async |change: &dyn Fn(&mut Value)| {
        let mut body = whole.clone();
        change(&mut body);
        let answer = push(&client, &body).await;
        assert_eq!((answer.status, &*answer.problem()), (422, "semantic-error"), "{body}");
        answer.json()["errors"][0]["field"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        refused(&|body| body["status"]["observedGeneration"] = json!("1")).await,
        "status.observedGeneration"
    );
    assert_eq!(
        refused(&|body| body["spec"]["resources"][1]["kind"] = json!(3)).await,
        "spec.resources[1].kind"
    );
    assert_eq!(refused(&|body| body["kind"] = json!("Pod")).await, "kind");
    assert_eq!(refused(&|body| body["metadata"]["name"] = json!("other")).await, "metadata.name");
    assert_eq!(refused(&|body| body["spec"]["descriptor"] = json!({})).await, "metadata.annotations");
    let answer = client.send("POST", &format!("{PUSH}?period=3h"), &whole).await;
    assert_eq!((answer.status, &answer.json()["errors"][0]["field"]), (422, &json!("period")));
    for (body, status) in [("[]".to_owned(), 400), ("{".to_owned(), 400), (" ".repeat(1024 * 1024 + 1), 413)]
    {
        let answer = client.ask("POST", PUSH, &[], body.as_bytes()).await.unwrap();
        assert_eq!(answer.status, status, "{}", &body[..1]);
    }
    assert_eq!(client.get(PUSH).await.status, 405);
    // A certificate that no operator has accepted.
    let other = fleet.authority.client("press-9");
    let other = Client::new(fleet.gateway, &fleet.authority.certificate(), Some(&other));
    assert_eq!(push(&other, &whole).await.status, 403);
    assert_eq!(
        fleet.device(DEVICE, "nothing was reported", |_| true).await["device"]["head"].as_u64().unwrap_or(0),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_the_device_itself_ends_the_snapshots() {
    let (fleet, client) = deployed().await;
    let (manifest, _) = fleet.manifest(&client, |_| true).await;
    assert_eq!(push(&client, &group(WEB, "1.0.0", ["Current", "Failed"])).await.status, 200);
    fleet.state(DEVICE, WEB, "failed").await;
    let own = status(WEB, &manifest["manifestVersion"], "installed");
    assert_eq!(client.send("POST", &status_path(WEB), &own).await.status, 200);
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    assert_eq!(standing(&shown, WEB)["report"]["fidelity"], Value::Null, "{shown}");
}

/// A group is pushed to a gateway that dies at a step, and then to another one.
async fn dies_at(step: usize, cut: Cut) {
    let (mut fleet, whole) = deployed().await;
    let link = LinkProxy::to(fleet.system.address(), cut).await;
    let dying = whole.at(fleet.another_gateway(DYING, Some(link.addr)));
    fleet.serves(&dying).await;
    link.break_at(step);
    let pushed = group(WEB, "1.0.0", ["Current", "InProgress"]);
    let lost = tokio::spawn({
        let body = pushed.to_string();
        async move { dying.ask("POST", PUSH, &[("Content-Type", "application/json")], body.as_bytes()).await }
    });
    link.broken().await;
    fleet.system.kill(DYING).await;
    assert!(lost.await.unwrap().is_err(), "there is no answer");
    assert_eq!(push(&whole, &pushed).await.status, 200, "step {step}");
    assert_eq!(push(&whole, &group(WEB, "1.0.0", ["Current", "Current"])).await.status, 200);
    fleet.state(DEVICE, WEB, "installed").await;
    let states: Vec<String> = facts(&fleet).await.into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, ["installing", "installed"], "each once; step {step}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_before_any_step_loses_and_doubles_no_group() {
    for step in 1..=STEPS {
        dies_at(step, Cut::Before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_after_any_step_loses_and_doubles_no_group() {
    for step in 1..=STEPS {
        dies_at(step, Cut::After).await;
    }
}
