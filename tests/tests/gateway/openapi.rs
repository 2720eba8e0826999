//! Requests that a program makes from the OpenAPI document, valid and invalid, against a gateway before devices that run. Every
//! answer must be one that the document describes, no wrong request may be accepted, and none may be a failure of the gateway.

use muster_tests::python::program;
use muster_tests::{golden, schemas};
use serde_json::{Value, json};
use tokio::process::Command;

use super::client::get;
use super::planning::planned;
use super::served;

const SWITCH: &str = "UPDATE_SCHEMAS";
const REMEDY: &str = "UPDATE_SCHEMAS=1 cargo nextest run -p muster-tests --test gateway the_openapi_files";

/// The rules that each answer is checked against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      response_headers_conformance,negative_data_rejection,unsupported_method";

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_files_are_what_a_gateway_serves() {
    let (_system, addr) = served().await;
    let document = get(addr, "/openapi.json").await.unwrap().json();
    let files =
        ["paths", "components"].map(|part| (format!("openapi/{part}.json"), lines(&document[part], 2)));
    let differences = files.iter().filter_map(|(path, text)| {
        golden::difference(&schemas::folder().join(path), &format!("{text}\n"), SWITCH)
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
    let output = Command::new(program("schemathesis"))
        .args(["run", &document, "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "10"])
        // Event streams do not end.
        .args(["--exclude-path-regex", "watch", "--seed", "1", "--request-timeout", "30"])
        .args(["--continue-on-failure", "--no-shrink", "--warnings", "off"])
        .args(method)
        .current_dir(system.dir())
        .env("NO_COLOR", "1")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: ") && said.contains(" generated"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_made_from_the_openapi_document_get_the_described_answers() {
    tried(["--include-method", "GET"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_made_from_the_openapi_document_get_the_described_answers() {
    tried(["--exclude-method", "GET"]).await;
}
