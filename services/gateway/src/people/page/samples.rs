//! Views for the tests of pages.

use muster_contract::plans::{OperationStatus, OperationsAnswer};
use muster_contract::view::{DeploymentView, SiteView, Split};
use serde_json::{Value, json};

const AT: &str = "2026-11-20T08:00:00Z";

/// A deployment with error codes, each with its number of devices, and a number of codes that the view leaves out.
pub(super) fn deployment_view(id: &str, errors: &[(&str, u64)], omitted: u64) -> DeploymentView {
    let example = json!({ "site": "plant7", "device": "press-1", "message": "no room" });
    let errors: Vec<Value> = errors
        .iter()
        .map(|(code, count)| json!({ "code": code, "count": count, "example": example }))
        .collect();
    let view = json!({
        "apiVersion": "muster/v1", "kind": "DeploymentView", "deployment": id,
        "asOf": { "ledgerSeq": 7, "at": AT }, "verdict": "failing", "targets": 0, "leaving": 0, "counts": {},
        "converged": { "lo": 0, "hi": 0 }, "complete": { "devices": 0, "of": 0, "missingReports": 0 },
        "components": {}, "errors": errors, "omitted": { "errors": omitted }, "digest": digest(),
    });
    serde_json::from_value(view).unwrap()
}

/// A site with devices, of which the hub does not listen to a number of partitions.
pub(super) fn site_view(name: &str, devices: Split, unheard: u16) -> SiteView {
    let unheard: Vec<Value> =
        (0..unheard).map(|partition| json!({ "partition": partition, "since": AT })).collect();
    let view = json!({
        "apiVersion": "muster/v1", "kind": "SiteView", "site": name,
        "asOf": { "ledgerSeq": 7, "at": AT }, "devices": devices, "targets": 0, "leaving": 0, "counts": {},
        "deployments": {}, "complete": { "devices": 0, "of": 0, "missingReports": 0 },
        "hub": { "unheard": unheard }, "digest": digest(),
    });
    serde_json::from_value(view).unwrap()
}

fn digest() -> String {
    format!("sha256:{}", "0".repeat(64))
}

/// An operation of a plan that waits for an approval since a time.
pub(super) fn waiting_operation(plan: &str, since: &str) -> OperationStatus {
    let example = include_bytes!("../../../../../schemas/examples/good/OperationsAnswer.one.json");
    let mut status = serde_json::from_slice::<OperationsAnswer>(example).unwrap().operations.remove(0);
    status.plan = plan.parse().unwrap();
    status.operation.history.iter_mut().for_each(|step| step.at = since.parse().unwrap());
    status
}
