//! Statuses and capabilities: status codes, rules, and their effect on the fleet's views.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fleet::{DEVICE, Fleet, WEB, is_complete, standing, status, status_path};

const CAPABILITIES: &str = "/api/v1/capabilities/press-1";

async fn deployed() -> (Fleet, Client, Value) {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
    let version = manifest["manifestVersion"].clone();
    (fleet, client, version)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_status_is_created_and_later_ones_are_updates() {
    let (fleet, client, version) = deployed().await;
    let post =
        async |state| client.send("POST", &status_path(WEB), &status(WEB, &version, state)).await.status;
    assert_eq!([post("pending").await, post("pending").await, post("failed").await], [201, 200, 200]);
    fleet.state(DEVICE, WEB, "failed").await;
    let two = |shown: &Value| is_complete(shown, 2) && shown["device"]["head"] == 2;
    fleet.device(DEVICE, "a repeated status is no second report", two).await;
    for (state, old) in [("Installed", "installed"), ("Success", "installed"), ("Failure", "failed")] {
        let mut body = status(WEB, &version, old);
        body["status"]["state"] = json!(state);
        assert_eq!(client.send("POST", &status_path(WEB), &body).await.status, 200, "{state}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_a_deployment_that_left_the_manifest_is_accepted() {
    let (fleet, client, version) = deployed().await;
    let post = async |version: &Value, state| {
        client.send("POST", &status_path(WEB), &status(WEB, version, state)).await.status
    };
    assert_eq!(post(&version, "installed").await, 201);
    fleet.publish(&[]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| manifest["bundle"].is_null()).await;
    let version = &manifest["manifestVersion"];
    assert_eq!([post(version, "removing").await, post(version, "removed").await], [200, 200]);
    let is_gone = |shown: &Value| {
        standing(shown, WEB)["report"]["state"].as_str().is_none_or(|state| state == "removed")
    };
    fleet.device(DEVICE, "the deployment is removed", is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_an_older_version_is_not_taken_for_the_newest_content() {
    let (fleet, client, old) = deployed().await;
    assert_eq!(client.send("POST", &status_path(WEB), &status(WEB, &old, "installed")).await.status, 201);
    fleet.state(DEVICE, WEB, "installed").await;
    fleet.publish(&[(WEB, "2.0.0")]).await;
    let newer = |manifest: &Value| manifest["manifestVersion"].as_u64() > old.as_u64();
    let (manifest, _) = fleet.manifest(&client, newer).await;
    // The device has fetched the new manifest, and still runs the old content.
    assert_eq!(client.send("POST", &status_path(WEB), &status(WEB, &old, "failed")).await.status, 200);
    let shown = fleet.state(DEVICE, WEB, "failed").await;
    assert_ne!(standing(&shown, WEB)["standing"], "failed", "the new content has not failed: {shown}");
    let version = &manifest["manifestVersion"];
    assert_eq!(client.send("POST", &status_path(WEB), &status(WEB, version, "installed")).await.status, 200);
    let is_installed = |shown: &Value| standing(shown, WEB)["standing"] == "installed";
    fleet.device(DEVICE, "the new content is installed", is_installed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_against_the_rules_is_refused_with_its_field() {
    let (_fleet, client, version) = deployed().await;
    let whole = status(WEB, &version, "installed");
    let refused = async |change: &dyn Fn(&mut Value)| {
        let mut body = whole.clone();
        change(&mut body);
        let answer = client.send("POST", &status_path(WEB), &body).await;
        assert_eq!((answer.status, &*answer.problem()), (422, "semantic-error"), "{body}");
        answer.json()["errors"][0]["field"].as_str().unwrap().to_owned()
    };
    refused(&|body| _ = body.as_object_mut().unwrap().remove("adoptedManifestVersion")).await;
    assert_eq!(
        refused(&|body| body["adoptedManifestVersion"] = json!(u64::MAX)).await,
        "adoptedManifestVersion"
    );
    assert_eq!(refused(&|body| body["deploymentId"] = json!("web")).await, "deploymentId");
    assert_eq!(refused(&|body| body["deviceId"] = json!("press-2")).await, "deviceId");
    assert_eq!(refused(&|body| body["status"]["state"] = json!("done")).await, "status.state");
    assert_eq!(refused(&|body| body["status"]["state"] = json!("pending")).await, "status.state");
    assert!(refused(&|body| body["components"][0] = json!({"name": "db"})).await.starts_with("components"));
    for body in ["", "{", "[]", "\"a\""] {
        let answer = client.ask("POST", &status_path(WEB), &[], body.as_bytes()).await.unwrap();
        assert_eq!((answer.status, &*answer.problem()), (400, "invalid-request"), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_are_created_updated_removed_and_shown() {
    let (fleet, client, _) = deployed().await;
    let about = |memory: &str| {
        json!({
            "properties": {
                "id": "press-1", "vendor": "EdgeBox", "modelNumber": "EB-40", "serialNumber": "1", "memory": memory,
                "cpus": [{"cores": 4, "architecture": "arm64"}], "supportedRuntimes": ["oci"],
            },
            "labels": {"acme.example/line": "press"}, "x-acme-extensions": {"a": 1},
        })
    };
    let put = async |memory| client.send("PUT", CAPABILITIES, &about(memory)).await.status;
    assert_eq!([put("8Gi").await, put("8Gi").await, put("16Gi").await], [201, 200, 200]);
    let shows = |memory: &'static str| move |shown: &Value| shown["capabilities"]["memory"] == memory;
    let shown = fleet.device(DEVICE, "the newest capabilities", shows("16Gi")).await;
    assert_eq!(shown["labels"]["acme.example/line"], "press");
    let delete = async || client.ask("DELETE", CAPABILITIES, &[], b"").await.unwrap();
    assert_eq!(delete().await.status, 204);
    let again = delete().await;
    assert_eq!((again.status, &*again.problem()), (404, "device-not-found"));
    fleet.device(DEVICE, "no capabilities", |shown| shown["capabilities"]["memory"].is_null()).await;
    assert_eq!(put("8Gi").await, 201);
    let wrong = async |path: &str, body: &Value| {
        let answer = client.send("PUT", path, body).await;
        (answer.status, answer.problem())
    };
    let child = wrong("/api/v1/capabilities/press-1/child", &about("8Gi")).await;
    assert_eq!(child, (403, "not-authorized".to_owned()), "nobody has named a child of it");
    let semantic = (422, "semantic-error".to_owned());
    assert_eq!(wrong("/api/v1/capabilities/press-2", &about("8Gi")).await, semantic);
    assert_eq!(wrong(CAPABILITIES, &json!({"properties": {"id": "press-1"}})).await, semantic);
    assert_eq!(wrong(CAPABILITIES, &json!([])).await, (400, "invalid-request".to_owned()));
}
