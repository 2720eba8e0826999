//! Requests that a program which we did not write makes from the OpenAPI document of devices, valid and invalid, with a device's
//! certificate. Every answer must be one that the document describes, no wrong request may be accepted, and none may be a failure
//! of the gateway.
//!
//! The document is our description of Margo's API, checked by `the_openapi_files`. Margo's own is not in this repository.

use std::fs;

use muster_tests::schemas;
use muster_tests::schemathesis::try_requests;
use serde_json::{Value, json};

use crate::fleet::{DEVICE, Fleet, WEB};
use crate::trust::{HOST, served};

/// The `deviceId` of [`DEVICE`].
const DEVICE_ID: &str = "press-1";

/// The document of devices.
fn document() -> Value {
    let text = fs::read_to_string(schemas::folder().join("openapi/devices.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The document with the only names that the gateway accepts of this device, so that valid requests succeed.
fn document_of(manifest: &Value) -> Value {
    let only = |value: &Value| json!({ "type": "string", "const": value });
    let mut document = document();
    for (path, operations) in document["paths"].as_object_mut().unwrap() {
        let content =
            if path.contains("/bundles/") { &manifest["bundle"] } else { &manifest["deployments"][0] };
        let operations = operations.as_object_mut().unwrap().values_mut();
        for param in operations.flat_map(|operation| operation["parameters"].as_array_mut().unwrap()) {
            let value = match param["name"].as_str().unwrap() {
                "deviceId" => json!(DEVICE_ID),
                "deploymentId" => json!(WEB),
                "digest" => content["digest"].clone(),
                _ => continue,
            };
            param["schema"] = only(&value);
        }
    }
    let schemas = &mut document["components"]["schemas"];
    schemas["DeviceProperties"]["properties"]["id"] = only(&json!(DEVICE_ID));
    let status = &mut schemas["DeploymentStatusManifest"]["properties"];
    status["deploymentId"] = only(&json!(WEB));
    status["deviceId"] = json!({ "enum": [DEVICE_ID, null] });
    status["adoptedManifestVersion"] =
        json!({ "type": "integer", "minimum": 1, "maximum": manifest["manifestVersion"] });
    document
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_made_from_the_openapi_document_get_the_described_answers() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
    let folder = fleet.system.dir();
    fs::write(folder.join("devices.json"), document_of(&manifest).to_string()).unwrap();
    let own = fleet.authority.client(DEVICE_ID);
    let [ca, certificate, key] =
        [&fleet.authority.certificate(), &own.certificate, &own.key].map(|path| path.display().to_string());
    let url = format!("https://{}", fleet.gateway);
    // The listener of people serves the trust bundle.
    let args = ["--url", &url, "--exclude-path-regex", "well-known", "--tls-verify", &ca];
    let args = [&args[..], &["--request-cert", &certificate, "--request-cert-key", &key]].concat();
    try_requests("devices.json", folder, &args).await;
    let is_stored = |shown: &Value| shown["device"]["head"].as_u64() >= Some(2);
    fleet.device(DEVICE, "reports of valid requests are stored", is_stored).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_trust_made_from_the_openapi_document_get_its_answers() {
    let (system, _authority, addr, _) = served().await;
    fs::write(system.dir().join("devices.json"), document().to_string()).unwrap();
    let (url, host) = (format!("http://{addr}"), format!("Host: {HOST}"));
    let args = ["--url", &url, "--include-path-regex", "well-known", "--header", &host];
    try_requests("devices.json", system.dir(), &args).await;
}
