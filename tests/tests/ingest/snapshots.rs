//! Tests snapshots of ingest: a start reads only later facts, knows the same, and reads all of LEDGER if a snapshot does not
//! match.

use muster_bus::Delivery;
use muster_contract::limits::{PARTITIONS, UNSOLICITED_DEFAULT};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Hub, status, with};

/// Three pulses of each partition within this time.
const LEASE: &str = "6s";

/// Facts that each start has read.
fn facts_read(hub: &Hub) -> Vec<u64> {
    let log = hub.log();
    let lines = log.lines().filter(|line| line.contains("restored the partitions from LEDGER"));
    let number = |line: &str| {
        let (_, rest) = line.split_once("facts=").unwrap();
        rest.split(|sign: char| !sign.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    lines.map(number).collect()
}

fn of(deployment: &str, seq: u64) -> Value {
    with(status(1, seq, seq), "deployment", json!(deployment))
}

impl Hub {
    /// Waits until each partition has a pulse behind everything that LEDGER holds now, and another one, so that ingest knows it.
    async fn all_pulse_behind_its_end(&self) {
        for _ in 0..2 {
            let end = self.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
            for partition in 0..PARTITIONS {
                let subject = LedgerSubject::Hub(partition).to_string();
                let newest = || async { self.bus.last(stream::LEDGER, &subject).await.unwrap() };
                let is_behind =
                    |pulse: &Option<Delivery>| pulse.as_ref().is_some_and(|pulse| pulse.stream_seq > end);
                until("a pulse of each partition", newest, is_behind).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_snapshots_reads_the_tail_and_knows_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("ingest");
    let mut hub = Hub::start(&["--lease", LEASE, "--data-dir", folder.to_str().unwrap()]).await;
    hub.owns_all().await;
    let (key, busy) = (device("no-document"), device("busy"));
    for seq in 1..=UNSOLICITED_DEFAULT as u64 {
        hub.send(&key, &of(&format!("x{seq}"), seq)).await;
    }
    for seq in 1..=300 {
        hub.send(&busy, &of("web", seq)).await;
    }
    hub.statuses_are(&key, UNSOLICITED_DEFAULT).await;
    hub.statuses_are(&busy, 300).await;
    hub.all_pulse_behind_its_end().await;
    assert!(hub.stop_ingest().await.success());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 16, "a snapshot for each partition");

    hub.start_ingest();
    hub.started(2).await;
    // The facts after the oldest snapshot, which names the position that the last pulse of its partition proved.
    let read = facts_read(&hub);
    assert!(read[1] < 50, "{read:?}");
    let next = UNSOLICITED_DEFAULT as u64 + 1;
    hub.send(&key, &of("one-more", next)).await;
    until("the refusal", || hub.quarantine(&key), |kept| kept.len() == 1).await;
    // A repeated number is a duplicate.
    hub.send(&busy, &of("web", 300)).await;
    hub.send(&busy, &of("web", 301)).await;
    hub.statuses_are(&busy, 301).await;
    hub.receipt_after_a_beat(&key, 1, next).await;
    hub.receipt_after_a_beat(&busy, 1, 301).await;

    // A kill leaves older snapshots, and a damaged one is renamed.
    hub.kill_ingest().await;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    hub.start_ingest();
    hub.started(3).await;
    let read = facts_read(&hub);
    assert!(read[2] > 300, "{read:?}");
    let log = hub.log();
    assert!(log.contains("cannot use the snapshot") && log.contains("digest"), "{log}");
    hub.send(&key, &of("two-more", next + 1)).await;
    until("the refusal", || hub.quarantine(&key), |kept| kept.len() == 2).await;
    hub.send(&busy, &of("web", 302)).await;
    hub.statuses_are(&busy, 302).await;
    assert_eq!(hub.statuses(&key).await.len(), UNSOLICITED_DEFAULT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_ledger_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("ingest");
    let args = ["--data-dir", folder.to_str().unwrap()];
    let mut first = Hub::start(&args).await;
    first.owns_all().await;
    let key = device("press-4");
    first.send(&key, &status(1, 1, 1)).await;
    first.statuses_are(&key, 1).await;
    assert!(first.stop_ingest().await.success());
    // Another server, whose LEDGER does not have that report.
    let second = Hub::start(&args).await;
    second.owns_all().await;
    assert!(second.log().contains("LEDGER is another one"), "{}", second.log());
    second.send(&key, &status(1, 1, 1)).await;
    second.statuses_are(&key, 1).await;
}
