//! Tests re-assertion: a real ingest re-asserts facts that hold before LEDGER discards them, and the rest is enough for a rollup,
//! for the next ingest and for the device's account.

use muster_contract::SeqRanges;
use muster_contract::limits::DUPLICATE_WINDOW;
use muster_contract::query::DeviceLine;
use muster_tests::later::LaterIngest;
use muster_tests::server::device;
use muster_tests::streams::forget_up_to;
use muster_tests::system::{ROLLUP, numbers};

use super::time::{desire, desired};
use super::*;

/// The answers of a rollup that has read only LEDGER.
pub(crate) async fn shown(hub: &Hub, key: &DeviceKey) -> (Vec<String>, DeviceLine) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let args = ["--nats-url", &hub.url, "--data-dir", &data].map(str::to_owned).to_vec();
    let spec = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    let _rollup = Child::start(spec, dir.path()).unwrap();
    let asked = muster_simulator::hub::Hub::new(hub.bus.clone());
    let all = async || {
        let fleet = asked.fleet().await.ok()?;
        // A rollup adds facts, too: which partitions it does not hear.
        let end = hub.bus.stream_state(stream::LEDGER).await.ok()?.last_seq;
        let (views, device) = (asked.deployments().await.ok()?, asked.device(key).await.ok()?.device);
        let digests =
            views.iter().map(|view| format!("{} {:?} {}", view.deployment, view.verdict, view.digest));
        let digests = digests.chain([fleet.tally.digest.to_string()]).collect();
        Some((end - fleet.tally.as_of.ledger_seq.min(end), digests, device))
    };
    let (_, digests, device) =
        until("a rollup that has read LEDGER", all, |told| told.as_ref().is_some_and(|told| told.0 == 0))
            .await
            .unwrap();
    (digests, device)
}

/// The facts of a device after a position, in words.
async fn facts_after(hub: &Hub, key: &DeviceKey, position: u64) -> Vec<String> {
    let ledger = hub.ledger().await.into_iter();
    let facts = ledger.filter(|entry| entry.seq > position && entry.subject.device() == Some(key));
    facts
        .filter_map(|entry| match entry.fact {
            Fact::Status(fact) => Some(format!("status {} {} {}", fact.epoch, fact.seq, fact.reasserted)),
            Fact::Device(fact) => Some(format!("device {} {} {}", fact.epoch, fact.seq, fact.reasserted)),
            Fact::Quarantine(fact) => Some(format!("quarantine {:?} {}", fact.seq, fact.reasserted)),
            Fact::Desired(fact) => Some(format!("desired {}", fact.generation)),
            Fact::Liveness(fact) => fact.account.map(|account| format!("account {}", account.missing)),
            _ => Some(entry.subject.to_string()),
        })
        .collect()
}

fn of(deployment: &str, state: &str, seq: u64) -> Value {
    let report = with(status(1, seq, 7), "deployment", json!(deployment));
    let report = with(report, "status", json!({"state": state}));
    let report = with(report, "components", json!([{"name": "main", "state": state}]));
    with(report, "observedAt", json!("2026-01-01T00:00:00Z"))
}

/// Six of seven numbers: capabilities, a state that is over, poison, one that declares another as coalesced, and a
/// failure. The last is in flight.
fn reports() -> Vec<Value> {
    let capabilities = json!({
        "apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": 1, "seq": 1, "head": 7,
        "observedAt": "2026-01-01T00:00:00Z", "properties": {}, "agentVersion": "1",
    });
    vec![
        capabilities,
        of("db", "installing", 2),
        with(of("db", "installing", 3), "generation", json!("?")),
        with(of("db", "installed", 5), "coalesced", json!([[4, 4]])),
        of("web", "failed", 6),
    ]
}

/// An ingest whose clock makes every fact old, until it has re-asserted them.
async fn reassert_everything(hub: &Hub, key: &DeviceKey, after: u64) {
    let ingest = LaterIngest::start(&hub.url).await;
    // As the publisher re-asserts desired states, in the same bytes.
    desire(hub, key, &desired(1, &["web", "db"], false)).await;
    let wanted = [
        "account 7",
        "desired 1",
        "device 1 1 true",
        "quarantine Some(Seq(3)) true",
        "status 1 5 true",
        "status 1 6 true",
    ];
    let facts = async || {
        let mut facts = facts_after(hub, key, after).await;
        facts.sort_unstable();
        facts.dedup_by(|one, other| one == other && one.starts_with("account"));
        facts
    };
    until("the facts that hold, and no other", facts, |facts| facts.as_slice() == wanted).await;
    ingest.end().await;
    assert_eq!(facts().await, wanted, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_that_hold_are_reasserted_and_the_window_has_the_same_views() {
    let mut hub = Hub::start(&[]).await;
    // It is in the first partition, which reads its old facts first.
    let mut names = (0..).map(|at| device(&format!("press-{at}")));
    let key = names.find(|key| muster_contract::partition::partition_of(key) == 0).unwrap();
    desire(&hub, &key, &desired(1, &["web", "db"], false)).await;
    for report in reports() {
        hub.send(&key, &report).await;
    }
    hub.beat(&key, 1, 7).await;
    let first = hub.statuses_are(&key, 3).await;
    until("the poison", || hub.quarantine(&key), |kept| kept.len() == 1).await;
    let wanted = async || facts_after(&hub, &key, 0).await.contains(&"desired 1".to_owned());
    until("LEDGER has what it shall run", wanted, |there| *there).await;
    assert!(hub.stop_ingest().await.success(), "{}", hub.log());
    let end = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;

    reassert_everything(&hub, &key, end).await;
    let again: Vec<_> = hub.statuses(&key).await.into_iter().filter(|fact| fact.reasserted).collect();
    for fact in &again {
        let same = StatusFact { reasserted: false, ..fact.clone() };
        assert!(first.contains(&same), "the same fact, marked: {fact:?}");
    }
    let (views, device) = shown(&hub, &key).await;
    let (account, sum) = (&device.account, device.account.received + device.account.coalesced);
    assert_eq!((account.received, account.coalesced, account.quarantined), (4, 1, 1), "{device:?}");
    assert_eq!(account.missing, SeqRanges::span(7, 7));
    assert_eq!((device.head, sum + account.quarantined + account.missing.count()), (7, 7));

    forget_up_to(&hub.bus, end).await;
    assert_eq!(shown(&hub, &key).await, (views, device), "a rollup rebuilt from the window alone");

    // The next ingest is restored from the window, and a repeated report is a duplicate.
    hub.start_ingest();
    hub.started(2).await;
    edit(&hub.bus, stream::LEDGER, |config| config["duplicate_window"] = json!(100_000_000)).await;
    for report in reports() {
        hub.send(&key, &report).await;
    }
    hub.send(&key, &of("web", "installed", 7)).await;
    hub.receipt_after_a_beat(&key, 1, 7).await;
    let held = numbers(&hub.ledger().await);
    assert_eq!(held[&(key.clone(), 1)].iter().collect::<Vec<_>>(), [&7], "new is the last one alone");
    assert_eq!(hub.incidents(&key).await, []);
    assert!(hub.stop_ingest().await.success());
    let window = DUPLICATE_WINDOW.as_nanos() as u64;
    edit(&hub.bus, stream::LEDGER, |config| config["duplicate_window"] = json!(window)).await;
    let (_, device) = shown(&hub, &key).await;
    assert_eq!((device.head, device.account.received, device.account.missing), (7, 5, SeqRanges::new()));
}
