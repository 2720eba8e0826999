//! Devices behind a gateway client: one certificate speaks for those that an operator has named, each with its own numbers,
//! generations and lease, and for no other.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::fact::Fact;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::Client;
use crate::fleet::{Fleet, GATEWAY, WEB, is_complete, standing, status, status_path};
use crate::pki::client_id;
use crate::schema;

/// The gateway client's own device, two devices behind it, and one that is not.
pub(crate) const OWN: &str = "plant7/gw";
pub(crate) const CHILDREN: [&str; 2] = ["plant7/press-a", "plant7/press-b"];
const FOREIGN: &str = "plant7/press-c";
/// Margo's code: the child device does not answer its gateway.
const UNREACHABLE: &str = "102";
/// Interval of polls.
const POLL: Duration = Duration::from_millis(300);

/// A fleet with a gateway client of two children, and a third device that is not its own.
pub(crate) async fn behind() -> (Fleet, Client) {
    let fleet = Fleet::start_with_children(OWN, &CHILDREN).await;
    fleet.add(&[FOREIGN]).await;
    let client = fleet.client(OWN).await;
    (fleet, client)
}

/// The id of the deployment of each device in a manifest, by `deviceId`.
async fn ids(client: &Client, manifest: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in manifest["deployments"].as_array().unwrap() {
        let document = client.get(entry["url"].as_str().unwrap()).await.json();
        schema::deployment(&document);
        assert_eq!(document["id"], entry["deploymentId"]);
        let device = document["metadata"]["deviceId"].as_str().unwrap().to_owned();
        found.insert(device, document["id"].as_str().unwrap().to_owned());
    }
    found
}

/// Waits for a manifest with a deployment of each of these devices; its version and the ids.
pub(crate) async fn manifest_of(
    fleet: &Fleet,
    client: &Client,
    devices: usize,
) -> (Value, BTreeMap<String, String>) {
    let holds = |manifest: &Value| manifest["deployments"].as_array().map_or(0, Vec::len) == devices;
    let (manifest, _) = fleet.manifest(client, holds).await;
    schema::manifest(&manifest);
    (manifest["manifestVersion"].clone(), ids(client, &manifest).await)
}

fn about(id: &str) -> Value {
    json!({ "properties": { "id": id, "vendor": "EdgeBox", "modelNumber": id, "serialNumber": "1" } })
}

fn capabilities_path(id: &str) -> String {
    format!("/api/v1/capabilities/{id}")
}

/// Posts a status of a child.
pub(crate) async fn post(client: &Client, device: &str, id: &str, version: &Value, state: &str) -> u16 {
    let mut body = status(id, version, state);
    body["deviceId"] = json!(device);
    client.send("POST", &status_path(id), &body).await.status
}

