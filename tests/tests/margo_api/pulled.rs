//! kpt's ResourceGroups that a gateway pulls from a scripted API server: their effect on the fleet's views, a cluster that is not
//! reached, and the metrics of both.

use std::net::SocketAddr;

use muster_simulator::http;
use muster_tests::kubernetes::double::ScriptedApi;
use muster_tests::prometheus::free_address;
use serde_json::{Value, json};

use crate::fleet::{DEVICE, Fleet, WEB, standing, start_gateway};
use crate::resource_groups::group;

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/resourcegroups.kpt.dev";
const GROUPS: &str = "/apis/kpt.dev/v1alpha1/resourcegroups";

fn path(name: &str) -> String {
    format!("/apis/kpt.dev/v1alpha1/namespaces/line/resourcegroups/{name}")
}

/// A fleet with a deployment on a cluster that a gateway polls, and the address of its metrics; the cluster has no certificate.
async fn pulled() -> (Fleet, ScriptedApi, SocketAddr) {
    let mut fleet = Fleet::start(&[]).await;
    fleet.add(&[DEVICE]).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let api = ScriptedApi::start().await;
    api.put(DEFINITION, json!({"metadata": {"name": "resourcegroups.kpt.dev"}}));
    let file = fleet.system.dir().join("clusters.yaml");
    let token = fleet.system.dir().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    // One object a page.
    let cluster = json!({
        "device": DEVICE, "url": format!("{}{GROUPS}?limit=1", api.url()), "tokenFile": token, "interval": "200ms",
        "timeout": "2s", "period": "5s",
    });
    std::fs::write(&file, json!({"clusters": [cluster]}).to_string()).unwrap();
    let metrics = free_address();
    let more = ["--pull", file.to_str().unwrap(), "--http-addr", &metrics.to_string()];
    start_gateway(&mut fleet.system, &fleet.authority, "gateway-pull", None, &more);
    (fleet, api, metrics)
}

async fn freshness(fleet: &Fleet, wanted: &str) -> Value {
    fleet.device(DEVICE, wanted, |shown| shown["device"]["freshness"] == wanted).await
}

/// Waits until the metrics of pulling are as wanted: polls, failures, failing clusters, refused groups. Each must be there by name.
async fn counted(fleet: &Fleet, metrics: SocketAddr, what: &str, is_wanted: impl Fn([u64; 4]) -> bool) {
    let look = async || {
        let body = http::get(metrics, "/metrics").await.map_err(|error| error.to_string())?.body;
        let names = ["polls_total", "failures_total", "failing_clusters", "refused_groups_total"];
        let numbers = names.map(|name| {
            let name = format!("muster_gateway_pull_{name}");
            http::metric(&body, &name).unwrap_or_else(|| panic!("no {name} in {body}")) as u64
        });
        if is_wanted(numbers) { Ok(()) } else { Err(format!("{numbers:?}")) }
    };
    fleet.system.eventually(what, look).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pulled_group_is_sampled_and_follows_the_cluster() {
    let (fleet, api, metrics) = pulled().await;
    api.put(&path("kube-prometheus"), group("kube-prometheus", "1", ["Current", "Current"]));
    api.put(&path(WEB), group(WEB, "1.0.0", ["Current", "Current"]));
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    let report = &standing(&shown, WEB)["report"];
    assert_eq!((&report["origin"], &report["fidelity"]), (&json!("pull"), &json!("sampled")), "{shown}");
    freshness(&fleet, "fresh").await;
    assert!(fleet.muster(&["device", DEVICE]).await.contains("sampled by pull"));
    api.put(&path(WEB), group(WEB, "1.0.0", ["Failed", "Current"]));
    fleet.state(DEVICE, WEB, "failed").await;
    // A group that names no content is not used, and holds nothing up.
    let mut other = group("other", "", ["Current", "Current"]);
    other["metadata"]["labels"] = json!({"io.muster.deployment": "other"});
    api.put(&path("other"), other);
    api.put(&path(WEB), group(WEB, "1.0.0", ["Current", "InProgress"]));
    fleet.state(DEVICE, WEB, "installing").await;
    counted(
        &fleet,
        metrics,
        "a refused group is counted, and is no failure",
        |[polls, _, failing, refused]| polls > 0 && failing == 0 && refused > 0,
    )
    .await;
    api.delete(&path(WEB));
    let shown = fleet.state(DEVICE, WEB, "pending").await;
    assert!(shown.to_string().contains("the cluster has no ResourceGroup of it"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_not_reached_is_stale_and_comes_back() {
    let (fleet, mut api, metrics) = pulled().await;
    api.put(&path(WEB), group(WEB, "1.0.0", ["Current", "Current"]));
    fleet.state(DEVICE, WEB, "installed").await;
    freshness(&fleet, "fresh").await;
    api.kill();
    counted(&fleet, metrics, "a failed poll is counted", |[polls, failures, failing, _]| {
        polls > failures && failures > 0 && failing == 1
    })
    .await;
    let shown = freshness(&fleet, "stale").await;
    let line = standing(&shown, WEB);
    assert_eq!((&line["standing"], &line["kstatus"]), (&json!("installed"), &json!("Unknown")), "{shown}");
    api.serve_all();
    api.resume().await;
    freshness(&fleet, "fresh").await;
    counted(&fleet, metrics, "no cluster fails after a good poll", |[polls, failures, failing, refused]| {
        polls > failures && failures > 0 && failing == 0 && refused == 0
    })
    .await;
}
