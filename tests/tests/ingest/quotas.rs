//! Tests the quotas of a device: deployments and epochs. A hostile device meets its quota and delays no other; a device
//! that reports only deployments that it was sent is never rejected, however fast it is.

use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::limits::{EPOCH_RISES_PER_HOUR, UNSOLICITED_DEFAULT};
use muster_contract::subjects;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use crate::owners::{second, stands_by};
use crate::time::{desire, desired};
use crate::window::shown;
use crate::{Hub, status, with};

/// Deployments that a hostile device invents.
const INVENTED: u64 = 200;

const _: () = assert!(INVENTED + 10 < muster_contract::limits::QUARANTINE_SHARE as u64);
/// Quarantine facts that LEDGER may get from a flood that lasts for less than a minute and a half: ten a minute of single
/// messages, and a batch every ten seconds.
const QUARANTINE_FACTS_MAX: usize = 2 * 10 + 9;

fn of(deployment: &str, seq: u64) -> Value {
    let report = with(status(1, seq, seq), "status", json!({"state": "installed"}));
    let report = with(report, "components", json!([{"name": "main", "state": "installed"}]));
    with(report, "deployment", json!(deployment))
}

/// Sends a report for each number, of an unknown deployment.
async fn invent(hub: &Hub, key: &DeviceKey, from: u64, to: u64) {
    let subject = subjects::report(key);
    let mut answers = hub.bus.window(64);
    for seq in from..=to {
        answers.send(Outgoing::new(subject.clone(), of(&format!("x{seq}"), seq).to_string()), ()).await;
    }
    while let Some((_, answer)) = soon("UPLINK", answers.next()).await {
        answer.unwrap();
    }
}

/// The number of messages in quarantine, and of their facts.
async fn quarantined(hub: &Hub, key: &DeviceKey) -> (u64, usize) {
    let facts = hub.quarantine(key).await;
    (facts.iter().map(|fact| 1 + fact.others).sum(), facts.len())
}

