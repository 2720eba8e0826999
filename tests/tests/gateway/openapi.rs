//! Requests that a program makes from the OpenAPI document, valid and invalid, against a gateway before devices that run. Every
//! answer must be one that the document describes, no wrong request may be accepted, and none may be a failure of the gateway.

use muster_tests::schemathesis::try_requests;
use muster_tests::{golden, schemas};
use serde_json::{Value, json};

use super::client::get;
use super::planning::planned;
use super::served;

const SWITCH: &str = "UPDATE_SCHEMAS";
const REMEDY: &str = "UPDATE_SCHEMAS=1 cargo nextest run -p muster-tests --test gateway the_openapi_files";

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_files_are_what_a_gateway_serves() {
    let (_system, addr) = served().await;
    let document = get(addr, "/openapi.json").await.unwrap().json();
    let devices = get(addr, "/openapi-devices.json").await.unwrap().json();
    let files = [
        ("paths", lines(&document["paths"], 2)),
        ("components", lines(&document["components"], 2)),
        ("devices", lines(&devices, 3)),
    ];
    let differences = files.iter().filter_map(|(name, text)| {
        let file = schemas::folder().join(format!("openapi/{name}.json"));
        golden::difference(&file, &format!("{text}\n"), SWITCH)
    });
    let differences: String = differences.collect();
    assert!(differences.is_empty(), "{differences}`{REMEDY}` rewrites it");
}

/// A document with a line for each object at a depth, so that a file is short and a change of it is readable.
fn lines(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(object) if depth > 0 => {
            let fields =
                object.iter().map(|(name, value)| format!("{}: {}", json!(name), lines(value, depth - 1)));
            format!("{{\n{}\n}}", fields.collect::<Vec<_>>().join(",\n"))
        }
        value => value.to_string(),
    }
}

/// Makes requests of the methods that a flag selects.
async fn tried(method: [&str; 2]) {
    let (system, addr) = planned().await;
    let document = format!("http://{addr}/openapi.json");
    // Event streams do not end.
    let args = [&["--exclude-path-regex", "watch"], &method[..]].concat();
    try_requests(&document, system.dir(), &args).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_made_from_the_openapi_document_get_the_described_answers() {
    tried(["--include-method", "GET"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_made_from_the_openapi_document_get_the_described_answers() {
    tried(["--exclude-method", "GET"]).await;
}
