//! Tests kill -9 of ingest and of the server in mid-traffic, and a drain under load: no report is lost or stored twice.

use std::time::Duration;

use muster_bus::{Bus, Outgoing};
use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_contract::subjects::{self, stream};
use muster_tests::server::device;
use muster_tests::system::{DEADLINE, numbers};
use muster_tests::wait::{until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Hub, held, status, with};

const DEVICES: u64 = 24;
const REPORTS: u64 = 150;

pub(crate) fn fleet() -> Vec<DeviceKey> {
    (0..DEVICES).map(|at| device(&format!("press-{at}"))).collect()
}

/// The report of a number: some cannot be parsed.
fn report(seq: u64) -> Value {
    let report = with(status(1, seq, REPORTS), "observedAt", json!("2026-01-01T00:00:00Z"));
    let poison = with(report.clone(), "generation", json!("?"));
    if seq % 50 == 7 { poison } else { report }
}

/// Sends again the reports that the newest receipt of a device lists as missing, as its outbox does.
async fn send_missing(hub: &Hub, key: &DeviceKey) {
    hub.beat(key, 1, REPORTS).await;
    let missing = hub.receipt(key).await.map(|receipt| receipt.missing).unwrap_or_default();
    for seq in missing.iter().flat_map(|(from, to)| from..=to) {
        hub.send(key, &report(seq)).await;
    }
}

/// Sends every report of a fleet as outboxes do: in order, pipelined, again until UPLINK has it.
pub(crate) async fn traffic(bus: Bus, fleet: Vec<DeviceKey>, pace: Duration) {
    for seq in 1..=REPORTS {
        let mut open: Vec<&DeviceKey> = fleet.iter().collect();
        while !open.is_empty() {
            let mut window = bus.window(64);
            for key in std::mem::take(&mut open) {
                window.send(Outgoing::new(subjects::report(key), report(seq).to_string()), key).await;
            }
            while let Some((key, answer)) = window.next().await {
                if answer.is_err() {
                    open.push(key);
                }
            }
            if !open.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        tokio::time::sleep(pace).await;
    }
}

/// Waits until LEDGER holds every number of every device; panics if it holds one twice.
pub(crate) async fn everything_is_held_once(hub: &Hub, fleet: &[DeviceKey]) {
    let wanted: Vec<u64> = (1..=REPORTS).collect();
    let lacking = || async {
        let held = held(&hub.ledger().await);
        let lacks = |key: &&DeviceKey| held.get(*key) != Some(&wanted);
        // QUARANTINE may not have answered while it had no leader.
        for key in fleet.iter().filter(lacks) {
            send_missing(hub, key).await;
        }
        fleet
            .iter()
            .filter(lacks)
            .map(|key| (key.to_string(), held.get(key).map_or(0, Vec::len)))
            .collect::<Vec<_>>()
    };
    within(DEADLINE, "every number in LEDGER, each once", lacking, Vec::is_empty).await;
    numbers(&hub.ledger().await);
    // The last receipt may be lost with the process that owed it; the next heartbeat brings another.
    for key in fleet {
        hub.beat(key, 1, REPORTS).await;
        hub.receipt_is(key, 1, REPORTS, "").await;
    }
}

async fn everything_is_acknowledged(hub: &Hub) {
    let pending =
        || async { hub.bus.partition_floors().await.unwrap().iter().map(|floor| floor.pending).sum::<u64>() };
    until("UPLINK is acknowledged", pending, |pending| *pending == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_when_ingest_is_killed_in_mid_traffic() {
    let mut hub = Hub::start(&[]).await;
    // As fast as possible: whenever ingest dies, many facts are in flight.
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::ZERO));
    for at in 1..=5 {
        let arrived = || async { hub.bus.stream_state(stream::LEDGER).await.unwrap().messages };
        until("some facts", arrived, |count| *count >= at * DEVICES * 8).await;
        hub.kill_ingest().await;
        hub.start_ingest();
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    everything_is_acknowledged(&hub).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_when_the_server_is_killed_in_mid_traffic() {
    let mut hub = Hub::start(&[]).await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(5)));
    for at in 1..=4 {
        let arrived =
            || async { hub.bus.stream_state(stream::LEDGER).await.map_or(0, |state| state.messages) };
        until("some facts", arrived, |count| *count >= at * DEVICES * 8).await;
        hub.server().kill();
        hub.server().restart();
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    everything_is_acknowledged(&hub).await;
    let stale = |fact| if let Fact::Liveness(fact) = fact { Some(fact.state) } else { None };
    let told = hub.facts(&fleet()[0], stale).await;
    assert!(told.iter().all(|state| *state == muster_contract::fact::Liveness::Fresh), "{told:?}");
}

pub(crate) async fn get(path: &str, port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: ingest\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn it_is_ready_once_it_has_read_ledger_and_receives_reports() {
    let port = fastrand::u16(32_000..32_700);
    let mut hub = Hub::start(&["--http-addr", &format!("127.0.0.1:{port}")]).await;
    let ready = || async { get("/ready", port).await.unwrap_or_default() };
    until("it is ready", ready, |answer| answer.starts_with("HTTP/1.1 200")).await;
    hub.kill_ingest().await;
    hub.server().stop();
    hub.start_ingest();
    let waiting = until("it answers", ready, |answer| answer.starts_with("HTTP/1.1 503")).await;
    assert!(waiting.contains("reading LEDGER"), "{waiting}");
    hub.server().restart();
    until("it is ready again", ready, |answer| answer.starts_with("HTTP/1.1 200")).await;
    hub.send(&device("press-4"), &status(1, 1, 1)).await;
    hub.statuses_are(&device("press-4"), 1).await;
    let counted = || async { get("/metrics", port).await.unwrap_or_default() };
    until("it is counted", counted, |text| text.contains("muster_ingest_reports_total{outcome=\"new\"} 1"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_under_load_settles_every_received_report() {
    let mut hub = Hub::start(&[]).await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(5)));
    for at in 1..=3 {
        let arrived = || async { hub.bus.stream_state(stream::LEDGER).await.unwrap().messages };
        until("some facts", arrived, |count| *count >= at * DEVICES * 10).await;
        hub.started(at as usize).await;
        let ended = hub.stop_ingest().await;
        assert!(ended.success(), "{ended}\n{}", hub.log());
        hub.start_ingest();
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    let log = hub.log();
    assert!(!log.contains("did not end in time"), "{log}");
    assert!(!log.contains("stopping with unconfirmed facts"), "{log}");
}
