//! Tests ingest on three servers with replicated streams: leaders are killed in mid-traffic, and the fences hold.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Bus, BusConfig, Outgoing, Stored, TopologyError};
use muster_contract::Timestamp;
use muster_contract::subjects::{LedgerSubject, ViewKey, stream};
use muster_ingest::ownership::{FencingToken, acquire, record};
use muster_simulator::child::{Child, Spec};
use muster_simulator::ledger::Rebuild;
use muster_tests::cluster::{Cluster, ELECTION_DEADLINE, SERVERS, leader, whole};
use muster_tests::server::{Server, device};
use muster_tests::system::{ROLLUP, program};
use muster_tests::wait::{until, within};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::crash::{everything_is_held_once, fleet, traffic};
use crate::{Hub, status, with};

/// Time between two rounds of the fleet: the traffic outlasts all elections.
const PACE: Duration = Duration::from_millis(150);
/// Facts that must be stored between two kills.
const PROGRESS: u64 = 150;
/// Times a partition is taken while its former owner writes as fast as it can.
const TAKEOVERS: usize = 12;
const REPLICAS: &str = "3";

/// A hub on a cluster.
async fn start() -> (Cluster, Hub) {
    let cluster = Cluster::start();
    let hub = Hub::at(cluster.config("devices"), cluster.url(), &["--replicas", REPLICAS]).await;
    (cluster, hub)
}

async fn ledger_grows(hub: &Hub, by: u64) {
    let count = || async { hub.bus.stream_state(stream::LEDGER).await.map_or(0, |state| state.messages) };
    let before = within(ELECTION_DEADLINE, "LEDGER answers", count, |count| *count > 0).await;
    within(ELECTION_DEADLINE, "traffic goes on", count, |count| *count >= before + by).await;
}

/// Kills the leader of something, lets traffic go on without it, and has it back with all it missed.
async fn lose_leader(cluster: &mut Cluster, hub: &Hub, asset: &str) {
    let name = leader(&hub.bus, asset).await;
    cluster.kill(&name);
    ledger_grows(hub, PROGRESS).await;
    cluster.restart(&name);
    for asset in [stream::LEDGER, stream::UPLINK, stream::DOWNLINK, asset] {
        whole(&hub.bus, asset).await;
    }
}

/// The views that a rollup shows are those of LEDGER, digest for digest.
async fn views_are_those_of_ledger(hub: &Hub) {
    let look = || async {
        let mut rebuild = Rebuild::default();
        hub.ledger().await.into_iter().for_each(|entry| rebuild.apply(entry));
        let wanted = rebuild.digests();
        let mut shown = BTreeMap::new();
        for key in wanted.keys() {
            shown.extend(digest(&hub.bus, key).await.map(|digest| (key.clone(), digest)));
        }
        (wanted, shown)
    };
    let seen =
        within(ELECTION_DEADLINE, "the views of LEDGER", look, |(wanted, shown)| wanted == shown).await;
    assert!(!seen.0.is_empty(), "there is something to compare");
}

async fn digest(bus: &Bus, key: &ViewKey) -> Option<muster_contract::canonical::Digest> {
    let value = bus.view_get(&key.to_string()).await.ok()??.value?;
    serde_json::from_slice::<Value>(&value).ok()?["digest"].as_str()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_when_leaders_are_killed_in_mid_traffic() {
    let (mut cluster, hub) = start().await;
    let data = hub.dir.path().join("rollup").display().to_string();
    let url = hub.url.clone();
    let args = ["--nats-url", &url, "--replicas", REPLICAS, "--data-dir", &data].map(str::to_owned).to_vec();
    let rollup = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    let mut rollup = Child::start(rollup, hub.dir.path()).unwrap();
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), PACE));
    let consumer = format!("UPLINK.ingest-{}", muster_contract::partition::partition_of(&fleet()[0]));
    for asset in [stream::LEDGER, stream::UPLINK, &consumer] {
        lose_leader(&mut cluster, &hub, asset).await;
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    views_are_those_of_ledger(&hub).await;
    rollup.expect_running().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_on_a_cluster_and_doubles_nothing() {
    let (_cluster, mut hub) = start().await;
    hub.owns_all().await;
    let spec = Spec { name: "second".to_owned(), ..hub.spec.clone() };
    let second = Child::start(spec, hub.dir.path()).unwrap();
    let log = || async { std::fs::read_to_string(second.log()).unwrap_or_default() };
    until("it stands by", log, |log| log.matches("standing by until").count() == 16).await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(10)));
    ledger_grows(&hub, PROGRESS).await;
    hub.kill_ingest().await;
    until("it takes over", log, |log| {
        log.matches("taking the partition: its owner does not answer").count() == 16
    })
    .await;
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
}