/// A status that says that the gateway does not reach a child.
pub(crate) fn unreached(device: &str, id: &str, version: &Value) -> Value {
    let mut body = status(id, version, "failed");
    let error = json!({ "code": UNREACHABLE, "source": "gw", "message": "no answer" });
    body["deviceId"] = json!(device);
    body["status"]["error"] = error.clone();
    for component in body["components"].as_array_mut().unwrap() {
        component["error"] = error.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_client_speaks_for_each_child_as_a_device_of_its_own() {
    let (fleet, client) = behind().await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let put = async |id: &str| {
        let answer = client.send("PUT", &capabilities_path(id), &about(id)).await;
        (answer.status, if answer.status < 400 { String::new() } else { answer.problem() })
    };
    assert_eq!(put("gw/press-a").await, (404, "gateway-not-found".to_owned()), "before the gateway's own");
    for (id, created) in [("gw", 201), ("gw/press-a", 201), ("gw/press-b", 201), ("gw/press-a", 200)] {
        assert_eq!(put(id).await.0, created, "{id}");
    }
    let (version, ids) = manifest_of(&fleet, &client, 3).await;
    assert_eq!(ids.keys().collect::<Vec<_>>(), ["gw", "gw/press-a", "gw/press-b"]);
    assert!(ids["gw"] == WEB && ids["gw/press-a"] != ids["gw/press-b"], "{ids:?}");
    for (device, state) in [("gw/press-a", "pending"), ("gw/press-a", "installed"), ("gw/press-b", "failed")]
    {
        let wanted = if state == "installed" { 200 } else { 201 };
        assert_eq!(post(&client, device, &ids[device], &version, state).await, wanted, "{device} {state}");
    }
    assert_eq!(post(&client, "gw", WEB, &version, "installed").await, 201);
    // A repeated status has no second number.
    assert_eq!(post(&client, "gw/press-b", &ids["gw/press-b"], &version, "failed").await, 200);
    for (device, state, head) in
        [(OWN, "installed", 2), (CHILDREN[0], "installed", 3), (CHILDREN[1], "failed", 2)]
    {
        let shown = fleet.state(device, WEB, state).await;
        assert_eq!(standing(&shown, WEB)["standing"], state, "{shown}");
        let own = |shown: &Value| is_complete(shown, head) && shown["device"]["head"] == head;
        let shown = fleet.device(device, "numbers of its own", own).await;
        let model = shown["capabilities"]["modelNumber"].as_str().unwrap_or_default();
        assert!(model.ends_with(device.split('/').next_back().unwrap()), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_child_is_403_and_touches_nothing() {
    let (fleet, client) = behind().await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    assert_eq!(client.send("PUT", &capabilities_path("gw"), &about("gw")).await.status, 201);
    let (version, ids) = manifest_of(&fleet, &client, 3).await;
    let refused = async |device: &str, deployment: &str| {
        let mut body = status(deployment, &version, "installed");
        body["deviceId"] = json!(device);
        let path = capabilities_path(device);
        for answer in [
            client.send("POST", &status_path(deployment), &body).await,
            client.send("PUT", &path, &about(device)).await,
            client.ask("DELETE", &path, &[], b"").await.unwrap(),
        ] {
            assert_eq!((answer.status, &*answer.problem()), (403, "not-authorized"), "{device}: {answer:?}");
        }
    };
    for device in ["gw/press-c", "gw/new", "press-c/press-a", "plant8/press-a", "gw/press-a/x", "gw/gw"] {
        refused(device, &ids["gw/press-a"]).await;
    }
    let shown = fleet.device(FOREIGN, "the foreign device", |_| true).await;
    assert_eq!(shown["device"]["head"], 0, "{shown}");
    let devices = fleet.muster(&["devices", "--format", "json"]).await;
    assert!(!devices.contains("\"new\"") && !devices.contains("plant8"), "{devices}");

    // Its right to speak for one child is revoked: from the next request on.
    assert_eq!(post(&client, "gw/press-a", &ids["gw/press-a"], &version, "installed").await, 201);
    fleet.muster(&["revoke", "--spiffe", &client_id("gw"), "--child", "press-a"]).await;
    refused("gw/press-a", &ids["gw/press-a"]).await;
    let (newer, left) = manifest_of(&fleet, &client, 2).await;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["gw", "gw/press-b"]);
    assert!(newer.as_u64() > version.as_u64(), "the version does not fall: {version} {newer}");
    assert_eq!(post(&client, "gw/press-b", &ids["gw/press-b"], &newer, "installed").await, 201);

    // One device has one speaker.
    let taken = ["enroll", "plant7/gw-2", "--spiffe", &client_id("gw-2"), "--children", "press-b"];
    let done = fleet.system.muster(&taken).await;
    let words = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && words.contains("speaks for it"), "{words}");
    let file = fleet.system.dir().join("children.txt");
    std::fs::write(&file, "press-d\nPress E\n").unwrap();
    let path = file.display().to_string();
    let wrong = ["enroll", OWN, "--spiffe", &client_id("gw"), "--children-file", &path];
    let words = String::from_utf8_lossy(&fleet.system.muster(&wrong).await.stderr).into_owned();
    assert!(words.contains("children.txt:2: 'Press E'"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_several_devices_is_each_ones_own_generation() {
    let (mut fleet, client) = behind().await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (old, ids) = manifest_of(&fleet, &client, 3).await;
    let child = &ids["gw/press-a"];
    assert_eq!(post(&client, "gw/press-a", child, &old, "installed").await, 201);
    fleet.publish(&[(WEB, "2.0.0")]).await;
    let rises = |manifest: &Value| manifest["manifestVersion"].as_u64() >= old.as_u64().map(|old| old + 3);
    let (manifest, answer) = fleet.manifest(&client, rises).await;
    // Another gateway serves the same bytes, and maps the same version.
    let other = client.at(fleet.another_gateway("gateway-2", None));
    fleet.serves(&other).await;
    assert_eq!(other.get("/api/v1/deployments").await.body, answer.body);
    fleet.system.kill(GATEWAY).await;
    // The child still runs the old content, while its gateway has the new manifest.
    assert_eq!(post(&other, "gw/press-a", child, &old, "failed").await, 200);
    let shown = fleet.state(CHILDREN[0], WEB, "failed").await;
    assert_ne!(standing(&shown, WEB)["standing"], "failed", "the new content has not failed: {shown}");
    let version = &manifest["manifestVersion"];
    assert_eq!(post(&other, "gw/press-a", child, version, "installed").await, 200);
    let is_installed = |shown: &Value| standing(shown, WEB)["standing"] == "installed";
    fleet.device(CHILDREN[0], "the new content is installed", is_installed).await;
    assert_eq!(post(&other, "gw/press-a", child, &json!(u64::MAX), "installed").await, 422);
    assert_eq!(post(&other, "gw/press-a", WEB, version, "installed").await, 422, "that is the gateway's own");
    // It left the manifest, and its status is taken all the same.
    fleet.publish(&[]).await;
    let (gone, _) = fleet.manifest(&other, |manifest| manifest["bundle"].is_null()).await;
    assert_eq!(post(&other, "gw/press-a", child, &gone["manifestVersion"], "removed").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_as_silent_as_its_gateway_or_more() {
    let (fleet, client) = behind().await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (version, ids) = manifest_of(&fleet, &client, 3).await;
    let polling = {
        let client = client.clone();
        tokio::spawn(async move {
            loop {
                client.get("/api/v1/deployments").await;
                sleep(POLL).await;
            }
        })
    };
    let is = async |device: &str, freshness: &str| {
        fleet.device(device, freshness, |shown| shown["device"]["freshness"] == freshness).await;
    };
    for device in [OWN, CHILDREN[0], CHILDREN[1]] {
        is(device, "fresh").await;
    }
    // The gateway polls on, and does not reach one child.
    let id = &ids["gw/press-a"];
    let body = unreached("gw/press-a", id, &version);
    assert_eq!(client.send("POST", &status_path(id), &body).await.status, 201);
    is(CHILDREN[0], "stale").await;
    is(CHILDREN[1], "fresh").await;
    fleet.state(CHILDREN[0], WEB, "failed").await;
    let is_code = |fact: &Fact| match fact {
        Fact::Status(fact) => fact.status.error.as_ref().is_some_and(|error| error.code == UNREACHABLE),
        _ => false,
    };
    assert!(fleet.system.ledger().await.iter().any(|entry| is_code(&entry.fact)), "the code is kept");
    assert_eq!(post(&client, "gw/press-a", id, &version, "installed").await, 200);
    is(CHILDREN[0], "fresh").await;
    polling.abort();
    for device in [OWN, CHILDREN[0], CHILDREN[1]] {
        is(device, "stale").await;
    }
}
