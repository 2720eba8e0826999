//! Tests the outcomes of reports, and the facts and receipts that follow.

use muster_contract::fact::IncidentKind;
use muster_contract::headers::TRACEPARENT;
use muster_contract::limits::REPORT_BYTES_MAX;
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::json;

use crate::crash::get;
use crate::{Hub, status, with};

#[tokio::test]
async fn a_poison_report_is_kept_with_its_reason_and_its_neighbours_pass() {
    let hub = Hub::start(&[]).await;
    let (bad, good) = (device("bad"), device("good"));
    hub.send(&bad, &status(1, 1, 4)).await;
    hub.send(&bad, &with(status(1, 2, 4), "status", json!({"state": "exploded"}))).await;
    hub.send(&good, &status(1, 1, 1)).await;
    hub.send_bytes(&subjects::report(&bad), "{ this is no JSON").await;
    hub.send(&bad, &with(status(1, 3, 4), "status", json!({"state": "installed"}))).await;
    hub.send(&bad, &status(1, 4, 4)).await;
    hub.send_bytes("muster.report.Plant_7.press", "{}").await;
    hub.send_bytes(&subjects::report(&bad), "x".repeat(REPORT_BYTES_MAX)).await;

    hub.statuses_are(&bad, 2).await;
    hub.statuses_are(&good, 1).await;
    let kept = until("the quarantine", || hub.quarantine(&bad), |kept| kept.len() == 4).await;
    let words =
        ["status.state: 'exploded'", "not a StatusReport", "it must be installing", "not a StatusReport"];
    for (kept, words) in kept.iter().zip(words) {
        assert!(kept.reason.contains(words), "{}", kept.reason);
    }
    assert_eq!(kept.iter().map(|kept| kept.count_for_device).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(kept[3].bytes, REPORT_BYTES_MAX as u64);
    let nobody = until(
        "nobody's quarantine",
        || async {
            hub.ledger().await.into_iter().filter(|e| e.subject == LedgerSubject::Quarantine(None)).count()
        },
        |count| *count == 1,
    );
    nobody.await;
    // Two were accepted, two are in quarantine under their numbers: the device may delete all four.
    hub.receipt_is(&bad, 1, 4, "").await;
}

#[tokio::test]
async fn reports_in_any_order_and_again_are_each_a_fact_once() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    for seq in [5, 2, 2, 1, 5, 4] {
        hub.send(&key, &with(status(1, seq, 5), "observedAt", json!("2026-01-01T00:00:00Z"))).await;
    }
    let found = hub.statuses_are(&key, 4).await;
    assert_eq!(
        found.iter().map(|fact| (fact.seq.get(), fact.late)).collect::<Vec<_>>(),
        [(5, false), (2, true), (1, true), (4, true)]
    );
    hub.receipt_is(&key, 1, 5, "3").await;
    hub.send(&key, &with(status(1, 3, 5), "observedAt", json!("2026-01-01T00:00:00Z"))).await;
    hub.receipt_is(&key, 1, 5, "").await;
}

#[tokio::test]
async fn m15_late_progress_after_a_success_is_counted_as_late() {
    let port = fastrand::u16(31_900..32_000);
    let hub = Hub::start(&["--http-addr", &format!("127.0.0.1:{port}")]).await;
    let key = device("press-4");
    let installed = with(status(1, 3, 3), "status", json!({"state": "installed"}));
    hub.send(&key, &with(installed, "components", json!([{"name": "main", "state": "installed"}]))).await;
    for seq in [1, 2] {
        hub.send(&key, &status(1, seq, 3)).await;
    }
    let found = hub.statuses_are(&key, 3).await;
    assert_eq!(found.iter().map(|fact| fact.late).collect::<Vec<_>>(), [false, true, true]);
    let counted = || async { get("/metrics", port).await.unwrap_or_default() };
    let says = |text: &str, outcome: &str, count: u8| {
        text.contains(&format!("muster_ingest_reports_total{{outcome=\"{outcome}\"}} {count}\n"))
    };
    until("they are counted", counted, |text| says(text, "late", 2) && says(text, "new", 1)).await;
}

#[tokio::test]
async fn a_restart_remembers_everything_that_ledger_holds() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    let report = |seq| with(status(1, seq, 3), "observedAt", json!("2026-01-01T00:00:00Z"));
    for seq in 1..=3 {
        hub.send(&key, &report(seq)).await;
    }
    hub.send(&key, &with(report(3), "generation", json!(2))).await;
    hub.receipt_is(&key, 1, 3, "").await;
    until("the fork", || hub.quarantine(&key), |kept| kept.len() == 1).await;
    assert!(hub.stop_ingest().await.success());

    hub.start_ingest();
    // The same again, the fork as well, and one new report behind them.
    for seq in 1..=3 {
        hub.send(&key, &report(seq)).await;
    }
    hub.send(&key, &with(report(3), "generation", json!(2))).await;
    hub.send(&key, &with(report(4), "head", json!(4))).await;
    hub.receipt_is(&key, 1, 4, "").await;
    assert_eq!(hub.statuses(&key).await.len(), 4);
    assert_eq!(hub.quarantine(&key).await.len(), 1);
    assert!(hub.log().contains("restored the partitions from LEDGER"), "{}", hub.log());
}

