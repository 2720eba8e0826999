//! kpt's ResourceGroups that a gateway pulls from a scripted API server: their effect on the fleet's views, and a cluster that is not
//! reached.

use muster_tests::kubernetes::double::ScriptedApi;
use serde_json::{Value, json};

use crate::fleet::{DEVICE, Fleet, WEB, standing, start_gateway};
use crate::resource_groups::group;

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/resourcegroups.kpt.dev";
const GROUPS: &str = "/apis/kpt.dev/v1alpha1/resourcegroups";

fn path(name: &str) -> String {
    format!("/apis/kpt.dev/v1alpha1/namespaces/line/resourcegroups/{name}")
}

/// A fleet with a deployment on a cluster that a gateway polls; the cluster has no certificate.
async fn pulled() -> (Fleet, ScriptedApi) {
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
    let more = ["--pull", file.to_str().unwrap()];
    start_gateway(&mut fleet.system, &fleet.authority, "gateway-pull", None, &more);
    (fleet, api)
}

async fn freshness(fleet: &Fleet, wanted: &str) -> Value {
    fleet.device(DEVICE, wanted, |shown| shown["device"]["freshness"] == wanted).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pulled_group_is_sampled_and_follows_the_cluster() {
    let (fleet, api) = pulled().await;
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
    api.delete(&path(WEB));
    let shown = fleet.state(DEVICE, WEB, "pending").await;
    assert!(shown.to_string().contains("the cluster has no ResourceGroup of it"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_not_reached_is_stale_and_comes_back() {
    let (fleet, mut api) = pulled().await;
    api.put(&path(WEB), group(WEB, "1.0.0", ["Current", "Current"]));
    fleet.state(DEVICE, WEB, "installed").await;
    freshness(&fleet, "fresh").await;
    api.kill();
    let shown = freshness(&fleet, "stale").await;
    let line = standing(&shown, WEB);
    assert_eq!((&line["standing"], &line["kstatus"]), (&json!("installed"), &json!("Unknown")), "{shown}");
    api.serve_all();
    api.resume().await;
    freshness(&fleet, "fresh").await;
}
