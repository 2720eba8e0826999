//! Tests streams that refuse messages: for ever, until there is room again, and after facts have aged out.

use std::time::Duration;

use muster_bus::{Outgoing, PublishErrorKind};
use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::json;

use crate::crash::get;
use crate::{Hub, edit, status, with};

#[tokio::test]
async fn an_unstorable_report_is_quarantined_and_delays_no_other() {
    let hub = Hub::start(&[]).await;
    let (big, other) = (device("big"), device("other"));
    hub.send(&big, &status(1, 1, 1)).await;
    hub.statuses_are(&big, 1).await;
    // The server allows a mirror no larger messages than its source.
    for stream in [stream::DOWNLINK, stream::LEDGER] {
        edit(&hub.bus, stream, |config| config["max_msg_size"] = json!(4_000)).await;
    }
    let long = json!({"state": "failed", "error": {"code": "e", "message": "m".repeat(4_000)}});
    hub.send(&big, &with(status(1, 2, 3), "status", long)).await;
    hub.send(&big, &status(1, 3, 3)).await;
    hub.send(&other, &status(1, 1, 1)).await;
    hub.statuses_are(&other, 1).await;
    hub.statuses_are(&big, 2).await;
    let kept = until("the quarantine", || hub.quarantine(&big), |kept| kept.len() == 1).await;
    assert_eq!(kept[0].seq.map(|seq| seq.get()), Some(2));
    assert!(kept[0].reason.contains("max_msg_size"), "{}", kept[0].reason);
    assert!(kept[0].bytes > 4_000 && kept[0].payload().unwrap().len() < 4_000);
    // It is accounted for: the device may delete it.
    hub.receipt_is(&big, 1, 3, "").await;
    assert!(!hub.log().contains("reading LEDGER again"), "nothing had to be read again:\n{}", hub.log());
}

/// A device with one report in LEDGER, which is full then, and four reports that wait.
async fn send_until_full(hub: &Hub) -> DeviceKey {
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 1)).await;
    hub.statuses_are(&key, 1).await;
    edit(&hub.bus, stream::LEDGER, |config| {
        config["discard"] = json!("new");
        config["max_msgs"] = json!(1);
    })
    .await;
    for seq in 2..=5 {
        hub.send(&key, &status(1, seq, 5)).await;
    }
    key
}

#[tokio::test]
async fn a_full_ledger_holds_everything_back_and_nothing_is_lost() {
    let hub = Hub::start(&[]).await;
    let key = send_until_full(&hub).await;
    until("it says so", || async { hub.log() }, |log| log.contains("the stream is full")).await;
    assert_eq!(hub.statuses(&key).await.len(), 1);
    edit(&hub.bus, stream::LEDGER, |config| config["max_msgs"] = json!(-1)).await;
    hub.statuses_are(&key, 5).await;
    hub.receipt_is(&key, 1, 5, "").await;
}

#[tokio::test]
async fn waiting_reports_are_measured_while_none_can_be_read() {
    let port = fastrand::u16(32_700..32_760);
    let hub = Hub::start(&["--http-addr", &format!("127.0.0.1:{port}")]).await;
    let key = send_until_full(&hub).await;
    let waiting = || async {
        let told = get("/metrics", port).await.unwrap_or_default();
        let lags = told.lines().filter(|line| line.starts_with("muster_ingest_lag{"));
        lags.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    until("all four wait", waiting, |waiting| *waiting == 4).await;
    edit(&hub.bus, stream::LEDGER, |config| config["max_msgs"] = json!(-1)).await;
    hub.statuses_are(&key, 5).await;
    until("nothing waits", waiting, |waiting| *waiting == 0).await;
}

#[tokio::test]
async fn a_full_uplink_refuses_and_takes_again_once_there_is_room() {
    let hub = Hub::start(&[]).await;
    let key = send_until_full(&hub).await;
    let sixth = || Outgoing::new(subjects::report(&key), status(1, 6, 6).to_string());
    // The outbox keeps the report and tries again. The answer distinguishes a full share from a full stream.
    for (field, kind) in
        [("max_msgs", PublishErrorKind::Transient), ("max_msgs_per_subject", PublishErrorKind::SubjectFull)]
    {
        let mut before = serde_json::Value::Null;
        edit(&hub.bus, stream::UPLINK, |config| before = std::mem::replace(&mut config[field], json!(4)))
            .await;
        let refused = hub.bus.publish(sixth()).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
        edit(&hub.bus, stream::UPLINK, |config| config[field] = before).await;
    }
    edit(&hub.bus, stream::UPLINK, |config| config["max_msgs"] = json!(4)).await;
    edit(&hub.bus, stream::LEDGER, |config| config["max_msgs"] = json!(-1)).await;
    let stored = || async { hub.bus.publish(sixth()).await.is_ok() };
    until("what was taken makes room", stored, |stored| *stored).await;
    hub.statuses_are(&key, 6).await;
    hub.receipt_is(&key, 1, 6, "").await;
}

#[tokio::test]
async fn a_ledger_that_discarded_the_next_facts_is_read_from_its_first() {
    let hub = Hub::start(&[]).await;
    let (old, key) = (device("old"), device("press-4"));
    hub.send(&key, &status(1, 1, 1)).await;
    hub.statuses_are(&key, 1).await;
    for head in 1..=20 {
        let fact = json!({
            "apiVersion": "muster/v1", "kind": "LivenessFact", "state": "stale", "epoch": 1, "head": head,
            "lastHeardAt": "2026-01-01T00:00:00Z",
        });
        let subject = LedgerSubject::Liveness(old.clone()).to_string();
        hub.bus.publish(Outgoing::new(subject, fact.to_string())).await.unwrap();
    }
    let end = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let brief = Duration::from_secs(1).as_nanos() as u64;
    edit(&hub.bus, stream::LEDGER, |config| {
        config["duplicate_window"] = json!(brief / 2);
        config["max_age"] = json!(brief);
    })
    .await;
    let first = || async { hub.bus.stream_state(stream::LEDGER).await.unwrap().first_seq };
    until("LEDGER forgets", first, |first| *first > end).await;
    edit(&hub.bus, stream::LEDGER, |config| config["max_age"] = json!(0)).await;
    // The owner's record is gone as well: LEDGER refuses the next fact, the partition is taken again, and
    // LEDGER is read again after a position that it no longer holds.
    hub.send(&key, &status(1, 2, 2)).await;
    hub.receipt_is(&key, 1, 2, "").await;
    let facts =
        hub.facts(&key, |fact| if let Fact::Status(fact) = fact { Some(fact.seq.get()) } else { None });
    assert_eq!(facts.await, [2], "only the second is still there");
    let log = hub.log();
    assert!(
        log.contains("reading LEDGER from the first fact it holds") && !log.contains("start again"),
        "{log}"
    );
}
