//! Tests the ownership of a partition: a standby that takes over, two processes that both own it, and facts that come too late.

use std::time::Duration;

use muster_bus::{Bus, Outgoing, PublishErrorKind};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_ingest::TAKEN_WITHIN;
use muster_ingest::ledger_publisher::LedgerPublisher;
use muster_ingest::limits::FACTS_IN_FLIGHT;
use muster_ingest::ownership::{acquire, record};
use muster_simulator::child::{Child, Spec};
use muster_tests::server::{Server, device};
use muster_tests::wait::{soon, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crash::{everything_is_held_once, fleet, traffic};
use crate::{Hub, edit, status, with};

/// A second ingest for the same partitions.
pub(crate) fn second(hub: &Hub) -> Child {
    let spec = Spec { name: "second".to_owned(), ..hub.spec.clone() };
    Child::start(spec, hub.dir.path()).unwrap()
}

fn log_of(hub: &Hub, name: &str) -> String {
    std::fs::read_to_string(hub.dir.path().join(format!("logs/{name}.log"))).unwrap_or_default()
}

pub(crate) async fn stands_by(hub: &Hub, name: &str) {
    let log = || async { log_of(hub, name) };
    until("it stands by", log, |log| log.matches("standing by until").count() == 16).await;
}

/// Sends a signal to the owner of partition 0, by the process that its record names.
async fn signal_owner(hub: &Hub, signal: Signal) -> Pid {
    let record = record(&hub.bus, 0).await.unwrap().unwrap();
    let pid = record.owner.split('/').nth(1).and_then(|pid| Pid::from_raw(pid.parse().unwrap())).unwrap();
    kill_process(pid, signal).unwrap();
    pid
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_when_the_owner_is_killed() {
    let mut hub = Hub::start(&[]).await;
    hub.owns_all().await;
    hub.send(&device("first"), &status(1, 1, 1)).await;
    hub.statuses_are(&device("first"), 1).await;
    let _second = second(&hub);
    stands_by(&hub, "second").await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(10)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    hub.kill_ingest().await;
    let killed = Instant::now();
    let taken = || async {
        log_of(&hub, "second").matches("taking the partition: its owner does not answer").count()
    };
    until("it takes over", taken, |count| *count == 16).await;
    assert!(killed.elapsed() < TAKEN_WITHIN, "{:?}", killed.elapsed());
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stood_still_is_fenced_and_its_facts_are_refused() {
    // The bus recognises no message id: only the fence prevents a second copy.
    let mut hub = Hub::start(&[]).await;
    hub.owns_all().await;
    let _second = second(&hub);
    stands_by(&hub, "second").await;
    edit(&hub.bus, stream::LEDGER, |config| {
        config["duplicate_window"] = json!(Duration::from_millis(100).as_nanos() as u64);
    })
    .await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(5)));
    let seen = hub.bus.stream_state(stream::LEDGER).await.unwrap().messages;
    let some = || async { hub.bus.stream_state(stream::LEDGER).await.unwrap().messages };
    until("some facts", some, |count| *count > seen + 200).await;
    let first = hub.ingest.take().unwrap();
    let owner = signal_owner(&hub, Signal::STOP).await;
    let taken = || async {
        log_of(&hub, "second").matches("taking the partition: its owner does not answer").count()
    };
    until("the standby takes over", taken, |count| *count == 16).await;
    kill_process(owner, Signal::CONT).unwrap();
    let fenced = || async { log_of(&hub, "muster-ingest") };
    until("it learns of it", fenced, |log| {
        log.matches("another process has taken the partition").count() == 16
    })
    .await;
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    stands_by(&hub, "muster-ingest").await;
    first.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_start_at_once_share_no_partition_and_double_nothing() {
    let mut hub = Hub::start(&[]).await;
    hub.started(1).await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(5)));
    for _ in 0..2 {
        hub.kill_ingest().await;
        hub.start_ingest();
        let other = second(&hub);
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.kill().await.unwrap();
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
}

fn fact() -> Outgoing {
    let report = with(status(1, 1, 1), "kind", json!("StatusFact"));
    let report = with(report, "receivedAt", json!("2026-01-01T00:00:00Z"));
    let subject = LedgerSubject::Status(device("press-4"), "web".parse().unwrap());
    Outgoing::new(subject.to_string(), report.to_string())
}

/// The fence itself: LEDGER stores no fact of a partition that does not name the newest record's sequence.
#[tokio::test]
async fn ledger_refuses_a_fact_that_names_an_older_record_at_any_time() {
    let hub = Hub::start(&["--partitions", "15"]).await;
    let now = muster_contract::Timestamp::now();
    let mut old = acquire(&hub.bus, 3, "old", None, now).await.unwrap();
    hub.bus.publish(old.stamp(fact())).await.unwrap();
    let before = record(&hub.bus, 3).await.unwrap().unwrap();
    assert_eq!((before.owner.as_str(), before.seq), ("old", old.seq()));
    // One of two processes that read the same record is too late.
    let mut new = acquire(&hub.bus, 3, "new", Some(&before), now).await.unwrap();
    let late = acquire(&hub.bus, 3, "late", Some(&before), now).await.unwrap_err();
    assert!(late.to_string().contains("another process has taken"), "{late}");
    let refused = hub.bus.publish(old.stamp(fact())).await.unwrap_err();
    assert_eq!(refused.kind, PublishErrorKind::Conflict, "{refused}");
    hub.bus.publish(new.stamp(fact())).await.unwrap();
    assert_eq!(hub.statuses(&device("press-4")).await.len(), 2);
}

/// A LEDGER to which only the test writes.
async fn ledger() -> (Server, Bus) {
    let (server, stop) = (Server::start(), CancellationToken::new());
    let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
    soon("the topology", bus.converge()).await.unwrap();
    (server, bus)
}

async fn ledger_end(bus: &Bus) -> u64 {
    bus.stream_state(stream::LEDGER).await.unwrap().last_seq
}

/// The fence holds within a run: the run ends where another process has taken the partition.
#[tokio::test]
async fn a_run_stores_nothing_behind_the_record_of_a_new_owner() {
    const BEFORE: usize = 100;
    let (_server, bus) = ledger().await;
    let now = muster_contract::Timestamp::now();
    let mut old = acquire(&bus, 3, "old", None, now).await.unwrap();
    let mut window = bus.window(2 * BEFORE);
    window.batch_by(10).await;
    for at in 0..BEFORE {
        window.send(old.stamp(fact()), at).await;
    }
    let before = record(&bus, 3).await.unwrap().unwrap();
    let first_part = before.seq + BEFORE as u64;
    until("the first part", || ledger_end(&bus), |end| *end == first_part).await;
    let new = acquire(&bus, 3, "new", Some(&before), now).await.unwrap();
    for at in BEFORE..2 * BEFORE {
        window.send(old.stamp(fact()), at).await;
    }
    window.end_batch().await;
    while let Some((at, answer)) = soon("an answer", window.next()).await {
        let kind = answer.map_err(|error| error.kind).err();
        match at {
            0..BEFORE => assert_eq!(kind, None, "{at}"),
            BEFORE => assert_eq!(kind, Some(PublishErrorKind::Conflict)),
            _ => assert_eq!(kind, Some(PublishErrorKind::Transient), "{at}"),
        }
    }
    assert_eq!(ledger_end(&bus).await, new.position());
}

/// The publisher knows how far LEDGER reaches at the end of a run.
#[tokio::test]
async fn the_end_of_a_run_shows_how_far_ledger_reaches() {
    let (_server, bus) = ledger().await;
    let claimed = acquire(&bus, 3, "test", None, muster_contract::Timestamp::now()).await.unwrap();
    let mut publisher = LedgerPublisher::new(&bus, claimed);
    // Few, and as many as end with a shared confirmation or between two of them.
    for facts in [3, 64, 1_000, 4 * FACTS_IN_FLIGHT, 999] {
        if facts > 3 {
            publisher.start_run().await;
        }
        for _ in 0..facts {
            publisher.send(fact()).await;
        }
        publisher.end_run().await;
        let mut reached = 0;
        while let Some(answer) = soon("a confirmation", publisher.answer()).await {
            reached = answer.unwrap().sequence.max(reached);
        }
        assert_eq!(reached, ledger_end(&bus).await, "{facts} facts");
    }
}
