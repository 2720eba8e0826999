//! Reports that share messages: a backlog of batches with ingest and the agent killed in the middle, and batches of a device that
//! writes what it likes.

use muster_bus::Headers;
use muster_contract::headers::{CONTENT_ENCODING, REPORTS, ZSTD, ZSTD_REPORTS_1};
use muster_contract::packed::pack;
use muster_contract::{Epoch, Seq};
use muster_tests::backlog::Backlog;
use muster_tests::server::device;

use super::*;

/// Deployments of the device with a backlog: without a document it may report so many.
const DEPLOYMENTS: usize = 8;
const BACKLOG: usize = 12_000;
/// Kills of ingest and of the agent, in turn.
const KILLS: u64 = 6;

/// One batch of `(number, report)`, without the fields of the envelope in the reports.
fn batch(epoch: u64, head: u64, reports: &[(u64, Value)]) -> (Headers, Vec<u8>) {
    let element = |(seq, report): &(u64, Value)| {
        let mut report = report.clone();
        let fields = report.as_object_mut().unwrap();
        ["apiVersion", "epoch", "seq", "head"].into_iter().for_each(|key| _ = fields.remove(key));
        (Seq::new(*seq).unwrap(), report.to_string())
    };
    let elements: Vec<_> = reports.iter().map(element).collect();
    let text = pack(Epoch::new(epoch).unwrap(), Seq::new(head).unwrap(), &elements).unwrap();
    (headers(reports.len()), zstd::bulk::compress(&text, 3).unwrap())
}

fn headers(reports: usize) -> Headers {
    let mut headers = Headers::new();
    headers.insert(REPORTS, reports.to_string());
    headers.insert(CONTENT_ENCODING, ZSTD);
    headers
}

impl Hub {
    async fn send_batch(&self, key: &DeviceKey, (headers, payload): (Headers, Vec<u8>)) {
        let message = Outgoing { headers, ..Outgoing::new(subjects::report(key), payload) };
        soon("UPLINK", self.bus.publish(message)).await.unwrap();
    }

    /// Waits until LEDGER has so many messages.
    async fn ledger_reaches(&self, messages: u64) {
        let count =
            || async { self.bus.stream_state(stream::LEDGER).await.map_or(0, |state| state.messages) };
        until("facts in LEDGER", count, |count| *count >= messages).await;
    }

