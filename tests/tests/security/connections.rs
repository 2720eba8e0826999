//! Connections of one key: the server lets all of them in, and the watcher ends the oldest above the bound.

use std::path::Path;

use muster_bus::{Bus, BusConfig, Connection, Link, Outgoing};
use muster_contract::decode::parse;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::limits::{CONNECTIONS_ENFORCED_WITHIN, CONNECTIONS_PER_KEY_MAX};
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::system::INGEST;
use muster_tests::wait::{soon, until};
use tokio::time::{Instant, timeout};

use crate::fleet::start_service;
use crate::{connect, ingest};

/// Connections that one credential opens at once.
const MANY: usize = 40;

/// A connection of the test's own by the watcher's credentials.
async fn system_bus(hub: &Guarded) -> Bus {
    let creds = hub.auth().join("creds/watcher.creds");
    connect(BusConfig { creds: Some(creds), ..BusConfig::service(hub.url(), "test") }).await
}

async fn open_of(system: &Bus, name: &str) -> Vec<Connection> {
    let all = soon("the connections", system.connections()).await.unwrap();
    all.into_iter().filter(|connection| connection.name == name).collect()
}

fn open_many(hub: &Guarded, creds: &Path) -> Vec<Raw> {
    (0..MANY).map(|_| Raw::connect(hub.server.port(), creds).unwrap()).collect()
}

fn watched(hub: &Guarded) -> muster_simulator::child::Child {
    let creds = hub.auth().join("creds/watcher.creds").display().to_string();
    start_service(hub, Role::Ingest, INGEST, &["--system-creds", &creds])
}

async fn incident_of(bus: &Bus, subject: &str) -> IncidentKind {
    let last = async || soon("LEDGER", bus.last(stream::LEDGER, subject)).await.unwrap();
    let delivery = until("the incident", last, Option::is_some).await.unwrap();
    parse::<Incident>(&delivery.payload).unwrap().what
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_connection_of_a_key_ends_the_oldest_and_disturbs_no_other() {
    let hub = Guarded::start_plain();
    let (bus, system) = (ingest(&hub).await, system_bus(&hub).await);
    let _ingest = watched(&hub);
    let greedy = device("greedy");
    let creds = hub.enroll(&greedy, "1h");
    let good: Vec<_> = ["one", "two", "three"].map(device).into();
    let mut links = Vec::new();
    for key in &good {
        hub.enroll(key, "1h");
        links.push(connect(hub.device_config(key)).await);
    }
    let listening = async || open_of(&system, "ingest").await.len();
    until("ingest and its watcher are there", listening, |count| *count >= 2).await;

    let _held = open_many(&hub, &creds);
    let began = Instant::now();
    let count = async || open_of(&system, "plant7/greedy").await.len();
    let enforced = timeout(
        CONNECTIONS_ENFORCED_WITHIN,
        until("the bound", count, |open| *open == CONNECTIONS_PER_KEY_MAX),
    );
    enforced.await.expect("the bound holds within the stated time");
    println!("{MANY} connections of one key: {CONNECTIONS_PER_KEY_MAX} left after {:?}", began.elapsed());

    let found = incident_of(&bus, &LedgerSubject::Incident(Some(greedy)).to_string()).await;
    let IncidentKind::ConnectionsExceeded { name, limit, disconnected, .. } = found else {
        panic!("{found:?}")
    };
    assert_eq!((name.as_str(), limit), ("plant7/greedy", CONNECTIONS_PER_KEY_MAX as u64));
    // On a slow machine some come after the first incident, and count for the next one.
    assert!((1..=(MANY - CONNECTIONS_PER_KEY_MAX) as u64).contains(&disconnected), "{disconnected}");
    for (key, device) in good.iter().zip(&links) {
        soon("UPLINK", device.publish(Outgoing::new(subjects::report(key), "{}"))).await.unwrap();
        assert_eq!(*device.link().borrow(), Link::Up { since_count: 1 }, "{key} was disturbed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_older_than_the_watcher_are_found_and_replicas_stay() {
    let hub = Guarded::start_plain();
    let (bus, system) = (ingest(&hub).await, system_bus(&hub).await);
    let replicas: Vec<_> =
        (0..8).map(|_| Raw::connect(hub.server.port(), &hub.creds(Role::Rollup)).unwrap()).collect();
    let _held = open_many(&hub, &hub.creds(Role::Viewer));
    assert_eq!(open_of(&system, "viewer").await.len(), MANY, "the server holds no bound of a key");
    let _ingest = watched(&hub);
    let count = async || open_of(&system, "viewer").await.len();
    until("the bound", count, |open| *open == CONNECTIONS_PER_KEY_MAX).await;
    let found = incident_of(&bus, &LedgerSubject::Incident(None).to_string()).await;
    let wanted = (MANY as u64, (MANY - CONNECTIONS_PER_KEY_MAX) as u64);
    assert!(
        matches!(found, IncidentKind::ConnectionsExceeded { connections, disconnected, .. } if (connections, disconnected) == wanted),
        "{found:?}"
    );
    assert_eq!(open_of(&system, "rollup").await.len(), replicas.len());
}
