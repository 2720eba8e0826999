//! A LEDGER for benches: a fleet in which every device has a desired state of three deployments and is heard, and then reports
//! each of them round by round. It is written past ingest, as facts that carry what ingest's do.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::Bus;
use muster_bus::event::Trace;
use muster_contract::canonical::Digest;
use muster_contract::subjects::stream;
use serde_json::{Value, json};

use crate::envelope::{Carry, Fence};

/// Deployments of each device.
pub const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
/// Devices of a site.
pub const DEVICES_PER_SITE: usize = 250;
/// Messages under way at once.
const WINDOW: usize = 1024;
/// Messages of a run with one answer.
const RUN_ANSWER: usize = WINDOW / 4;

/// A message: its subject and its body.
pub type Message = (String, String);

/// `SITE.DEVICE`, as subjects have it.
pub fn name(device: usize) -> String {
    format!("site-{}.device-{device}", device / DEVICES_PER_SITE)
}

/// The subjects of what a device shall run, and of that it is heard.
pub fn beginning_subjects(device: usize) -> [String; 2] {
    ["desired", "liveness"].map(|room| format!("muster.{room}.{}", name(device)))
}

/// The subject of what a device reports of a deployment.
pub fn status_subject(device: usize, deployment: &str) -> String {
    format!("muster.status.{}.{deployment}", name(device))
}

/// The facts that a device has a desired state and is heard.
pub fn beginning(device: usize) -> [Message; 2] {
    let liveness = json!({"apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh",
        "lastHeardAt": "2026-11-20T08:00:00Z", "epoch": 1, "head": 0});
    let [of_desired, of_liveness] = beginning_subjects(device);
    [(of_desired, desired().to_string()), (of_liveness, liveness.to_string())]
}

/// The reports of a device in a round, counted from 1: first `installing`, then `installed`, and so on in turn.
pub fn reports(device: usize, round: u64) -> [Message; DEPLOYMENTS.len()] {
    let mut place = 0;
    DEPLOYMENTS.map(|id| {
        place += 1;
        let seq = (round - 1) * DEPLOYMENTS.len() as u64 + place;
        (status_subject(device, id), status(id, round, seq).to_string())
    })
}

/// Writes the beginning of all devices and so many rounds of reports, and waits until LEDGER has everything; where it ends.
///
/// # Panics
/// The server does not store.
pub async fn fill(bus: &Bus, devices: usize, rounds: u64) -> u64 {
    let before = bus.stream_state(stream::LEDGER).await.map_or(0, |ledger| ledger.last_seq);
    send(bus, Carry::Everything, None, (0..devices).flat_map(beginning)).await;
    for round in 1..=rounds {
        publish_facts(bus, Carry::Everything, (0..devices).flat_map(|device| reports(device, round))).await;
    }
    let facts = devices as u64 * (2 + rounds * DEPLOYMENTS.len() as u64);
    reach(bus, before + facts).await
}

/// Publishes documents pipelined and waits until all are stored.
///
/// # Panics
/// The server does not store.
pub async fn publish(bus: &Bus, messages: impl IntoIterator<Item = Message>) {
    send(bus, Carry::Document, None, messages).await;
}

/// The same of facts alone, in one long run, and with what messages carry besides.
///
/// # Panics
/// The server does not store.
pub async fn publish_facts(bus: &Bus, carry: Carry, facts: impl IntoIterator<Item = Message>) {
    send(bus, carry, Some(RUN_ANSWER), facts).await;
}

async fn send(bus: &Bus, carry: Carry, run: Option<usize>, messages: impl IntoIterator<Item = Message>) {
    // Nobody has taken the partition of the fence: LEDGER takes what names no record.
    let (mut window, mut chance, fence) = (bus.window(WINDOW), Rng::new(), Fence::of(0, 0));
    if let Some(answer) = run {
        window.batch_by(answer).await;
    }
    for (subject, body) in messages {
        let trace = Trace::sample(&mut chance);
        window.send(carry.fact(subject, body, (&fence, trace), &mut chance), ()).await;
        while let Some((_, stored)) = window.try_next() {
            stored.expect("a local server stores");
        }
    }
    window.end_batch().await;
    while let Some((_, stored)) = window.next().await {
        stored.expect("a local server stores");
    }
}

/// Desired states come by way of DOWNLINK: waits until LEDGER has them too.
async fn reach(bus: &Bus, wanted: u64) -> u64 {
    loop {
        let ledger = bus.stream_state(stream::LEDGER).await.expect("there is a LEDGER");
        if ledger.last_seq >= wanted {
            return ledger.last_seq;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn status(id: &str, round: u64, seq: u64) -> Value {
    let state = if round.is_multiple_of(2) { "installed" } else { "installing" };
    json!({
        "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": seq, "head": seq,
        "observedAt": "2026-11-20T08:00:00.123456Z", "receivedAt": "2026-11-20T08:00:00.223456Z", "deployment": id,
        "generation": 1, "digest": Digest::of_bytes(id.as_bytes()).to_string(), "status": {"state": state},
        "components": [{"name": "main", "state": state}, {"name": "side", "state": state}], "current": true,
    })
}

fn desired() -> Value {
    let entries = DEPLOYMENTS.map(|id| {
        let mut entry = json!({
            "id": id, "name": id, "applicationId": "com.example.app",
            "profile": {"type": "simulated", "components": [
                {"name": "main", "properties": {}}, {"name": "side", "properties": {}}]},
        });
        entry["digest"] = Digest::of_value(&entry).to_string().into();
        entry["targetGeneration"] = 1.into();
        entry
    });
    json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1, "issuedAt": "2026-11-20T08:00:00Z",
        "source": {"kind": "git", "revision": "c1"}, "deployments": entries,
    })
}
