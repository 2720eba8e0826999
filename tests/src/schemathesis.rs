//! Runs schemathesis: it makes requests from an OpenAPI document, valid and invalid, and checks each answer against the document.

use std::path::Path;

use tokio::process::Command;

use crate::python::program;

/// The rules that each answer is checked against.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      response_headers_conformance,negative_data_rejection,unsupported_method";

/// Makes the requests of a document, an address or a file, with more arguments.
///
/// # Panics
/// An answer breaks a rule, or the program does not run.
pub async fn try_requests(document: &str, folder: &Path, more: &[&str]) {
    let output = Command::new(program("schemathesis"))
        .args(["run", document, "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "5"])
        .args(["--seed", "1", "--request-timeout", "30"])
        .args(["--continue-on-failure", "--no-shrink", "--warnings", "off"])
        .args(more)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .await
        .unwrap_or_else(|error| panic!("cannot run schemathesis: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: ") && said.contains(" generated"), "{said}");
}