async fn are_quarantined(hub: &Hub, key: &DeviceKey, count: u64) {
    let (_, facts) =
        until("the messages in quarantine", || quarantined(hub, key), |found| found.0 >= count).await;
    assert_eq!(quarantined(hub, key).await.0, count);
    assert!(facts <= QUARANTINE_FACTS_MAX, "{facts} facts");
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_deployments_are_refused_and_good_devices_untouched() {
    let mut hub = Hub::start(&[]).await;
    hub.owns_all().await;
    let good: Vec<DeviceKey> = (0..5).map(|at| device(&format!("good-{at}"))).collect();
    let (free, bound) = (device("no-document"), device("one-target"));
    for key in good.iter().chain([&bound]) {
        desire(&hub, key, &desired(1, &["web"], false)).await;
    }
    tokio::join!(invent(&hub, &free, 1, INVENTED), invent(&hub, &bound, 1, INVENTED), async {
        for seq in 1..=20 {
            for key in &good {
                hub.send(key, &of("web", seq)).await;
            }
        }
    });
    for key in &good {
        hub.statuses_are(key, 20).await;
        assert!(hub.quarantine(key).await.is_empty());
        hub.receipt_after_a_beat(key, 1, 20).await;
    }
    let unsolicited = UNSOLICITED_DEFAULT as u64;
    are_quarantined(&hub, &free, INVENTED - unsolicited).await;
    are_quarantined(&hub, &bound, INVENTED).await;
    assert_eq!(hub.statuses(&free).await.len(), UNSOLICITED_DEFAULT);
    assert!(hub.statuses(&bound).await.is_empty());
    let reason = hub.quarantine(&bound).await[0].reason.clone();
    assert!(reason.contains("was not sent to this device") && reason.contains("requeue"), "{reason}");
    // Every number is accounted for.
    hub.receipt_after_a_beat(&free, 1, INVENTED).await;

    // Another process knows the same of both: first one that takes over, then a new one.
    let other = second(&hub);
    stands_by(&hub, "second").await;
    hub.kill_ingest().await;
    invent(&hub, &free, INVENTED + 1, INVENTED + 5).await;
    invent(&hub, &bound, INVENTED + 1, INVENTED + 5).await;
    hub.send(&free, &of("x3", INVENTED + 6)).await;
    hub.statuses_are(&free, UNSOLICITED_DEFAULT + 1).await;
    other.kill().await.unwrap();
    hub.start_ingest();
    invent(&hub, &free, INVENTED + 7, INVENTED + 10).await;
    hub.send(&bound, &of("web", INVENTED + 6)).await;
    hub.statuses_are(&bound, 1).await;
    until("the refusals", || quarantined(&hub, &free), |(count, _)| *count == INVENTED - unsolicited + 9)
        .await;
    assert_eq!(hub.statuses(&free).await.len(), UNSOLICITED_DEFAULT + 1);
    // The views contain no more of the invented deployments than the quota.
    let (views, _) = shown(&hub, &free).await;
    assert_eq!(views.len() - 1, UNSOLICITED_DEFAULT + 1, "{views:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sets_what_devices_without_documents_may_report() {
    let hub = Hub::start(&["--unsolicited", "2"]).await;
    hub.owns_all().await;
    let key = device("foreign");
    invent(&hub, &key, 1, 4).await;
    are_quarantined(&hub, &key, 2).await;
    assert_eq!(hub.statuses(&key).await.len(), 2);
}

/// A device that reports each document's deployment in the moment in which the bus has stored the document.
async fn report_at_once(hub: &Hub, key: &DeviceKey, generations: std::ops::RangeInclusive<u64>) {
    for generation in generations {
        let id = format!("d{generation}");
        // Every other document is superseded before the device reports it.
        let superseded = generation % 2 == 0;
        desire(hub, key, &desired(2 * generation, &[&id], false)).await;
        if superseded {
            desire(hub, key, &desired(2 * generation + 1, &[], false)).await;
        }
        let report = with(of(&id, generation), "generation", json!(2 * generation));
        hub.send(key, &report).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_faster_than_ingest_is_never_refused() {
    let mut hub = Hub::start(&[]).await;
    hub.owns_all().await;
    let keys: Vec<DeviceKey> = (0..8).map(|at| device(&format!("fast-{at}"))).collect();
    let all = |generations: std::ops::RangeInclusive<u64>| {
        let one = |key| report_at_once(&hub, key, generations.clone());
        futures_util::future::join_all(keys.iter().map(one))
    };
    all(1..=60).await;
    for key in &keys {
        hub.statuses_are(key, 60).await;
        assert!(hub.quarantine(key).await.is_empty(), "{:?}", hub.quarantine(key).await);
    }
    // Documents and reports that came while no ingest ran.
    hub.kill_ingest().await;
    let all = |generations: std::ops::RangeInclusive<u64>| {
        let one = |key| report_at_once(&hub, key, generations.clone());
        futures_util::future::join_all(keys.iter().map(one))
    };
    all(61..=62).await;
    hub.start_ingest();
    for key in &keys {
        hub.statuses_are(key, 62).await;
        assert!(hub.quarantine(key).await.is_empty(), "{:?}", hub.quarantine(key).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_rise_at_most_six_times_an_hour() {
    let hub = Hub::start(&[]).await;
    hub.owns_all().await;
    let key = device("amnesiac");
    for epoch in 1..=20 {
        hub.send(&key, &status(epoch, 1, 1)).await;
    }
    let taken = 1 + EPOCH_RISES_PER_HOUR as u64;
    are_quarantined(&hub, &key, 20 - taken).await;
    assert_eq!(hub.statuses(&key).await.len() as u64, taken);
    let rises = hub.incidents(&key).await;
    let rises = rises.iter().filter(|what| matches!(what, IncidentKind::Amnesia { .. })).count();
    assert_eq!(rises, EPOCH_RISES_PER_HOUR);
    // None of the refused numbers is covered: the device keeps its reports until the hub asks for them.
    let numbers =
        hub.facts(&key, |fact| if let Fact::Quarantine(fact) = fact { fact.seq } else { None }).await;
    assert!(numbers.is_empty(), "{numbers:?}");
}
