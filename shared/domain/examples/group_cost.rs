//! Measures the cost of groups and defined views: nanoseconds a fact without them, with labels, and with views;
//! how long the longest step of counting a new definition holds the fold; how long rendering a view takes; and what a view
//! costs while each fact takes its newest time away.
//!
//! `cargo run --release -p muster-domain --example group_cost [DEVICES]`

#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::time::{Duration, Instant};

use muster_contract::defined::ViewDefinition;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{Fact, LivenessFact, StatusFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp, decode};
use muster_domain::fold::{Fleet, Position};
use serde_json::{Value, json};

/// Deployments of each device.
const DEPLOYMENTS: usize = 5;
/// Facts that are measured.
const FACTS: usize = 400_000;
/// Devices counted in one step, as the rollup does.
const STEP: u32 = 2_000;
/// Devices that recover in the reverse order of their failures.
const RECOVERIES: usize = 1_000;
/// The longest hold of the fold that nobody notices.
const STALL: Duration = Duration::from_millis(20);

fn main() {
    let devices = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    println!("{devices} devices with {DEPLOYMENTS} deployments each");
    for (labels, views) in [(0, 0), (4, 0), (4, 1), (4, 8), (4, 32)] {
        let mut fleet = fleet(devices, labels);
        let begun = Instant::now();
        fleet.define((0..views).map(definition));
        let (mut longest, mut steps) = (Duration::ZERO, 0);
        loop {
            let step = Instant::now();
            let more = fleet.count_defined(STEP);
            longest = longest.max(step.elapsed());
            steps += 1;
            if !more {
                break;
            }
        }
        let counted = begun.elapsed();
        let each = facts(&mut fleet, devices);
        let show = show(&fleet, views);
        println!(
            "{labels} labels, {views:2} views: {each:5.0} ns a fact; counted in {counted:.1?}, longest of {steps} steps \
             {longest:.1?}; shown in {show:.1?}"
        );
        assert!(longest < STALL, "a step holds the fold for {longest:?}");
    }
    recover_in_reverse(devices);
}

/// Lets all devices fail, and then the one that failed last recover first: each recovery removes the newest time of a view
/// of failed standings.
fn recover_in_reverse(devices: usize) {
    let mut fleet = fleet(devices, 0);
    for number in 0..devices {
        let (subject, fact) = status(number, 0, (1, number), "failed");
        apply(&mut fleet, &subject, fact);
    }
    fleet.define([read(json!({
        "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "v00", "select": {"standings": ["failed"]},
    }))]);
    while fleet.count_defined(STEP) {}
    let (mut folded, mut shown) = (Duration::ZERO, Duration::ZERO);
    for number in (devices.saturating_sub(RECOVERIES)..devices).rev() {
        let (subject, fact) = status(number, 0, (2, devices + number), "installed");
        let begun = Instant::now();
        apply(&mut fleet, &subject, fact);
        folded += begun.elapsed();
        shown += show(&fleet, 1);
    }
    let recoveries = RECOVERIES.min(devices) as u32;
    let (folded, shown) = (folded / recoveries, shown / recoveries);
    println!("newest first out of a view: {folded:.1?} a fact, shown in {shown:.1?}");
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

fn definition(number: usize) -> ViewDefinition {
    let by = ["site", "deployment", "label:l0", "label:l1"][number % 4];
    let count = ["standings", "devices"][number / 4 % 2];
    let text = json!({
        "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": format!("v{number:02}"), "groupBy": by,
        "count": count, "select": {"freshness": ["fresh", "stale"]},
    });
    decode::parse(text.to_string().as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn key(number: usize) -> DeviceKey {
    read(json!({"site": format!("s{}", number % 200), "device": format!("d{number}")}))
}

fn deployment(number: usize) -> DeploymentId {
    read(json!(format!("app-{number}")))
}

fn fleet(devices: usize, labels: usize) -> Fleet {
    let mut fleet = Fleet::default();
    let entry = |number: usize| {
        json!({
            "id": format!("app-{number}"), "name": "app", "applicationId": "app", "targetGeneration": 1,
            "digest": format!("sha256:{:064}", 0), "profile": {"type": "simulated", "components": [{"name": "main"}]},
        })
    };
    let wanted: DesiredState = read(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1, "issuedAt": "2026-01-01T00:00:00Z",
        "source": {"kind": "git", "revision": "c1"}, "deployments": (0..DEPLOYMENTS).map(entry).collect::<Vec<_>>(),
    }));
    for number in 0..devices {
        let mut wanted = wanted.clone();
        wanted.labels = (0..labels)
            .map(|at| (read(json!(format!("l{at}"))), read(json!(format!("v{}", number % (3 + 7 * at))))))
            .collect();
        apply(&mut fleet, &LedgerSubject::Desired(key(number)), Fact::Desired(wanted));
        let fresh: LivenessFact = read(json!({
            "apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh",
            "lastHeardAt": "2026-01-01T00:00:00Z", "epoch": 1, "head": 0,
        }));
        apply(&mut fleet, &LedgerSubject::Liveness(key(number)), Fact::Liveness(fresh));
    }
    fleet
}

/// Nanoseconds a status fact.
fn facts(fleet: &mut Fleet, devices: usize) -> f64 {
    let states = ["installing", "installed"];
    let facts: Vec<(LedgerSubject, Fact)> = (0..FACTS)
        .map(|number| {
            let (device, seq) = (number * 7919 % devices, number / devices + 1);
            status(device, number % DEPLOYMENTS, (seq, number), states[number / devices % 2])
        })
        .collect();
    let begun = Instant::now();
    for (subject, fact) in facts {
        apply(fleet, &subject, fact);
    }
    begun.elapsed().as_nanos() as f64 / FACTS as f64
}

/// The fact that a deployment on a device has a state, received at a second.
fn status(device: usize, number: usize, (seq, second): (usize, usize), state: &str) -> (LedgerSubject, Fact) {
    let id = deployment(number);
    let received_at = Timestamp::from_second(second as i64).unwrap_or_default();
    let fact: StatusFact = read(json!({
        "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": seq, "head": seq,
        "observedAt": "2026-01-01T00:00:00Z", "receivedAt": received_at, "deployment": id,
        "generation": 1, "digest": format!("sha256:{:064}", 0), "status": {"state": state},
        "components": [{"name": "main", "state": state}], "current": true,
    }));
    (LedgerSubject::Status(key(device), id), Fact::Status(fact))
}

fn apply(fleet: &mut Fleet, subject: &LedgerSubject, fact: Fact) {
    let ledger_seq = fleet.as_of().ledger_seq + 1;
    let stored_at = Timestamp::from_millisecond(ledger_seq as i64).unwrap_or_default();
    fleet.apply(Position { ledger_seq, stored_at }, subject, fact);
}

/// How long the slowest view takes to be shown.
fn show(fleet: &Fleet, views: usize) -> Duration {
    let names = (0..views).map(|number| format!("v{number:02}"));
    let time = |name: String| {
        let begun = Instant::now();
        std::hint::black_box(fleet.defined_view(&read(json!(name)))); // its digest is made without the fleet
        begun.elapsed()
    };
    names.map(time).max().unwrap_or_default()
}
