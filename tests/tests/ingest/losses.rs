//! Tests the loss of what ingest uses: its consumers, its input streams, the message ids that the bus remembers.

use std::time::Duration;

use muster_bus::{Outgoing, PublishErrorKind};
use muster_contract::limits::DUPLICATE_WINDOW;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{self, stream};
use muster_tests::server::device;
use muster_tests::wait::{until, within};
use serde_json::json;

use crate::crash::{everything_is_held_once, fleet, traffic};
use crate::{Hub, edit, status, with};

const ANSWER: Duration = Duration::from_secs(5);
/// How long the check of the input streams and the readers' pauses may take together.
const MADE_AGAIN: Duration = Duration::from_secs(60);

pub(crate) async fn delete(hub: &Hub, what: &str) {
    hub.bus.request(&format!("$JS.API.{what}"), "".into(), ANSWER).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_consumers_are_created_again_and_nothing_is_lost_or_doubled() {
    let hub = Hub::start(&[]).await;
    hub.started(1).await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::from_millis(20)));
    let mut partitions: Vec<u16> = fleet().iter().map(partition_of).collect();
    partitions.sort_unstable();
    partitions.dedup();
    for partition in partitions {
        delete(&hub, &format!("CONSUMER.DELETE.UPLINK.ingest-{partition}")).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
    let floors = || async { hub.bus.partition_floors().await.unwrap() };
    until("every partition has its consumer, and it is done", floors, |floors| {
        floors.len() == 16 && floors.iter().all(|floor| floor.pending == 0)
    })
    .await;
    hub.bus.converge().await.expect("they are the contract's");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_input_streams_are_created_again_without_a_restart() {
    let hub = Hub::start(&["--lease", "4s"]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 2)).await;
    hub.receipt_is(&key, 1, 1, "").await;
    for name in [stream::UPLINK, stream::PRESENCE] {
        delete(&hub, &format!("STREAM.DELETE.{name}")).await;
    }
    let report = || Outgoing::new(subjects::report(&key), status(1, 2, 2).to_string());
    let refused = hub.bus.publish(report()).await.unwrap_err();
    assert_eq!(refused.kind, PublishErrorKind::Transient, "an outbox keeps it: {refused}");
    let sent = || async { hub.bus.publish(report()).await.is_ok() };
    within(MADE_AGAIN, "UPLINK takes reports again", sent, |sent| *sent).await;
    let statuses = || hub.statuses(&key);
    within(MADE_AGAIN, "the report is a fact", statuses, |found| found.len() == 2).await;
    let beaten = || async {
        hub.beat(&key, 1, 2).await;
        hub.liveness(&key).await
    };
    let fresh = |told: &Vec<_>| told.last() == Some(&muster_contract::fact::Liveness::Fresh);
    within(MADE_AGAIN, "its heart is heard", beaten, fresh).await;
    hub.receipt_is(&key, 1, 2, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ledger_fills_uplink_and_senders_keep_the_rest() {
    let hub = Hub::start(&[]).await;
    hub.send(&device("first"), &status(1, 1, 1)).await;
    hub.statuses_are(&device("first"), 1).await;
    // A hundredth of the bytes that will be sent.
    edit(&hub.bus, stream::UPLINK, |config| config["max_bytes"] = json!(64 * 1024)).await;
    edit(&hub.bus, stream::LEDGER, |config| {
        // Otherwise LEDGER would discard the facts that this test counts.
        config["discard"] = json!("new");
        config["max_msgs"] = json!(1);
    })
    .await;
    let sending = tokio::spawn(traffic(hub.bus.clone(), fleet(), Duration::ZERO));
    let probe = || Outgoing::new(subjects::report(&device("first")), status(1, 1, 1).to_string());
    let refused = || async { hub.bus.publish(probe()).await.err() };
    let full = until("UPLINK is full", refused, Option::is_some).await.unwrap();
    assert_eq!(full.kind, PublishErrorKind::Transient, "{full}");
    let facts = hub.bus.stream_state(stream::LEDGER).await.unwrap().messages;
    assert!(facts < 100, "LEDGER takes nothing: {facts}");
    edit(&hub.bus, stream::LEDGER, |config| config["max_msgs"] = json!(-1)).await;
    // Acknowledged reports make room at once.
    within(Duration::from_secs(300), "everything is sent", || async { sending.is_finished() }, |done| *done)
        .await;
    sending.await.unwrap();
    everything_is_held_once(&hub, &fleet()).await;
}

#[tokio::test]
async fn a_report_repeated_after_the_duplicate_window_is_one_fact() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    let window = Duration::from_millis(100);
    let remember = async |hub: &Hub, window: Duration| {
        let nanos = window.as_nanos() as u64;
        edit(&hub.bus, stream::LEDGER, |config| config["duplicate_window"] = json!(nanos)).await;
    };
    hub.started(1).await;
    remember(&hub, window).await;
    let report = |seq: u64| {
        let report = with(status(1, seq, 3), "observedAt", json!("2026-01-01T00:00:00Z"));
        let poison = with(report.clone(), "generation", json!("?"));
        Outgoing {
            message_id: Some(format!("id-{seq}")),
            ..Outgoing::new(subjects::report(&key), if seq == 2 { poison } else { report }.to_string())
        }
    };
    for round in 1..=3 {
        for seq in 1..=3 {
            let stored = hub.bus.publish(report(seq)).await.unwrap();
            assert!(!stored.duplicate, "the bus has forgotten the id");
        }
        hub.receipt_is(&key, 1, 3, "").await;
        tokio::time::sleep(3 * window).await;
        if round == 2 {
            // It starts only if the streams match their definition.
            remember(&hub, DUPLICATE_WINDOW).await;
            hub.kill_ingest().await;
            hub.start_ingest();
            hub.started(2).await;
            remember(&hub, window).await;
        }
    }
    let taken =
        || async { hub.bus.partition_floors().await.unwrap().iter().map(|floor| floor.pending).sum::<u64>() };
    until("all of them are taken in", taken, |pending| *pending == 0).await;
    assert_eq!((hub.statuses(&key).await.len(), hub.quarantine(&key).await.len()), (2, 1));
    let uplink = || async { hub.bus.stream_state(stream::UPLINK).await.unwrap() };
    let uplink = until("what is acknowledged is removed", uplink, |uplink| uplink.messages == 0).await;
    assert_eq!(uplink.last_seq, 9, "nine were stored");
}
