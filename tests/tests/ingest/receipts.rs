//! Tests foreign receipts in DOWNLINK: the right one follows at once, and the foreign one is an incident.

use bytes::Bytes;
use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::fact::IncidentKind;
use muster_contract::incident::ForeignDocument;
use muster_contract::subjects::{self, stream};
use muster_tests::server::device;
use muster_tests::wait::{soon, until};
use serde_json::json;

use crate::{Hub, status};

async fn put(hub: &Hub, key: &DeviceKey, payload: Bytes) -> u64 {
    let foreign = Outgoing::new(subjects::receipt(key), payload);
    soon("DOWNLINK", hub.bus.publish(foreign)).await.unwrap().sequence
}

async fn is_reported(hub: &Hub, key: &DeviceKey, wanted: (u64, ForeignDocument)) {
    let is_wanted = |what: &IncidentKind| matches!(what, IncidentKind::ForeignDocument { downlink_seq, cause, .. } if (*downlink_seq, *cause) == wanted);
    until("the incident", || hub.incidents(key), |found| found.iter().any(is_wanted)).await;
}

/// Waits until ingest has stored a right receipt after a position.
async fn is_mended(hub: &Hub, key: &DeviceKey, sequence: u64, right: &Bytes) {
    let newest = async || hub.bus.last(stream::DOWNLINK, &subjects::receipt(key)).await.unwrap().unwrap();
    let mended = until("another receipt", newest, |last| last.stream_seq > sequence).await;
    assert_eq!(mended.payload, *right);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_damaged_receipt_is_replaced_at_once_and_is_an_incident() {
    let mut hub = Hub::start(&["--lease", "1s"]).await;
    let (key, unheard) = (device("press-4"), device("press-5"));
    hub.send(&key, &status(1, 1, 1)).await;
    hub.receipt_is(&key, 1, 1, "").await;
    let right = hub.bus.last(stream::DOWNLINK, &subjects::receipt(&key)).await.unwrap().unwrap();
    // It covers reports that the hub does not hold: the device would delete them after a day.
    let false_claim = json!({ "apiVersion": "muster/v1", "kind": "Receipt", "epoch": 1, "through": 9 });
    for (payload, cause) in [
        (Bytes::new(), ForeignDocument::Empty),
        ("{\"error\":1}".into(), ForeignDocument::Unreadable),
        (right.payload.slice(..right.payload.len() / 2), ForeignDocument::Unreadable),
        (false_claim.to_string().into(), ForeignDocument::NotPublished),
    ] {
        let sequence = put(&hub, &key, payload).await;
        is_mended(&hub, &key, sequence, &right.payload).await;
        is_reported(&hub, &key, (sequence, cause)).await;
    }

    // The hub does not know this device, so there is no receipt to write; the incident is recorded.
    let sequence = put(&hub, &unheard, "garbage".into()).await;
    is_reported(&hub, &unheard, (sequence, ForeignDocument::Unreadable)).await;

    // The next ingest finds a receipt that came while no ingest ran.
    hub.stop_ingest().await;
    let sequence = put(&hub, &key, "garbage".into()).await;
    hub.start_ingest();
    is_mended(&hub, &key, sequence, &right.payload).await;
    is_reported(&hub, &key, (sequence, ForeignDocument::Unreadable)).await;
    // No other incident follows: the hub's own receipts are none.
    let stored = async || hub.bus.stream_state(stream::DOWNLINK).await.unwrap().last_seq;
    let before = stored().await;
    hub.send(&key, &status(1, 2, 2)).await;
    hub.receipt_is(&key, 1, 2, "").await;
    assert_eq!(stored().await, before + 1, "one receipt for one report");
}
