//! How long ingest takes to know again what LEDGER holds, by the number of devices. Run it by hand:
//! `cargo bench -p muster-tests --bench restore [-- DEVICES]`. Without `--bench` nothing is measured.

// Its numbers go to standard output.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench is run by hand and watched")]

use std::collections::BTreeMap;
use std::time::Instant;

use muster_bus::{Bus, Outgoing};
use muster_contract::Timestamp;
use muster_domain::intake::{IntakeState, Rules};
use muster_ingest::restore;
use muster_tests::bench::HubKind;
use muster_tests::server::Server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Devices, if nothing else is said.
const DEVICES: usize = 100_000;
/// Facts under way at once while LEDGER is filled.
const WINDOW: usize = 1024;

// As in muster-ingest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        return;
    }
    let devices = words.iter().find_map(|word| word.parse().ok()).unwrap_or(DEVICES);
    let server = Server::start();
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let facts = fill(&bus, devices).await;
    let begin = Instant::now();
    let intake = |partition| (partition, IntakeState::new(Rules::default(), Timestamp::now()));
    let intakes: BTreeMap<u16, IntakeState> = (0..16).map(intake).collect();
    let (intakes, restored) = restore::all(&bus, intakes, 0).await.unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(restored.facts, facts);
    assert_eq!(intakes.values().map(IntakeState::devices).sum::<usize>(), devices);
    println!("hub: {}", HubKind::Open);
    println!(
        "{devices} devices, {facts} facts: known again after {seconds:.1} s ({:.0} facts/s)",
        facts as f64 / seconds
    );
}

/// A capabilities, a status and a liveness fact of each device.
async fn fill(bus: &Bus, devices: usize) -> u64 {
    let mut window = bus.window(WINDOW);
    for at in 0..devices {
        for (room, more, fact) in facts() {
            let subject = format!("muster.{room}.site-{}.device-{at}{more}", at % 100);
            window.send(Outgoing::new(subject, fact.to_string()), ()).await;
            while let Some(((), answer)) = window.try_next() {
                answer.unwrap();
            }
        }
    }
    while let Some(((), answer)) = window.next().await {
        answer.unwrap();
    }
    3 * devices as u64
}

fn facts() -> [(&'static str, &'static str, Value); 3] {
    let time = "2026-01-01T00:00:00Z";
    let device = json!({
        "apiVersion": "muster/v1", "kind": "DeviceFact", "epoch": 1, "seq": 1, "head": 1, "observedAt": time,
        "receivedAt": time, "properties": {}, "agentVersion": "1",
    });
    let status = json!({
        "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": 2, "head": 2, "observedAt": time,
        "receivedAt": time, "deployment": "web", "generation": 1, "digest": format!("sha256:{}", "0".repeat(64)),
        "status": {"state": "installed"}, "components": [{"name": "main", "state": "installed"}], "current": true,
    });
    let liveness = json!({
        "apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh", "lastHeardAt": time, "epoch": 1, "head": 2,
        "account": {"received": 2, "coalesced": 0, "quarantined": 0},
    });
    [("device", "", device), ("status", ".web", status), ("liveness", "", liveness)]
}
