//! Tests LEDGER at its byte bound: it stays below the bound, stores every fact, and keeps the newest fact of each standing.

use muster_bus::StreamState;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::limits::LEDGER_INCIDENT_PERCENT;
use muster_tests::server::device;
use muster_tests::system::{PUBLISHER, ROLLUP};

use super::time::{desire, desired};
use super::*;

/// Bytes that LEDGER may hold here.
const BYTES: u64 = 11 * 1024 * 1024;
/// Devices that report many times, after as many that report once.
const LOUD: u64 = 25;
/// Reports of each of them.
const REPORTS: u64 = 1600;

/// Reports of each that fit into its share of UPLINK while ingest reads none.
const SHARE: u64 = 1000;
/// Parts in which they do.
const PARTS: u64 = 32;

/// A LEDGER with a small bound, an ingest and a rollup.
struct Small {
    hub: Hub,
    dir: TempDir,
    rollup: Child,
}

fn service(name: &str, hub: &Hub, dir: &TempDir, more: &[&str]) -> Child {
    let data = dir.path().join(name).display().to_string();
    let args = [&["--nats-url", &hub.url, "--data-dir", &data], more].concat();
    let spec = Spec {
        name: name.to_owned(),
        program: program(name),
        args: args.iter().map(ToString::to_string).collect(),
    };
    Child::start(spec, dir.path()).unwrap()
}

impl Small {
    async fn start() -> Self {
        let hub = Hub::start(&[]).await;
        hub.owns_all().await;
        edit(&hub.bus, stream::LEDGER, |config| config["max_bytes"] = json!(BYTES)).await;
        let dir = tempfile::tempdir().unwrap();
        let rollup = service(ROLLUP, &hub, &dir, &[]);
        Self { hub, dir, rollup }
    }
}

/// The devices that report once, early, and the devices that go on.
fn quiet(number: u64) -> DeviceKey {
    device(&format!("quiet-{number}"))
}

fn loud(number: u64) -> DeviceKey {
    device(&format!("loud-{number}"))
}

/// Every quiet device has a target and a report of it, and every loud device has a target.
async fn begin(hub: &Hub) {
    for number in 0..LOUD {
        for key in [quiet(number), loud(number)] {
            desire(hub, &key, &desired(1, &["web"], false)).await;
        }
        let failed = json!({"state": "failed", "error": {"code": "e", "message": "m"}});
        hub.send(&quiet(number), &with(status(1, 1, 1), "status", failed)).await;
    }
}

/// Loud devices report, each number once, one device after the other in turn. What a full share of UPLINK refuses is sent
/// again, as an outbox does.
async fn flood(hub: &Hub, from: u64, to: u64, head: u64) {
    for seq in from..=to {
        let sent = (0..LOUD).map(|number| async move {
            let report = status(1, seq, head).to_string();
            let message = || Outgoing::new(subjects::report(&loud(number)), report.clone());
            let publish = async || hub.bus.publish(message()).await.is_ok();
            until("UPLINK takes a report", publish, |taken| *taken).await;
        });
        futures_util::future::join_all(sent).await;
    }
}

async fn is_below_its_bound(hub: &Hub) {
    let state = hub.bus.stream_state(stream::LEDGER).await.unwrap();
    assert_eq!(state.bytes_max, Some(BYTES));
    assert!(state.bytes <= BYTES, "{} bytes", state.bytes);
}

/// The digest of every view of a rollup, and their position.
async fn digests(hub: &Hub) -> Option<(u64, Vec<String>)> {
    let asked = muster_simulator::hub::Hub::new(hub.bus.clone());
    let fleet = asked.fleet().await.ok()?;
    let views = asked.deployments().await.ok()?;
    let views = views.iter().map(|view| format!("{} {:?} {}", view.deployment, view.verdict, view.digest));
    Some((fleet.tally.as_of.ledger_seq, views.chain([fleet.tally.digest.to_string()]).collect()))
}

/// The views of a rollup that has read LEDGER to its end. Pulses may come after that: they change no view.
async fn settled_digests(hub: &Hub) -> Vec<String> {
    let end = async || {
        let (at, digests) = digests(hub).await?;
        let mut behind = hub.bus.replay(stream::LEDGER, &[], Start::After(at)).await.ok()?;
        while let Some(batch) = soon("LEDGER", behind.next_present(1000)).await.ok()? {
            let is_pulse =
                |subject: &str| matches!(LedgerSubject::parse(subject), Some(LedgerSubject::Hub(_)));
            if !batch.iter().all(|delivery| is_pulse(&delivery.subject)) {
                return None;
            }
        }
        Some(digests)
    };
    until("a rollup at LEDGER's end", end, Option::is_some).await.unwrap()
}