#[tokio::test]
async fn forks_amnesia_and_clones_are_incidents_without_a_status() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(5, 1, 1)).await;
    hub.send(&key, &with(status(5, 1, 1), "generation", json!(9))).await;
    hub.send(&key, &status(6, 1, 1)).await;
    hub.send(&key, &status(5, 2, 2)).await;
    hub.send(&key, &status(5, 3, 3)).await;
    let found = until("the incidents", || hub.incidents(&key), |found| found.len() >= 3).await;
    let mut kinds: Vec<&str> = found
        .iter()
        .map(|what| match what {
            IncidentKind::SequenceFork { .. } => "fork",
            IncidentKind::Amnesia { .. } => "amnesia",
            IncidentKind::Clone { .. } => "clone",
            _ => "other",
        })
        .collect();
    // The incident of the fork waits until QUARANTINE has the message.
    kinds.sort_unstable();
    assert_eq!(kinds, ["amnesia", "clone", "fork"]);
    until("the quarantine", || hub.quarantine(&key), |kept| kept.len() == 3).await;
    assert_eq!(hub.statuses(&key).await.len(), 2);
    hub.receipt_is(&key, 6, 1, "").await;
}

#[tokio::test]
async fn a_fact_carries_its_fence_and_a_sampled_trace_and_nothing_else() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    let subject = LedgerSubject::Status(key.clone(), "web".parse().unwrap()).to_string();
    let (trace, fence) =
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", "Nats-Expected-Last-Subject-");
    for (seq, flags, carried) in [(1, "01", true), (2, "00", false)] {
        let mut report = muster_bus::Outgoing::new(subjects::report(&key), status(7, seq, seq).to_string());
        report.headers.insert(TRACEPARENT, format!("{trace}-{flags}"));
        hub.bus.publish(report).await.unwrap();
        hub.statuses_are(&key, seq as usize).await;
        let fact = hub.bus.last(stream::LEDGER, &subject).await.unwrap().unwrap();
        let expected = carried.then(|| format!("{trace}-{flags}"));
        assert_eq!(fact.headers.get(TRACEPARENT), expected.as_deref(), "{flags}");
        // A direct get adds where the message is.
        let added = ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", TRACEPARENT];
        let mut others = fact.headers.iter().map(|(name, _)| name).filter(|name| !added.contains(name));
        assert!(others.all(|name| name.starts_with(fence)), "{:?}", fact.headers);
    }
}

#[tokio::test]
async fn a_quarantined_message_always_has_a_trace() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.bus.publish(muster_bus::Outgoing::new(subjects::report(&key), "{}")).await.unwrap();
    until("the quarantine", || hub.quarantine(&key), |kept| kept.len() == 1).await;
    let subject = LedgerSubject::Quarantine(Some(key)).to_string();
    let fact = hub.bus.last(stream::LEDGER, &subject).await.unwrap().unwrap();
    assert!(fact.headers.get(TRACEPARENT).is_some_and(|trace| trace.ends_with("-01")), "{:?}", fact.headers);
}

#[tokio::test]
async fn two_processes_share_the_partitions() {
    let hub = Hub::start(&["--partitions", "0-7"]).await;
    let keys: Vec<_> = (0..40).map(|at| device(&format!("press-{at}"))).collect();
    for key in &keys {
        hub.send(key, &status(1, 1, 1)).await;
    }
    let own = keys.iter().filter(|key| muster_contract::partition::partition_of(key) < 8).count();
    let count = || async {
        hub.ledger().await.iter().filter(|e| matches!(e.fact, muster_contract::fact::Fact::Status(_))).count()
    };
    until("the first half", count, |found| *found == own).await;
    let mut spec = hub.spec.clone();
    spec.args.extend(["--partitions".to_owned(), "8-15".to_owned()]);
    spec.args.retain(|arg| arg != "0-7");
    let first = spec.args.iter().position(|arg| arg == "--partitions").unwrap();
    spec.args.remove(first);
    spec.name = "second".to_owned();
    let _second = muster_simulator::child::Child::start(spec, hub.dir.path()).unwrap();
    until("all of them", count, |found| *found == keys.len()).await;
}
