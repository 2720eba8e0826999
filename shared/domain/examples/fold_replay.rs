//! Replays facts through the parser and the fold, to count the instructions of a fact:
//! `valgrind --tool=callgrind target/release/examples/fold_replay [DEVICES [ROUNDS]]`. Each run does the same. The difference
//! between two numbers of rounds leaves out the start.
//!
//! It uses the system's allocator, because mimalloc does not run under valgrind. `fold_rate` measures time and memory.

// Its numbers go to standard output.
#![allow(clippy::print_stdout)]

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_domain::fold::{Fleet, Position};

const DEVICES: u64 = 100;
const ROUNDS: u64 = 20;

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (devices, rounds) = (args.next().unwrap_or(DEVICES), args.next().unwrap_or(ROUNDS));
    let mut messages: Vec<(String, String)> = (0..devices).map(desired).collect();
    messages.extend((0..devices).map(liveness));
    messages.extend((1..=rounds).flat_map(|seq| (0..devices).map(move |device| report(device, seq))));
    let (mut fleet, mut checked, mut applied) = (Fleet::default(), Checked::default(), 0);
    for (ledger_seq, (subject, body)) in (1..).zip(&messages) {
        let Ok((subject, fact)) = Fact::of_message(subject, body.as_bytes(), &mut checked) else { continue };
        fleet.apply(Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH }, &subject, fact);
        applied += 1;
    }
    println!("{} messages, {applied} applied, {} devices", messages.len(), fleet.devices_known());
}

fn name(device: u64) -> String {
    format!("site-{}.device-{device}", device % 20)
}

fn deployment(device: u64) -> String {
    format!("app-{}", device % 10)
}

fn entry(device: u64) -> serde_json::Value {
    let id = deployment(device);
    serde_json::json!({
        "id": id, "name": id, "applicationId": "com.example.app",
        "profile": {"type": "simulated", "components": [
            {"name": "web", "properties": {}}, {"name": "worker", "properties": {}}]},
    })
}

fn desired(device: u64) -> (String, String) {
    let mut entry = entry(device);
    entry["digest"] = Digest::of_value(&entry).to_string().into();
    entry["targetGeneration"] = 1.into();
    let body = serde_json::json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1,
        "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": "c1"}, "deployments": [entry],
    });
    (format!("muster.desired.{}", name(device)), body.to_string())
}

fn liveness(device: u64) -> (String, String) {
    let body = r#"{"apiVersion":"muster/v1","kind":"LivenessFact","state":"fresh","lastHeardAt":"2026-11-20T08:00:00Z","epoch":1,"head":0}"#;
    (format!("muster.liveness.{}", name(device)), body.to_owned())
}

/// A status fact whose deployment alternates between installing and installed.
fn report(device: u64, seq: u64) -> (String, String) {
    let state = if seq.is_multiple_of(2) { "installed" } else { "installing" };
    let (id, digest) = (deployment(device), Digest::of_bytes(b"app"));
    let body = format!(
        r#"{{"apiVersion":"muster/v1","kind":"StatusFact","epoch":1,"seq":{seq},"head":{seq},"observedAt":"2026-11-20T08:00:00.123456Z","deployment":"{id}","generation":1,"digest":"{digest}","status":{{"state":"{state}"}},"components":[{{"name":"web","state":"{state}"}},{{"name":"worker","state":"{state}"}}],"current":true,"receivedAt":"2026-11-20T08:00:00.223456Z","origin":"push","fidelity":"event"}}"#
    );
    (format!("muster.status.{}.{id}", name(device)), body)
}