/// The highest number of each device that a status in LEDGER has.
async fn newest(hub: &Hub) -> BTreeMap<DeviceKey, u64> {
    let mut replay = hub.bus.replay(stream::LEDGER, &["muster.status.>"], Start::First).await.unwrap();
    let mut newest = BTreeMap::new();
    while let Some(batch) = soon("LEDGER", replay.next_present(1000)).await.unwrap() {
        for delivery in batch {
            let subject = LedgerSubject::parse(&delivery.subject).unwrap();
            let fact: StatusFact = parse(&delivery.payload).unwrap();
            let known = newest.entry(subject.device().unwrap().clone()).or_default();
            *known = fact.seq.get().max(*known);
        }
    }
    newest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_at_its_bound_takes_everything_and_keeps_the_newest_of_each() {
    let Small { hub, dir, rollup } = Small::start().await;
    begin(&hub).await;
    // Last, because it replaces an incident that others publish.
    let _publisher = service(PUBLISHER, &hub, &dir, &[]);
    until("every quiet device's status", async || newest(&hub).await.len(), |count| *count == LOUD as usize)
        .await;
    let first_end = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let incident = async || hub.bus.last(stream::LEDGER, "muster.incident._._").await.unwrap();
    // Such a small LEDGER discards the incident as well, so the test looks for it during the flood.
    let mut found = None;
    for part in 0..PARTS {
        flood(&hub, part * REPORTS / PARTS + 1, (part + 1) * REPORTS / PARTS, REPORTS).await;
        is_below_its_bound(&hub).await;
        found = found.or(incident().await);
    }
    let incident = match found {
        Some(incident) => incident,
        None => until("the incident", incident, Option::is_some).await.unwrap(),
    };
    let incident = parse::<Incident>(&incident.payload).unwrap().what;
    assert!(matches!(incident, IncidentKind::LedgerNearlyFull { bytes_max: BYTES, .. }), "{incident:?}");
    for number in 0..LOUD {
        hub.receipt_is(&loud(number), 1, REPORTS, "").await;
    }
    is_below_its_bound(&hub).await;
    let state = hub.bus.stream_state(stream::LEDGER).await.unwrap();
    assert!(state.first_seq > first_end, "LEDGER has discarded everything of the beginning: {state:?}");
    assert!(state.bytes * 100 >= BYTES * LEDGER_INCIDENT_PERCENT, "it was full: {state:?}");

    let live = settled_digests(&hub).await;
    let wanted = (0..LOUD).flat_map(|number| [(quiet(number), 1), (loud(number), REPORTS)]);
    assert_eq!(newest(&hub).await, wanted.collect(), "the newest status of each device");
    rollup.stop().await.unwrap();
    let data = tempfile::tempdir().unwrap();
    let anew = service(ROLLUP, &hub, &data, &[]);
    assert_eq!(settled_digests(&hub).await, live, "a rollup rebuilt from the window alone");
    let log = hub.log();
    assert!(log.contains("LEDGER is filling up") && !log.contains("the stream is full"), "{log}");
    drop(anew);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_wait_at_the_bound_until_the_publisher_publishes_again() {
    let Small { hub, dir, rollup: _rollup } = Small::start().await;
    begin(&hub).await;
    flood(&hub, 1, SHARE, SHARE).await;
    let waits = async || hub.log().contains("holding reports in UPLINK");
    until("ingest holds reports back", waits, |waits| *waits).await;
    let first = |ledger: &StreamState| ledger.first_seq;
    let document = LedgerSubject::Desired(quiet(0)).to_string();
    assert!(hub.bus.last(stream::LEDGER, &document).await.unwrap().is_some(), "no target is discarded");
    let before = first(&hub.bus.stream_state(stream::LEDGER).await.unwrap());
    let _publisher = service(PUBLISHER, &hub, &dir, &[]);
    for number in 0..LOUD {
        hub.receipt_is(&loud(number), 1, SHARE, "").await;
        for key in [quiet(number), loud(number)] {
            let document = LedgerSubject::Desired(key).to_string();
            assert!(hub.bus.last(stream::LEDGER, &document).await.unwrap().is_some(), "{document}");
        }
    }
    assert!(first(&hub.bus.stream_state(stream::LEDGER).await.unwrap()) > before);
    is_below_its_bound(&hub).await;
}
