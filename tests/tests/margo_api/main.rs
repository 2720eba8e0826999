//! Margo's device API (1.0.0-rc.3) as a gateway serves it, before a whole system of processes: manifests, statuses, capabilities,
//! devices behind a client, attacks, gateways that die, and a device in Python.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod attempts;
mod children;
mod client;
mod conformance;
mod cut;
mod fake;
mod fleet;
mod kills;
mod leases;
mod manifests;
mod metrics;
mod pki;
mod pulled;
mod python;
mod resource_groups;
mod schema;
mod statuses;
mod trust;

use fleet::{DEVICE, Fleet, WEB, standing, status, status_path};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_margo_device_polls_fetches_reports_and_is_seen() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
    let entry = &manifest["deployments"][0];
    let answer = client.get(entry["url"].as_str().unwrap()).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/yaml")));
    let document = answer.json();
    assert_eq!((&document["id"], &document["metadata"]["deviceId"]), (&json!(WEB), &json!("press-1")));
    let version = &manifest["manifestVersion"];
    let post =
        async |state| client.send("POST", &status_path(WEB), &status(WEB, version, state)).await.status;
    assert_eq!([post("pending").await, post("installing").await, post("installed").await], [201, 200, 200]);
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    assert_eq!(standing(&shown, WEB)["standing"], "installed", "{shown}");
    let is_fresh = |shown: &serde_json::Value| shown["device"]["freshness"] == "fresh";
    fleet.device(DEVICE, "the device is heard while it polls", is_fresh).await;
}
