//! How long plans take: to place 10,000 instances on 100,000 nodes, without IO; and on a real server with a real planner, from the
//! request for a revision until its operation waits for an approval. Run it by hand, after `cargo build --release --bins`:
//! `cargo bench -p muster-tests --bench plans`. It names the bounds that are missed; no test asserts them. Without `--bench`
//! nothing is measured.

// Its numbers go to standard output.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench is run by hand and watched")]

use std::time::{Duration, Instant};

use muster_contract::canonical::Digest;
use muster_contract::{DeviceKey, InstanceName, Timestamp};
use muster_domain::plans::{
    Decision, PlacementEvidence, PlansDocument, PlansEvidence, PlansRequest, PlansState,
};
use muster_tests::plans::{change, pending, revision};
use muster_tests::rollouts::start_planner;
use muster_tests::system::System;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NODES: usize = 100_000;
const INSTANCES: usize = 10_000;
/// Documents of one step, as the planner has it.
const DOCUMENTS_AT_ONCE: usize = 1024;
/// Requests that are timed on a real server.
const REQUESTS: usize = 50;
/// Targets: the placement of all instances, and the time from a request to a pending approval.
const PLACED_WITHIN: Duration = Duration::from_secs(2);
const PENDING_WITHIN: Duration = Duration::from_millis(100);

/// LEDGER without a report.
struct NoReports;

impl PlansEvidence for NoReports {
    fn placement(&self, _: &DeviceKey, _: &InstanceName) -> PlacementEvidence<'_> {
        PlacementEvidence { is_known: true, ..PlacementEvidence::of(None::<Digest>, None, None) }
    }
}

#[tokio::main]
async fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    place();
    wait_for_approvals().await;
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + at).unwrap()
}

fn plan(name: &str) -> Value {
    json!({ "name": name, "namespace": "demo", "serviceName": name, "profile": "simulated",
        "applications": [{ "payloadName": "main", "resources": { "cores": 1, "memory": 1 } }] })
}

fn deploy(id: &str, instances: usize) -> Value {
    json!({ "plan": "web", "id": id, "instances": instances, "coordinates": { "main": { "release": id } } })
}

/// Places instances on nodes of a hundred update domains, without IO.
fn place() {
    let mut state = PlansState::default();
    for at in 0..NODES {
        let change = json!({ "at": second(0), "message": "node is created" });
        let node = json!({ "apiVersion": "muster/v1", "kind": "Node", "site": format!("site-{}", at / 1000),
            "device": format!("node-{}", at % 1000), "version": 0, "state": "allocated", "updateDomain": format!("d{}", at % 100),
            "totalResources": { "cores": 8, "memory": 64 }, "createdAt": second(0), "change": change });
        state.apply(PlansDocument::Node(read(node)));
    }
    for request in
        [PlansRequest::PlanApply(read(plan("web"))), PlansRequest::PlanDeploy(read(deploy("r1", INSTANCES)))]
    {
        let Decision::Append(document) = state.decide(&request, None, second(1)).unwrap() else {
            panic!("it is new")
        };
        state.apply(*document);
    }
    let (began, mut documents) = (Instant::now(), 0);
    loop {
        let made = state.advance(&NoReports, second(2), DOCUMENTS_AT_ONCE);
        if made.is_empty() {
            break;
        }
        documents += made.len();
    }
    let took = began.elapsed();
    println!(
        "{INSTANCES} instances placed on {NODES} nodes in {took:.2?} ({documents} documents; target {PLACED_WITHIN:?})"
    );
    check("placement", took, PLACED_WITHIN);
}

/// Times the way from a request to a pending approval, over a real server and planner.
async fn wait_for_approvals() {
    let mut system = System::start().await;
    start_planner(&mut system);
    change(&system, "inventory-apply", json!({ "item": { "cluster": { "name": "north" } } })).await;
    let node = json!({ "site": "plant7", "device": "press-1", "updateDomain": "d0", "totalResources": { "cores": 8, "memory": 8 } });
    change(&system, "inventory-apply", json!({ "item": { "node": node } })).await;
    for state in ["allocating", "allocated"] {
        let request = json!({ "item": { "node": { "site": "plant7", "device": "press-1" } }, "nodeState": state, "cluster": "north" });
        change(&system, "inventory-state", request).await;
    }
    change(&system, "plan-apply", plan("web")).await;
    let mut times = Vec::new();
    for nth in 0..REQUESTS {
        let id = format!("r{nth}");
        let began = Instant::now();
        change(&system, "plan-deploy", deploy(&id, 1)).await;
        pending(&system, &["CREATE"]).await;
        times.push(began.elapsed());
        change(&system, "plan-revision", json!({ "plan": "web", "id": id, "verb": "cancel" })).await;
        revision(&system, &id, "cancelled").await;
    }
    times.sort_unstable();
    let (median, longest) = (times[REQUESTS / 2], times[REQUESTS - 1]);
    println!(
        "from request to pending approval, {REQUESTS} times: median {median:.1?}, longest {longest:.1?} (target {PENDING_WITHIN:?})"
    );
    check("pending approval", longest, PENDING_WITHIN);
}

fn check(what: &str, took: Duration, target: Duration) {
    if took > target {
        println!("MISSED: {what} took {took:.2?}, target {target:?}");
    }
}