    fn start_agent(&self, data: &std::path::Path) -> Child {
        let data = data.display().to_string();
        let args = [
            "--nats-url",
            &self.url,
            "--data-dir",
            &data,
            "--site",
            "plant7",
            "--device",
            "press-4",
            "--runtime",
            "simulated",
            "--heartbeat",
            "1s",
            "--reconnect-max",
            "1s",
        ];
        let args = args.into_iter().map(str::to_owned).collect();
        let name = "muster-agent";
        Child::start(Spec { name: name.to_owned(), program: program(name), args }, self.dir.path()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_batches_survives_kills_of_ingest_and_agent() {
    let mut hub = Hub::start(&[]).await;
    hub.owns_all().await;
    let backlog = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    backlog.tell_history(BACKLOG).await;
    backlog.hub_reads_batches().await;
    let key = backlog.device.clone();
    let data = backlog.close().await;
    let mut agent = hub.start_agent(data.path());
    for kill in 1..=KILLS {
        hub.ledger_reaches(kill * BACKLOG as u64 / (KILLS + 2)).await;
        if kill % 2 == 0 {
            agent.kill().await.unwrap();
            agent = hub.start_agent(data.path());
        } else {
            hub.kill_ingest().await;
            hub.start_ingest();
        }
    }
    let statuses = hub.statuses_are(&key, BACKLOG).await;
    let mut seqs: Vec<_> = statuses.iter().map(|fact| fact.seq.get()).collect();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), BACKLOG, "each number is in LEDGER once");
    let all =
        || async { hub.receipt(&key).await.map(|receipt| (receipt.through, receipt.missing.is_empty())) };
    until("a receipt of everything", all, |said| {
        said.is_some_and(|(to, whole)| to > BACKLOG as u64 && whole)
    })
    .await;
    let uplink = soon("UPLINK", hub.bus.stream_state(stream::UPLINK)).await.unwrap();
    assert!(uplink.last_seq < BACKLOG as u64 / 10, "{} messages for {BACKLOG} reports", uplink.last_seq);
    assert_eq!(hub.quarantine(&key).await, []);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reports_of_a_batch_are_accounted_for_one_by_one() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 2, 2)).await;
    hub.statuses_are(&key, 1).await;
    let known = hub.statuses(&key).await.remove(0);
    let again = with(status(1, 2, 7), "observedAt", json!(known.observed_at.to_string()));
    let poison = with(status(1, 4, 7), "generation", json!("?"));
    let reports = [(1, status(1, 1, 7)), (2, again), (3, status(1, 3, 7)), (4, poison), (7, status(1, 7, 7))];
    hub.send_batch(&key, batch(1, 7, &reports)).await;
    hub.statuses_are(&key, 4).await;
    hub.receipt_is(&key, 1, 7, "5-6").await;
    let quarantined = hub.quarantine(&key).await;
    assert_eq!(quarantined.iter().map(|fact| fact.seq.map(Seq::get)).collect::<Vec<_>>(), [Some(4)]);
    // The same numbers with other contents are forks, each by itself.
    let other = |seq: u64| (seq, with(status(1, seq, 8), "observedAt", json!("2026-01-01T00:00:00Z")));
    hub.send_batch(&key, batch(1, 8, &[other(1), other(3), (8, status(1, 8, 8))])).await;
    hub.statuses_are(&key, 5).await;
    let forks = || async {
        let incidents = hub.incidents(&key).await;
        incidents.iter().filter(|what| matches!(what, IncidentKind::SequenceFork { .. })).count()
    };
    until("two forks", forks, |count| *count == 2).await;
    assert_eq!(hub.receipt(&key).await.unwrap().batches, [ZSTD, ZSTD_REPORTS_1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_cannot_be_unpacked_are_rejected_and_end_for_their_device() {
    let hub = Hub::start(&[]).await;
    let (hostile, honest) = (device("press-4"), device("press-5"));
    for key in [&hostile, &honest] {
        hub.send(key, &status(1, 1, 1)).await;
        hub.statuses_are(key, 1).await;
    }
    let two = [(2, status(1, 2, 3)), (3, status(1, 3, 3))];
    let text = |change: &dyn Fn(&mut Value)| {
        let (_, payload) = batch(1, 3, &two);
        let text = zstd::bulk::decompress(&payload, 1 << 20).unwrap();
        let mut batch: Value = serde_json::from_slice(&text).unwrap();
        change(&mut batch);
        zstd::bulk::compress(batch.to_string().as_bytes(), 3).unwrap()
    };
    let bomb = zstd::bulk::compress(&vec![b' '; 64 << 20], 19).unwrap();
    let many = text(&|batch| {
        batch["reports"] = vec![json!({}); 257].into();
        (batch["seqs"], batch["head"]) = (json!([[2, 258]]), json!(258));
    });
    let overlap = text(&|batch| batch["seqs"] = json!([[2, 3], [3, 3]]));
    let own_number = text(&|batch| batch["reports"][0]["seq"] = json!(99));
    let messages = [
        (2, bomb),
        (257, many),
        (2, overlap),
        (2, own_number),
        (2, b"no zstd".to_vec()),
        (7, batch(1, 3, &two).1),
    ];
    let count = messages.len();
    for (reports, payload) in messages {
        hub.send_batch(&hostile, (headers(reports), payload)).await;
    }
    // Its other reports go on, and so do those of another device of the same hub.
    hub.send(&hostile, &status(1, 2, 2)).await;
    hub.send_batch(&honest, batch(1, 3, &two)).await;
    hub.statuses_are(&hostile, 2).await;
    hub.statuses_are(&honest, 3).await;
    let recorded = || async { hub.quarantine(&hostile).await };
    let facts = until("a record of each", recorded, |facts| facts.len() == count).await;
    assert!(facts.iter().all(|fact| fact.numbers().is_none()), "{facts:?}");
    let said = || async { (hub.receipt(&hostile).await, hub.receipt(&honest).await) };
    let asked =
        |receipt: &Option<Receipt>| receipt.as_ref().map(|receipt| (receipt.through, receipt.batches.len()));
    until("receipts", said, |(hostile, honest)| {
        (asked(hostile), asked(honest)) == (Some((2, 0)), Some((3, 2)))
    })
    .await;
    assert!(hub.incidents(&honest).await.is_empty());
    assert!(!hub.log().contains("panicked"));
}