/// A former owner that goes on writing; returns the sequences of its stored facts.
async fn write_on(bus: Bus, mut old: FencingToken, stop: CancellationToken) -> Vec<u64> {
    let mut window = bus.window(128);
    let mut stored = Vec::new();
    let mut note =
        |answer: Result<Stored, _>| stored.extend(answer.ok().map(|stored: Stored| stored.sequence));
    while !stop.is_cancelled() {
        for _ in 0..64 {
            let report = with(status(1, 1, 1), "kind", json!("StatusFact"));
            let report = with(report, "receivedAt", json!("2026-01-01T00:00:00Z"));
            let subject = LedgerSubject::Status(device("press-4"), "web".parse().unwrap());
            window.send(old.stamp(Outgoing::new(subject.to_string(), report.to_string())), ()).await;
        }
        while let Some(((), answer)) = window.try_next() {
            note(answer);
        }
        tokio::task::yield_now().await;
    }
    while let Some(((), answer)) = window.next().await {
        note(answer);
    }
    stored
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_a_former_owner_lie_before_the_end_that_the_new_one_reads() {
    let cluster = Cluster::start();
    let bus = Bus::connect(cluster.config("test"), &CancellationToken::new()).await.unwrap();
    within(ELECTION_DEADLINE, "the topology", || bus.converge_streams(), Result::is_ok).await.unwrap();
    let now = Timestamp::now();
    let mut owner = acquire(&bus, 3, "owner-0", None, now).await.unwrap();
    let mut written = 0;
    for at in 1..=TAKEOVERS {
        let stop = CancellationToken::new();
        let old = tokio::spawn(write_on(bus.clone(), owner, stop.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        owner = loop {
            let before = record(&bus, 3).await.unwrap();
            // Fence 0 may be busy with a fact of the other owner.
            match acquire(&bus, 3, &format!("owner-{at}"), before.as_ref(), now).await {
                Ok(token) => break token,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.cancel();
        let stored = old.await.unwrap();
        let last = stored.iter().max().copied().unwrap_or(0);
        assert!(last < owner.position(), "takeover {at}: {last} came after {}", owner.position());
        written += stored.len();
    }
    assert!(written > TAKEOVERS * 128, "the former owners wrote {written} facts");
}

#[tokio::test]
async fn streams_have_as_many_copies_as_they_were_made_with() {
    let cluster = Cluster::start();
    let once = BusConfig { replicas: 1, ..cluster.config("once") };
    let alone = Bus::connect(once, &CancellationToken::new()).await.unwrap();
    within(
        ELECTION_DEADLINE,
        "a JetStream leader",
        || alone.stream_state("none"),
        |state| state.as_ref().is_err_and(|error| error.to_string().contains("none")),
    )
    .await
    .unwrap_err();
    alone.converge().await.unwrap();
    let copies = |bus: &Bus| {
        let bus = bus.clone();
        async move { bus.stream_state(stream::LEDGER).await.unwrap().replicas }
    };
    // An ingest with another setting keeps the existing streams.
    let bus = Bus::connect(cluster.config("test"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    assert_eq!(copies(&bus).await, 1);
    for name in [stream::LEDGER, stream::UPLINK] {
        bus.request(&format!("$JS.API.STREAM.DELETE.{name}"), "".into(), Duration::from_secs(5))
            .await
            .unwrap();
    }
    bus.converge().await.unwrap();
    assert_eq!(copies(&bus).await, SERVERS);
    whole(&bus, "UPLINK.ingest-0").await;
}

#[tokio::test]
async fn more_copies_than_servers_are_refused_with_what_to_do() {
    let server = Server::start();
    let config = BusConfig { replicas: 3, ..server.config("test") };
    let bus = Bus::connect(config, &CancellationToken::new()).await.unwrap();
    let refused = bus.converge().await.unwrap_err();
    assert!(matches!(refused, TopologyError::NoCluster { .. }), "{refused:?}");
    assert!(refused.to_string().contains("--replicas 1"), "{refused}");
}
