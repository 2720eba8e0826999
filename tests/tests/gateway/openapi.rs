//! Requests that a program makes from the OpenAPI document, valid and invalid, against a gateway before devices that run. Every
//! answer must be one that the document describes, no wrong request may be accepted, and none may be a failure of the gateway.

use muster_tests::python::program;
use tokio::process::Command;

use super::served;

/// The rules that each answer is checked against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      response_headers_conformance,negative_data_rejection,unsupported_method";

#[tokio::test(flavor = "multi_thread")]
async fn requests_made_from_the_openapi_document_get_the_described_answers() {
    let (system, addr) = served().await;
    let document = format!("http://{addr}/openapi.json");
    let output = Command::new(program("schemathesis"))
        .args(["run", &document, "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "10"])
        // Event streams do not end.
        .args(["--exclude-path-regex", "watch", "--seed", "1", "--request-timeout", "30"])
        .args(["--continue-on-failure", "--no-shrink", "--warnings", "off"])
        .current_dir(system.dir())
        .env("NO_COLOR", "1")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: ") && said.contains(" generated"), "{said}");
}
